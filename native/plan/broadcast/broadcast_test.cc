// SPDX-License-Identifier: Apache-2.0
// The policy alone: the choice among given candidates.
#include "plan/broadcast/broadcast.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "base/units.h"

namespace hoplite {
namespace {

struct Row {
  const char* name;
  std::vector<SenderCandidate> candidates;
  SenderRoom room;
  std::uint64_t chosen;  // 0: none
};
std::ostream& operator<<(std::ostream& out, const Row& row) { return out << row.name; }

SenderCandidate origin(std::uint32_t edges) {
  return {.node = NodeId{1}, .complete = true, .origin = true, .edges = edges};
}
SenderCandidate copy(std::uint64_t node, std::uint32_t edges) {
  return {.node = NodeId{node}, .complete = true, .edges = edges};
}
SenderCandidate partial(std::uint64_t node, std::uint32_t edges, std::uint32_t depth) {
  return {.node = NodeId{node}, .depth = depth, .edges = edges};
}
SenderCandidate with_failed(SenderCandidate candidate) {
  candidate.failed = true;
  return candidate;
}
SenderCandidate with_slow(SenderCandidate candidate) {
  candidate.slow = true;
  return candidate;
}
SenderCandidate with_behind(SenderCandidate candidate) {
  candidate.behind = true;
  return candidate;
}
SenderCandidate with_preferred(SenderCandidate candidate) {
  candidate.preferred = true;
  return candidate;
}

class ChooseSender : public ::testing::TestWithParam<Row> {};

TEST_P(ChooseSender, TakesTheExpectedOneInAnyOrder) {
  std::vector<SenderCandidate> candidates = GetParam().candidates;
  const auto by_node = [](const SenderCandidate& a, const SenderCandidate& b) {
    return a.node < b.node;
  };
  std::sort(candidates.begin(), candidates.end(), by_node);
  do {
    const auto chosen = choose_sender(candidates, GetParam().room);
    EXPECT_EQ(chosen.value_or(kNoNode).value, GetParam().chosen);
  } while (std::next_permutation(candidates.begin(), candidates.end(), by_node));
}

INSTANTIATE_TEST_SUITE_P(
    , ChooseSender,
    ::testing::Values(
        Row{"NobodyOfNobody", {}, {1}, 0},  //
        Row{"TheOriginAlone", {origin(0)}, {1}, 1},
        Row{"TheOriginAloneThoughFull", {origin(5)}, {1}, 1},
        Row{"ACopyRatherThanTheOrigin", {origin(0), copy(2, 0)}, {1}, 2},
        Row{"AFreeOriginRatherThanAPartialCopy", {origin(0), partial(2, 0, 1)}, {1}, 1},
        Row{"APartialCopyWhenTheOriginHasSentOneCopy", {origin(1), partial(2, 0, 1)}, {1}, 2},
        Row{"TheEndOfTheChain", {origin(1), partial(2, 1, 1), partial(3, 0, 2)}, {1}, 3},
        Row{"TheShallowestOfPartialCopies", {partial(2, 0, 3), partial(3, 0, 1)}, {1}, 3},
        Row{"APartialCopyOnOverflowAndTheOriginLast", {origin(1), partial(2, 1, 1)}, {1}, 2},
        Row{"TheLeastLoadedOnOverflow", {origin(4), partial(2, 5, 1), partial(3, 4, 1)}, {4}, 3},
        Row{"WhoDidNotFail", {with_failed(copy(2, 0)), partial(3, 9, 4)}, {1}, 3},
        Row{"WhoIsNotSlow", {with_slow(copy(2, 0)), partial(3, 9, 4)}, {1}, 3},
        Row{"WhoIsNotBehind", {with_behind(partial(2, 0, 1)), partial(3, 0, 4)}, {1}, 3},
        Row{"WhoIsBehindRatherThanTheOriginOnOverflow",
            {origin(1), with_behind(partial(2, 0, 1))},
            {1},
            2},
        Row{"WhoFailedIfThereIsNoOther", {with_failed(copy(2, 0))}, {1}, 2},
        Row{"TheInteriorOfThisStripe",
            {partial(2, 1, 1), with_preferred(partial(3, 2, 2))},
            {4},
            3},
        Row{"TheLeastBusyOfEquals", {copy(2, 2), copy(3, 1)}, {4}, 3},
        Row{"TheEndOfAChainThatIsNotTooDeep", {partial(2, 1, 1), partial(3, 0, 4)}, {1, 5}, 3},
        Row{"AnInnerOneOfAChainThatIs", {partial(2, 1, 1), partial(3, 0, 5)}, {1, 5}, 2},
        Row{"TheEndWhereOthersSendTwice", {partial(2, 2, 1), partial(3, 0, 5)}, {1, 5}, 3},
        Row{"WhoIsTooDeepRatherThanTheOrigin", {origin(1), partial(3, 0, 12)}, {1, 5}, 3}),
    [](const auto& row) { return std::string(row.param.name); });

// Receivers that arrive one by one, each asking for every stripe, as the directory asks for them.
TEST(BroadcastTree, NeverMakesTheOriginSendMoreThanOneCopyWhileOthersCan) {
  for (std::uint32_t stripes = 1; stripes <= 8; ++stripes) {
    std::map<std::uint64_t, std::uint32_t> edges;
    for (std::uint64_t receiver = 2; receiver <= 64; ++receiver) {
      for (std::uint32_t stripe = 0; stripe < stripes; ++stripe) {
        std::vector<SenderCandidate> candidates = {origin(edges[1])};
        for (std::uint64_t node = 2; node < receiver; ++node) {
          candidates.push_back(partial(node, edges[node], static_cast<std::uint32_t>(node)));
          candidates.back().preferred = node % stripes == stripe;
        }
        const auto chosen = choose_sender(candidates, {.edges = stripes});
        ASSERT_TRUE(chosen.has_value());
        ++edges[chosen->value];
      }
    }
    EXPECT_LE(edges[1], stripes) << stripes << " stripes";
    for (const auto& [node, count] : edges) EXPECT_LE(count, stripes) << "node " << node;
  }
}

// All members of a large cluster ask one after the other before any of them has the whole object.
// No chain is deeper than the price of one edge too many, and no sender has two such edges.
TEST(BroadcastTree, IsCutWhereOneEdgeMoreCostsLessThanDepth) {
  for (const std::uint32_t stripes : {1U, 4U}) {
    const BroadcastSize size = {.size_bytes = stripes == 1 ? 1_MiB : 32_MiB,
                                .block_bytes = stripes == 1 ? 8192U : 65536U,
                                .members = 1023};
    const SenderRoom room{stripes, choose_depth(size, static_cast<std::uint16_t>(stripes))};
    EXPECT_LT(room.depth, 80U);
    std::map<std::uint64_t, std::uint32_t> edges;
    std::map<std::pair<std::uint64_t, std::uint32_t>, std::uint32_t> depths;
    for (std::uint64_t receiver = 2; receiver <= 1024; ++receiver) {
      for (std::uint32_t stripe = 0; stripe < stripes; ++stripe) {
        std::vector<SenderCandidate> candidates = {origin(edges[1])};
        for (std::uint64_t node = 2; node < receiver; ++node) {
          candidates.push_back(partial(node, edges[node], depths[{node, stripe}]));
          candidates.back().preferred = node % stripes == stripe;
        }
        const std::uint64_t sender = choose_sender(candidates, room)->value;
        ++edges[sender];
        depths[{receiver, stripe}] = depths[{sender, stripe}] + 1;
        EXPECT_LE((depths[{receiver, stripe}]), room.depth) << receiver;
      }
    }
    for (const auto& [node, count] : edges) {
      EXPECT_LE(count, stripes + (node == 1 ? 0 : 1)) << "node " << node;
    }
  }
}

// For every (receivers, stripes), the forest is complete, has no cycle, and fits every upload.
TEST(ForestPlan, FeedsEachReceiverEveryStripeAndNobodyUploadsMoreThanOneCopy) {
  for (std::uint32_t receivers = 1; receivers <= 64; ++receivers) {
    for (std::uint16_t stripes = 1; stripes <= 64; ++stripes) {
      const ForestPlan plan(receivers, stripes);
      std::vector<std::uint32_t> edges(receivers);
      std::uint32_t from_origin = 0;
      for (std::uint16_t stripe = 0; stripe < stripes; ++stripe) {
        std::uint32_t roots = 0;
        for (std::uint32_t node = 0; node < receivers; ++node) {
          std::uint32_t steps = 0;
          for (std::uint32_t at = node; at != ForestPlan::kOrigin; ++steps) {
            ASSERT_LT(at, receivers);
            ASSERT_LE(steps, receivers) << "a circle";
            at = plan.sender(at, StripeIndex{stripe});
          }
          const std::uint32_t sender = plan.sender(node, StripeIndex{stripe});
          if (sender == ForestPlan::kOrigin) {
            ++roots;
          } else {
            ++edges[sender];
          }
        }
        ASSERT_EQ(roots, 1U) << receivers << " receivers, stripe " << stripe << " of " << stripes;
        from_origin += roots;
      }
      ASSERT_EQ(from_origin, stripes);
      for (const std::uint32_t count : edges) {
        ASSERT_LE(count, stripes) << receivers << " receivers, " << stripes << " stripes";
      }
    }
  }
}

TEST(ForestPlan, IsAsShallowAsItsCapacityAllows) {
  for (const std::uint32_t receivers : {1U, 5U, 8U, 16U, 32U, 64U}) {
    for (std::uint16_t stripes = 2; stripes <= 8; ++stripes) {
      if (receivers % stripes > 1) continue;  // spare edges elsewhere may cost a level
      std::uint32_t levels = 0;
      for (std::uint32_t reached = 0, width = 1; reached < receivers; width *= stripes, ++levels) {
        reached += width;
      }
      const ForestPlan plan(receivers, stripes);
      for (std::uint16_t stripe = 0; stripe < stripes; ++stripe) {
        for (std::uint32_t node = 0; node < receivers; ++node) {
          std::uint32_t depth = 0;
          for (std::uint32_t at = node; at != ForestPlan::kOrigin; ++depth) {
            at = plan.sender(at, StripeIndex{stripe});
          }
          EXPECT_LE(depth, levels) << receivers << " receivers, " << stripes << " stripes";
        }
      }
    }
  }
}

TEST(ForestPlan, OfOneStripeIsALineAsHoplites) {
  const ForestPlan plan(5, 1);
  EXPECT_EQ(plan.sender(0, StripeIndex{0}), ForestPlan::kOrigin);
  for (std::uint32_t node = 1; node < 5; ++node) {
    EXPECT_EQ(plan.sender(node, StripeIndex{0}), node - 1);
  }
}

TEST(ChooseDepth, IsWhereAChainTakesAsLongAsAStripeAndNoneForAsFewAsTwice) {
  EXPECT_EQ(choose_depth({.size_bytes = 1_MiB, .block_bytes = 8192, .members = 255}, 1), 20U);
  EXPECT_EQ(choose_depth({.size_bytes = 32_MiB, .block_bytes = 65536, .members = 255}, 4), 76U);
  EXPECT_EQ(choose_depth({.size_bytes = 1_MiB, .block_bytes = 8192, .members = 41}, 1), 20U);
  EXPECT_EQ(choose_depth({.size_bytes = 1_MiB, .block_bytes = 8192, .members = 40}, 1), UINT32_MAX);
  EXPECT_EQ(choose_depth({.size_bytes = 64_KiB + 1, .block_bytes = 8192, .members = 9}, 4), 2U);
}

TEST(ChooseDepth, IsGreaterOnASlowLinkWhereAHopIsShortBesideABlock) {
  const BroadcastSize size{.size_bytes = 256_KiB, .block_bytes = 8192, .members = 100};
  const auto depth = [&](std::uint64_t mbit) {
    BroadcastSize on_link = size;
    on_link.link_bytes_per_s = mbit * 125'000;
    return choose_depth(on_link, 1);
  };
  EXPECT_EQ(depth(100'000), 2U);
  EXPECT_EQ(depth(10'000), 5U);
  EXPECT_EQ(depth(1'000), 20U);
  EXPECT_EQ(depth(100), 30U);
}

TEST(ChooseBlockBytes, BalancesHandlingAndTheFillingOfAChain) {
  struct Case {
    std::uint64_t size_bytes, mbit, block_bytes;
  };
  const Case cases[] = {
      {256_KiB, 500, 8_KiB},    {4_MiB, 500, 8_KiB},      {32_MiB, 500, 32_KiB},  // 1,024 blocks
      {256_KiB, 10'000, 8_KiB}, {1_MiB, 10'000, 16_KiB},  {4_MiB, 10'000, 32_KiB},
      {32_MiB, 10'000, 64_KiB}, {1_GiB, 10'000, 256_KiB}, {32_MiB, 1'000'000, 256_KiB},
      {1_GiB, 1, 256_KiB},
  };
  for (const Case& each : cases) {
    EngineConfig config;
    config.link_bytes_per_s = each.mbit * 125'000;
    EXPECT_EQ(choose_block_bytes(each.size_bytes, config), each.block_bytes)
        << each.size_bytes << " bytes at " << each.mbit << " Mbit/s";
  }
}

TEST(ChooseBlockBytes, StaysWithinTheOptions) {
  EngineConfig config;
  config.block_bytes_min = config.block_bytes_max = 4_KiB;
  EXPECT_EQ(choose_block_bytes(1_GiB, config), 4_KiB);
  config.block_bytes_min = 128_KiB;
  config.block_bytes_max = 1_MiB;
  EXPECT_EQ(choose_block_bytes(65'537, config), 128_KiB);
  EXPECT_EQ(choose_block_bytes(64_GiB, config), 1_MiB);
}

TEST(ChooseStripes, FollowsSizeAndReceivers) {
  struct Case {
    const char* name;
    BroadcastSize size;
    std::uint16_t stripes;
  };
  const Case cases[] = {
      {"nobody waits for a small one", {1_MiB, 8192, 0, 63}, 1},
      {"one receiver of a small one", {1_MiB, 8192, 1, 63}, 1},
      {"one receiver of a large one where others may ask", {64_MiB, 131072, 1, 16}, 4},
      {"two nodes", {1_GiB, 1U << 20, 1, 1}, 1},
      {"no more than receivers", {1_GiB, 1U << 20, 3, 3}, 3},
      {"large blocks: few, for a level costs k of them", {1_GiB, 1U << 20, 64, 64}, 4},
      {"medium blocks: more, for a level costs its latency", {32_MiB, 65536, 7, 7}, 6},
      {"where others may ask, so many that the first ones are enough", {32_MiB, 65536, 0, 7}, 4},
      {"small blocks: many, for a level costs its latency", {1_MiB, 8192, 64, 64}, 8},
      {"no more than blocks", {64_KiB + 1, 8192, 64, 64}, 8},
      {"no more than blocks, if these are few", {3 * 4096, 4096, 64, 64}, 3},
  };
  for (const Case& each : cases) EXPECT_EQ(choose_stripes(each.size), each.stripes) << each.name;
}

TEST(IsBeginning, IsAnEighthOfAStripeThatIsNotShort) {
  EXPECT_TRUE(is_beginning(0, 512));
  EXPECT_TRUE(is_beginning(63, 512));
  EXPECT_FALSE(is_beginning(64, 512));
  EXPECT_TRUE(is_beginning(7, 64));
  EXPECT_FALSE(is_beginning(0, 63)) << "nobody would say when it is over";
}

TEST(IsSlow, ComparesRatesWithTheMedianOfOthers) {
  EXPECT_FALSE(is_slow(0, median_of({})));
  EXPECT_TRUE(is_slow(59, median_of({100})));
  EXPECT_FALSE(is_slow(60, median_of({100})));
  EXPECT_FALSE(is_slow(30, median_of({10, 20, 1000}))) << "one fast one is no measure";
  EXPECT_TRUE(is_slow(30, median_of({100, 10, 100})));
}

}  // namespace
}  // namespace hoplite

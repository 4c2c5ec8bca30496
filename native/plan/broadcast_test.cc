// The policy by itself: of these candidates, whom? SPDX-License-Identifier: Apache-2.0
#include "plan/broadcast.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <ostream>
#include <string>
#include <vector>

namespace hoplite {
namespace {

struct Row {
  const char* name;
  std::vector<SenderCandidate> candidates;
  std::uint32_t capacity;
  std::uint64_t chosen;  // 0: nobody
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
    const auto chosen = choose_sender(candidates, GetParam().capacity);
    EXPECT_EQ(chosen.value_or(kNoNode).value, GetParam().chosen);
  } while (std::next_permutation(candidates.begin(), candidates.end(), by_node));
}

INSTANTIATE_TEST_SUITE_P(
    , ChooseSender,
    ::testing::Values(
        Row{"NobodyOfNobody", {}, 1, 0},  //
        Row{"TheOriginAlone", {origin(0)}, 1, 1},
        Row{"TheOriginAloneThoughFull", {origin(5)}, 1, 1},
        Row{"ACopyRatherThanTheOrigin", {origin(0), copy(2, 0)}, 1, 2},
        Row{"AFreeOriginRatherThanAPartialCopy", {origin(0), partial(2, 0, 1)}, 1, 1},
        Row{"APartialCopyWhenTheOriginHasSentOneCopy", {origin(1), partial(2, 0, 1)}, 1, 2},
        Row{"TheEndOfTheChain", {origin(1), partial(2, 1, 1), partial(3, 0, 2)}, 1, 3},
        Row{"TheShallowestOfPartialCopies", {partial(2, 0, 3), partial(3, 0, 1)}, 1, 3},
        Row{"APartialCopyOnOverflowAndTheOriginLast", {origin(1), partial(2, 1, 1)}, 1, 2},
        Row{"TheLeastLoadedOnOverflow", {origin(4), partial(2, 5, 1), partial(3, 4, 1)}, 4, 3},
        Row{"WhoDidNotFail", {with_failed(copy(2, 0)), partial(3, 9, 4)}, 1, 3},
        Row{"WhoFailedIfThereIsNoOther", {with_failed(copy(2, 0))}, 1, 2},
        Row{"TheInteriorOfThisStripe", {partial(2, 1, 1), with_preferred(partial(3, 2, 2))}, 4, 3},
        Row{"TheLeastBusyOfEquals", {copy(2, 2), copy(3, 1)}, 4, 3}),
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
        const auto chosen = choose_sender(candidates, stripes);
        ASSERT_TRUE(chosen.has_value());
        ++edges[chosen->value];
      }
    }
    EXPECT_LE(edges[1], stripes) << stripes << " stripes";
    for (const auto& [node, count] : edges) EXPECT_LE(count, stripes) << "node " << node;
  }
}

}  // namespace
}  // namespace hoplite

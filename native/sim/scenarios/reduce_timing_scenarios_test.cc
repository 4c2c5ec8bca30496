// SPDX-License-Identifier: Apache-2.0
// How long reduces and allreduces take in virtual time, from the confirmation of the last source to
// the last get, against a model of the algorithm (10 Gbit/s, 30 us; no messages): at most 1.05
// times the better of its static and dynamic plans, except where a row has another `room`. A figure
// is the median of three targets with different homes, because each byte of a message changes the
// order of blocks.
//
#include <algorithm>
#include <array>

#include "sim/scenarios/scenario.h"

namespace hoplite::sim {
namespace {

struct Case {
  std::uint64_t size_bytes = 1_MiB;
  std::size_t nodes = 8;
  std::uint32_t each = 1;        // sources on each node
  std::uint64_t stands_for = 1;  // bytes that each stored byte stands for
  bool everywhere = false;       // an allreduce: every node gets the result
  double table = 0;              // the model's time, in size / rate
  double late = 0;               // delay of the last source, in size / rate
  bool first_alone = false;      // one source leads the others by 1 ms: all nodes own a stripe
  double hops_before = 0;        // hops of the first byte, which the table leaves out
  double room = 1.05;            // times the table
  std::uint16_t degree = 0;      // of its tree; 0: as the model says
  Duration frame_time{0};        // a core's time for each frame
  bool awaited = false;          // True if the directory awaits the sources, which come one by one
};

class ReduceTiming : public Scenario {
 protected:
  static ObjectId source(std::size_t index) { return object_named(100 + index); }

  // Starts a cluster of the case's nodes, with arenas for objects of its size.
  Cluster& start_for(const Case& is) {
    TearDown();  // ends the previous cluster
    return start(is.nodes, [&](ClusterConfig& c) {
      c.engine = EngineConfig{};
      c.engine.arena_bytes = (7 + is.each) * is.size_bytes + (is.nodes > 16 ? 9_MiB : 4_MiB);
      c.engine.reduce_degree = is.degree;
      if (is.frame_time.ns == 0) {  // small blocks are always best then: those of slow links
        c.engine.block_bytes_min = c.engine.block_bytes_max = static_cast<std::uint32_t>(
            std::clamp(is.size_bytes / kBlocksPerObjectAim, kBlockBytesMin, kBlockBytesAimMax));
      }
      c.network.stands_for = is.stands_for;
      c.network.frame_time = is.frame_time;
      c.check_every = 1000;
    });
  }
  // Returns the reduce's time, in units of the time that one copy takes on a link.
  double run(const Case& is, const ObjectId& target) {
    Cluster& cluster = start_for(is);
    const double one_copy = static_cast<double>(is.size_bytes) * 1e9 /
                            static_cast<double>(NetworkConfig{}.rate_bytes_per_s);
    const auto count = static_cast<std::uint32_t>(is.nodes) * is.each;
    for (std::uint32_t i = 0; i < count; ++i) {
      put_now(i % is.nodes, source(i), {.size_bytes = is.size_bytes, .dtype = DType::kFloat32});
    }
    Request& reduce = cluster.reduce(
        0, target, {.source_count = count, .count = count, .everywhere = is.everywhere});
    std::vector<Request*> gets;
    for (std::size_t node = 0; node < (is.everywhere ? is.nodes : 1); ++node) {
      gets.push_back(&cluster.get(node, target));
    }
    for (std::uint32_t i = 0; i + 1 < count; ++i) {
      is.awaited ? cluster.announce(reduce, i, source(i)) : cluster.confirm(reduce, i, source(i));
      if (i == 0 && is.first_alone) cluster.run_for(1_ms);
    }
    if (is.late > 0) cluster.run_for(Duration{static_cast<std::int64_t>(is.late * one_copy)});
    const Instant arrived = cluster.now();
    is.awaited ? cluster.announce(reduce, count - 1, source(count - 1))
               : cluster.confirm(reduce, count - 1, source(count - 1));
    double longest = 0;
    for (Request* get : gets) {
      expect_value(*get);
      longest = std::max(longest, static_cast<double>((*get->answered - arrived).ns));
    }
    return longest / one_copy;
  }
  void expect_at_most(const Case& is) {
    std::array<double, 3> took{};
    for (std::size_t i = 0; i < took.size(); ++i) took[i] = run(is, object_named(1 + i));
    std::sort(took.begin(), took.end());
    const double copy_s =
        static_cast<double>(is.size_bytes) / static_cast<double>(NetworkConfig{}.rate_bytes_per_s);
    const double hop_s = static_cast<double>(NetworkConfig{}.latency.ns) * 1e-9;
    const double at_most = is.room * is.table + is.hops_before * hop_s / copy_s;
    std::printf(
        "%s of %llu KiB over %zu nodes, %u on each%s: %.3f (%.3f to %.3f) x size / rate, "
        "at most %.3f\n",
        is.everywhere ? "allreduce" : "reduce",
        static_cast<unsigned long long>(is.size_bytes / 1_KiB), is.nodes, is.each,
        is.first_alone ? ", one late owner"
        : is.late > 0  ? ", one late"
                       : "",
        took[1], took[0], took[2], at_most);
    EXPECT_LE(took[1], at_most);
  }
};
INSTANTIATE_TEST_SUITE_P(Stripes, ReduceTiming, testing::Values(std::uint16_t{1}), stripe_name);

TEST_P(ReduceTiming, ReduceOf1MiB) {
  expect_at_most({.size_bytes = 1_MiB, .nodes = 8, .table = 1.48});
  expect_at_most({.size_bytes = 1_MiB, .nodes = 16, .table = 1.69});
}
// The home does not ask again for a source that the caller has located. So the two messages ahead
// of Want take as long as the two that follow it for a confirmed source.
TEST_P(ReduceTiming, SourcesThatAreAwaitedTakeNoLongerThanThoseThatAreConfirmed) {
  expect_at_most({.size_bytes = 1_MiB, .nodes = 8, .table = 1.48, .room = 0.98, .awaited = true});
  expect_at_most({.size_bytes = 1_MiB, .nodes = 16, .table = 1.69, .room = 0.92, .awaited = true});
  expect_at_most({.size_bytes = 1_MiB,
                  .nodes = 8,
                  .everywhere = true,
                  .table = 1.90,
                  .hops_before = 5,
                  .awaited = true});
}
// A round of a parameter server. It reads the sum of the first gradients, which their nodes fold.
// The other nodes' links are free for the parameters that they get meanwhile. (The parameters have
// four stripes, and one of three receivers gets two over its one connection: 4/3.)
TEST_P(ReduceTiming, AReduceOfSomeLeavesTheOtherNodesAlone) {
  const Case is{.size_bytes = 32_MiB, .nodes = 8, .stands_for = 32};
  Cluster& cluster = start_for(is);
  const ObjectId target = object_named(1), params = object_named(2);
  put_now(0, params, {.size_bytes = is.size_bytes, .dtype = DType::kFloat32});
  for (std::uint32_t i = 1; i <= 3; ++i) {
    put_now(i, source(i), {.size_bytes = is.size_bytes, .dtype = DType::kFloat32});
  }
  const Instant began = cluster.now();
  Request& reduce = cluster.reduce(0, target, {.source_count = 7, .count = 3});
  std::vector<Request*> gets = {&cluster.get(0, target)};
  for (std::uint32_t i = 1; i <= 3; ++i) cluster.confirm(reduce, i, source(i));
  for (const std::size_t node : {4, 5, 6}) gets.push_back(&cluster.get(node, params));
  const double one_copy = static_cast<double>(is.size_bytes) * 1e9 /
                          static_cast<double>(NetworkConfig{}.rate_bytes_per_s);
  for (Request* get : gets) {
    expect_value(*get);
    const double took = static_cast<double>((*get->answered - began).ns) / one_copy;
    std::printf("a round: %.3f x size / rate\n", took);
    EXPECT_LE(took, get == gets.front() ? 1.15 : 1.33);
  }
}
TEST_P(ReduceTiming, ReduceOf32MiB) {
  expect_at_most({.size_bytes = 32_MiB, .nodes = 16, .stands_for = 32, .table = 1.12});
}
// At 10 Gbit/s blocks are larger than 1/1024, because each frame takes 5 us of a core (decision
// 4f).
TEST_P(ReduceTiming, BlocksThatTakeTimeAreLargerOnAFastLink) {
  struct Row {
    Case is;
    double at_most;
  };
  for (const Row& row :
       {Row{{.size_bytes = 4_MiB, .nodes = 8, .frame_time = 5_us}, 1.6},
        Row{{.size_bytes = 4_MiB, .nodes = 8, .everywhere = true, .frame_time = 5_us}, 2.65},
        Row{{.size_bytes = 32_MiB, .nodes = 8, .stands_for = 32, .frame_time = 5_us}, 1.25},
        Row{{.size_bytes = 32_MiB,
             .nodes = 8,
             .stands_for = 32,
             .everywhere = true,
             .frame_time = 5_us},
            2.1}}) {
    const double took = run(row.is, object_named(1));
    std::printf("%s of %llu KiB: %.3f x size / rate\n", row.is.everywhere ? "allreduce" : "reduce",
                static_cast<unsigned long long>(row.is.size_bytes / 1_KiB), took);
    EXPECT_LE(took, row.at_most);
  }
}
// One of the three: it takes as long as all others here.
TEST_P(ReduceTiming, ReduceOf32MiBOverManyNodes) {
  const double took = run({.size_bytes = 32_MiB, .nodes = 64, .stands_for = 32}, object_named(1));
  std::printf("reduce of 32 MiB over 64 nodes: %.3f x size / rate\n", took);
  EXPECT_LE(took, 1.05 * 1.21);
}
TEST_P(ReduceTiming, ReduceOf1GiB_Slow) {
  expect_at_most({.size_bytes = 1_GiB, .nodes = 16, .stands_for = 512, .table = 1.02});
}
// Each node combines its own sources, so the reduce takes no longer than with one source on each
// node. (Without combining, which a fixed order rules out, the model takes 2.04, 4.07 and 2.66.)
TEST_P(ReduceTiming, SeveralSourcesOnEachNode) {
  expect_at_most({.size_bytes = 32_MiB, .nodes = 8, .each = 2, .stands_for = 32, .table = 1.06});
  expect_at_most({.size_bytes = 32_MiB, .nodes = 8, .each = 4, .stands_for = 32, .table = 1.06});
  expect_at_most({.size_bytes = 32_MiB,
                  .nodes = 8,
                  .each = 2,
                  .stands_for = 32,
                  .everywhere = true,
                  .table = 1.755});
}
// The messages are Locate, and Located with the source's bytes; in an allreduce Claim and Push
// follow.
TEST_P(ReduceTiming, ATinyReduceTakesTwoMessagesOneAfterTheOtherAndAnAllreduceFour) {
  const double copies_per_hop = 30e-6 / (1024 / 1.25e9);
  EXPECT_LE(run({.size_bytes = 1_KiB, .nodes = 8}, object_named(1)), 2.8 * copies_per_hop);
  EXPECT_LE(run({.size_bytes = 1_KiB, .nodes = 8, .everywhere = true}, object_named(1)),
            5.0 * copies_per_hop);
}
// The table, which has no messages, says 4.4 and 5.9; Locate, Located, ReduceOwn and PullStart go
// one after the other before the first block of a tree, and take 2.3. Sources that come one by one
// make a tree of one half of them, one of a quarter and so on.
TEST_P(ReduceTiming, ReduceOf64KiB) {
  expect_at_most({.size_bytes = 64_KiB, .nodes = 16, .table = 4.4, .room = 1.98});
  expect_at_most({.size_bytes = 64_KiB, .nodes = 64, .table = 5.9, .room = 1.68});
  expect_at_most({.size_bytes = 64_KiB, .nodes = 64, .table = 5.9, .room = 3.3, .awaited = true});
}
// Want, Locate, Located, ReduceOwn and PullStart go one after the other before the first block, and
// take a fifth of the time of a copy.
TEST_P(ReduceTiming, AllreduceOf1MiB) {
  expect_at_most(
      {.size_bytes = 1_MiB, .nodes = 8, .everywhere = true, .table = 1.90, .hops_before = 5});
  expect_at_most(
      {.size_bytes = 1_MiB, .nodes = 16, .everywhere = true, .table = 2.12, .hops_before = 5});
}
// One of the three: it takes as long as all others here.
TEST_P(ReduceTiming, AllreduceOf1MiBOverManyNodes) {
  std::array<double, 3> homes{};
  for (std::uint32_t i = 0; i < homes.size(); ++i) {
    homes[i] = run({.size_bytes = 1_MiB, .nodes = 64, .stands_for = 8, .everywhere = true},
                   object_named(i + 1));
  }
  std::sort(homes.begin(), homes.end());
  const double took = homes[1];
  std::printf("allreduce of 1024 KiB over 64 nodes: %.3f x size / rate\n", took);
  const double copies_per_hop = 30e-6 / (1_MiB / 1.25e9);
  EXPECT_LE(took, 1.06 * 2.77 + 5 * copies_per_hop);
}
// The table is that of a striped allreduce. Here the caller's node takes all sources, or their
// branches' results, and the home passes the whole sum on. The limits hold what is reached.
TEST_P(ReduceTiming, AllreduceOf64KiB) {
  expect_at_most({.size_bytes = 64_KiB, .nodes = 8, .everywhere = true, .table = 4.2, .room = 4.3});
  expect_at_most(
      {.size_bytes = 64_KiB, .nodes = 16, .everywhere = true, .table = 5.8, .room = 3.3});
  expect_at_most(
      {.size_bytes = 64_KiB, .nodes = 64, .everywhere = true, .table = 14.7, .room = 1.78});
}
TEST_P(ReduceTiming, AllreduceOf32MiB) {
  expect_at_most(
      {.size_bytes = 32_MiB, .nodes = 8, .stands_for = 32, .everywhere = true, .table = 1.755});
  expect_at_most(
      {.size_bytes = 32_MiB, .nodes = 16, .stands_for = 32, .everywhere = true, .table = 1.886});
}
TEST_P(ReduceTiming, AllreduceOf1GiB_Slow) {
  expect_at_most(
      {.size_bytes = 1_GiB, .nodes = 8, .stands_for = 512, .everywhere = true, .table = 1.760});
  expect_at_most(
      {.size_bytes = 1_GiB, .nodes = 16, .stands_for = 512, .everywhere = true, .table = 1.886});
}
// The late source's blocks, and the credits for them, queue at every port behind results.
Case one_late(std::uint64_t size_bytes, std::size_t nodes, double room = 1.05) {
  return {.size_bytes = size_bytes,
          .nodes = nodes,
          .stands_for = size_bytes == 1_GiB ? 512U : 32U,
          .everywhere = true,
          .table = 1.02,
          .late = 1,
          .room = room};
}
TEST_P(ReduceTiming, AllreduceWithOneParticipantLate) {
  expect_at_most(one_late(32_MiB, 8));
  expect_at_most(one_late(32_MiB, 16));
}
TEST_P(ReduceTiming, AllreduceOf1GiBWithOneParticipantLate_Slow) {
  expect_at_most(one_late(1_GiB, 16, 1.09));
}
// The late node gives its stripe up when a sixteenth of the other nodes' is folded, and the stripe
// is folded anew. With 16 nodes some of that work is left when the late source comes.
TEST_P(ReduceTiming, AllreduceWithOneParticipantLateThatOwnedAStripe) {
  for (Case is : {one_late(32_MiB, 8), one_late(32_MiB, 16, 1.19)}) {
    is.first_alone = true;
    expect_at_most(is);
  }
}
TEST_P(ReduceTiming, AllreduceOf1GiBWithOneParticipantLateThatOwnedAStripe_Slow) {
  Case is = one_late(1_GiB, 16, 1.12);
  is.first_alone = true;
  expect_at_most(is);
}

// Many nodes: the tree is as deep as the model says (design decision 5). Degree 4096 means one
// level, which takes 46 for 64 KiB over 64 nodes. Sources of 1 KiB come in the answers to Locate.
// Objects of 1 MiB are striped. In the fifth row a frame takes 5 us of a core at both ends.
TEST_P(ReduceTiming, ManyNodesAreAsDeepAsTheModelSays) {
  struct Row {
    Case is;
    std::uint64_t degree = 0;  // 0: one level
    double at_most = 0;
  };
  for (const Row& row : {Row{{.size_bytes = 1_KiB, .nodes = 64}, 0, 160},
                         Row{{.size_bytes = 8_KiB, .nodes = 64}, 6, 42},
                         Row{{.size_bytes = 64_KiB, .nodes = 16}, 2, 8.8},
                         Row{{.size_bytes = 64_KiB, .nodes = 64}, 2, 10},
                         Row{{.size_bytes = 64_KiB, .nodes = 64, .frame_time = 5_us}, 2, 20},
                         Row{{.size_bytes = 1_MiB, .nodes = 64, .stands_for = 8}, 0, 2.2}}) {
    const double took = run(row.is, object_named(1));
    std::uint64_t degree = 0;
    for (std::size_t node = 0; node < row.is.nodes; ++node) {
      degree = std::max(degree, cluster_->stats(node).reduce_degree);
    }
    std::printf("reduce of %llu KiB over %zu nodes: %.2f x size / rate, degree %llu\n",
                static_cast<unsigned long long>(row.is.size_bytes / 1_KiB), row.is.nodes, took,
                static_cast<unsigned long long>(degree));
    EXPECT_EQ(degree, row.degree);
    EXPECT_LE(took, row.at_most);
  }
  const double flat = run({.size_bytes = 64_KiB, .nodes = 64, .degree = 4096}, object_named(1));
  std::printf("reduce of 64 KiB over 64 nodes: %.2f x size / rate, one level\n", flat);
  // One link takes nearly all sources. Sources with the same home may come as one, because the home
  // has copies of them.
  EXPECT_GE(flat, 40);
}

}  // namespace
}  // namespace hoplite::sim

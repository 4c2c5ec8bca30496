// SPDX-License-Identifier: Apache-2.0
// Version channels in a cluster whose nodes die, restart and are cut off, at every moment of a
// publication. The checker judges each answer.
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "plan/links/membership.h"
#include "sim/cluster/cluster.h"
#include "sim/model/content.h"
#include "sim/runs/random_run.h"

namespace hoplite::sim {
namespace {

constexpr std::size_t kNodes = 5;
constexpr Duration kCalm = 5_s;  // views, graces and redials, several times over

class ChannelScenario : public testing::Test {
 protected:
  static ClusterConfig config(std::uint64_t seed = 1) {
    ClusterConfig config = ClusterConfig::small(1);
    config.nodes = kNodes;
    config.seed = seed;
    config.view_delay_max = 5_ms;
    return config;
  }
  // Index of the home among all nodes.
  static std::size_t home_of(const ObjectId& channel) {
    std::size_t home = 0;
    for (std::size_t node = 1; node < kNodes; ++node) {
      if (weight_of(channel, NodeId{node + 1}) > weight_of(channel, NodeId{home + 1})) home = node;
    }
    return home;
  }
  // A node that is not among these.
  static std::size_t other_than(std::vector<std::size_t> nodes) {
    for (std::size_t node = 0; node < kNodes; ++node) {
      if (std::ranges::find(nodes, node) == nodes.end()) return node;
    }
    return 0;
  }
  static Term take(Cluster& cluster, std::size_t node) {
    Request& request = cluster.ask_channel(Verb::kTakeTerm, node, kChannel);
    EXPECT_TRUE(cluster.run_until_answered(request));
    return request.taken.term;
  }
  static ChannelOptions version(const Term& term, std::uint64_t n) {
    return {.version = {{term, n}, false, "value " + std::to_string(n)}};
  }
  static void expect_clean(Cluster& cluster, const std::string& what) {
    cluster.finish();
    for (const std::string& failure : cluster.checker().failures()) {
      ADD_FAILURE() << what << ": " << failure;
    }
  }
  static const ObjectId kChannel;
};
const ObjectId ChannelScenario::kChannel = object_named(77);

// Two versions are published one after the other while readers of all nodes watch; one node dies
// after each number of microseconds.
void publish_while_one_dies(std::size_t dying, std::size_t publisher, Duration after,
                            const ClusterConfig& config, const ObjectId& channel) {
  const std::string what =
      "node " + std::to_string(dying) + " dies after " + std::to_string(after.ns / 1000) + " us";
  Cluster cluster(config);
  cluster.run_for(100_ms);
  Request& take = cluster.ask_channel(Verb::kTakeTerm, publisher, channel);
  ASSERT_TRUE(cluster.run_until_answered(take));
  std::vector<Request*> watches;
  for (std::size_t node = 0; node < kNodes; ++node) {
    watches.push_back(&cluster.ask_channel(Verb::kWatch, node, channel));
  }
  std::vector<Request*> published;
  for (std::uint64_t n = 1; n <= 2; ++n) {
    const Version version{{take.taken.term, n}, false, "value " + std::to_string(n)};
    published.push_back(
        &cluster.ask_channel(Verb::kPublish, publisher, channel, {.version = version}));
  }
  cluster.run_for(after);
  cluster.crash(dying);
  cluster.run_for(kCalm);
  for (Request* each : published) {
    if (publisher != dying) {
      EXPECT_TRUE(each->has_value()) << what;
    }
  }
  // A version that the dead publisher did not finish comes to no reader, or to all.
  const std::size_t asker = publisher == dying ? (publisher + 1) % kNodes : publisher;
  Request& latest = cluster.ask_channel(Verb::kWatch, asker, channel, {.wait = false});
  ASSERT_TRUE(cluster.run_until_answered(latest)) << what;
  for (Request* watch : watches) {
    if (watch->abandoned) continue;
    EXPECT_EQ(watch->answered.has_value(), latest.version.exists()) << what;
  }
  if (publisher != dying) {
    EXPECT_EQ(latest.version.number.n, 2U) << what;
  }
  cluster.finish();
  for (const std::string& failure : cluster.checker().failures()) {
    ADD_FAILURE() << what << ": " << failure;
  }
}

TEST_F(ChannelScenario, AVersionIsPublishedThoughTheHomeAPublisherOrAReaderDiesAtAnyTime) {
  const std::size_t home = home_of(kChannel);
  const std::size_t publisher = other_than({home});
  const std::size_t reader = other_than({home, publisher});
  for (const std::size_t dying : {home, publisher, reader}) {
    for (std::int64_t us = 0; us <= 1200; us += 25) {
      publish_while_one_dies(dying, publisher, Duration{us * 1000}, config(), kChannel);
    }
  }
}

TEST_F(ChannelScenario, AReaderThatComesBackHasTheNewestVersion) {
  Cluster cluster(config());
  cluster.run_for(100_ms);
  const std::size_t home = home_of(kChannel);
  const std::size_t publisher = other_than({home});
  const std::size_t reader = other_than({home, publisher});
  const Term term = take(cluster, publisher);
  cluster.crash(reader);
  for (std::uint64_t n = 1; n <= 5; ++n) {
    Request& each = cluster.ask_channel(Verb::kPublish, publisher, kChannel, version(term, n));
    EXPECT_TRUE(cluster.run_until_answered(each));
  }
  cluster.restart(reader);
  Request& watch = cluster.ask_channel(Verb::kWatch, reader, kChannel);
  EXPECT_TRUE(cluster.run_until_answered(watch));
  EXPECT_EQ(watch.version.number, (VersionNumber{term, 5}));
  expect_clean(cluster, "restart");
}

TEST_F(ChannelScenario, OfTwoPublishersOnlyTheOneWithTheNewerTermGoesOn) {
  Cluster cluster(config());
  cluster.run_for(100_ms);
  const std::size_t home = home_of(kChannel);
  const std::size_t a = other_than({home});
  const std::size_t b = other_than({home, a});
  const Term older = take(cluster, a);
  Request& first = cluster.ask_channel(Verb::kPublish, a, kChannel, version(older, 1));
  EXPECT_TRUE(cluster.run_until_answered(first));
  const Term newer = take(cluster, b);
  cluster.crash(home);
  Request& late = cluster.ask_channel(Verb::kPublish, a, kChannel, version(older, 2));
  Request& next = cluster.ask_channel(Verb::kPublish, b, kChannel, version(newer, 1));
  EXPECT_TRUE(cluster.run_until_answered(late));
  EXPECT_TRUE(cluster.run_until_answered(next));
  EXPECT_EQ(late.code(), Code::kVersionRefused) << "the next home knows the newer term";
  EXPECT_TRUE(late.is_taken);
  EXPECT_TRUE(next.has_value());
  expect_clean(cluster, "two publishers");
}

// The home is cut off from its elder, as by a partition, and dies only when the view drops it.
TEST_F(ChannelScenario, AHomeThatIsCutOffDecidesNothingThatTheOthersDoNotKnow) {
  const std::size_t home = home_of(kChannel);
  for (std::size_t other = 0; other < kNodes; ++other) {
    if (other == home) continue;
    for (std::int64_t us = 0; us <= 600; us += 50) {
      ClusterConfig cut = config();
      cut.doubts_deaths = true;
      Cluster cluster(cut);
      cluster.run_for(100_ms);
      const std::size_t publisher = other_than({home, other});
      const Term term = take(cluster, publisher);
      cluster.ask_channel(Verb::kWatch, other, kChannel);
      Request& each = cluster.ask_channel(Verb::kPublish, publisher, kChannel, version(term, 1));
      cluster.run_for(Duration{us * 1000});
      cluster.separate(other, home, 300_ms);
      EXPECT_TRUE(cluster.run_until_answered(each));
      cluster.run_for(kCalm);
      Request& latest = cluster.ask_channel(Verb::kWatch, other, kChannel, {.wait = false});
      EXPECT_TRUE(cluster.run_until_answered(latest));
      EXPECT_EQ(latest.version.number, (VersionNumber{term, 1}));
      expect_clean(cluster, "cut off after " + std::to_string(us) + " us");
    }
  }
}

TEST_F(ChannelScenario, NoReaderStarvesWhileLinksBreak) {
  Cluster cluster(config());
  cluster.run_for(100_ms);
  const std::size_t home = home_of(kChannel);
  const std::size_t publisher = other_than({home});
  const std::size_t reader = other_than({home, publisher});
  const Term term = take(cluster, publisher);
  VersionNumber seen;
  for (std::uint64_t n = 1; n <= 20; ++n) {
    Request& each = cluster.ask_channel(Verb::kPublish, publisher, kChannel, version(term, n));
    Request& watch = cluster.ask_channel(Verb::kWatch, reader, kChannel, {.newer_than = seen});
    cluster.run_for(Duration{static_cast<std::int64_t>(n) * 20'000});
    cluster.reset_link(n % 2 == 0 ? reader : publisher, home);
    EXPECT_TRUE(cluster.run_until_answered(each));
    EXPECT_TRUE(cluster.run_until_answered(watch));
    seen = watch.version.number;
    EXPECT_EQ(seen.n, n);
  }
  expect_clean(cluster, "links break");
}

TEST_F(ChannelScenario, RandomRunsPublishAndEveryPromiseHolds) {
  std::uint64_t published = 0;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    const RunResult result =
        random_run({.seed = seed, .liar = Choice::kNever, .channels = Choice::kAlways});
    published += result.published;
    for (const std::string& failure : result.failures) {
      ADD_FAILURE() << "seed " << seed << " (" << result.summary << "): " << failure;
    }
  }
  EXPECT_GT(published, 300U);
}

}  // namespace
}  // namespace hoplite::sim

// Orphans and adoptions inside one engine, where a peer may say what it likes.
// SPDX-License-Identifier: Apache-2.0
#include "plan/engine_test.h"

namespace hoplite {
namespace {

class Keeping : public ::testing::Test {
 protected:
  Keeping() : id_(Nodes(2).object_at(0)), engine_(config(), 7) {
    const std::vector<Member> two{{NodeId{1}, Incarnation{1}, {}}, {NodeId{2}, Incarnation{1}, {}}};
    engine_.handle_command({ClientId{1}, RequestId{1}, SetViewCommand{Epoch{1}, two}}, now_);
    engine_.handle_io(LinkUp{NodeId{2}, Incarnation{1}}, now_);
    hear(ResyncDone{});
  }
  static EngineConfig config() {
    EngineConfig config;
    config.node = NodeId{1};
    config.arena_bytes = 1_MiB;
    return config;
  }
  static ObjectMeta meta() {
    ObjectMeta meta = floats_meta(100'000);
    meta.block_bytes = 8192;
    return meta;
  }
  void hear(PeerMessage body) {
    engine_.handle_io(MessageIn{NodeId{2}, Message{Epoch{1}, {}, {}, std::move(body)}, {}}, now_);
    engine_.check_invariants();
  }
  // Messages of type T that went out since the last call.
  template <typename T>
  std::vector<T> said() {
    std::vector<T> found;
    while (const auto action = engine_.poll_action()) {
      const auto* sent = std::get_if<SendMessage>(&*action);
      if (sent != nullptr && std::holds_alternative<T>(sent->message.body)) {
        found.push_back(std::get<T>(sent->message.body));
      }
    }
    return found;
  }

  const ObjectId id_;  // its home is this node
  const Instant now_{1'000'000};
  Engine engine_;
};

// The turn must end: our own home knows of another attempt than the one that a peer tells us to
// keep, and each of our claims is answered by a grant of that other one.
TEST_F(Keeping, TakesTheAttemptThatTheHomeHasWhenAPeerSpeaksOfALaterOne) {
  Claim whole;
  whole.object = id_;
  whole.incarnation = Incarnation{1};
  whole.meta = meta();
  whole.pinned = true;
  whole.stripes = {{StripeIndex{0}, StripeState::kComplete, {}, {}, 0}};
  hear(whole);
  hear(Adopt{id_, Incarnation{0xff000001}, TargetEpoch{0}, meta()});
  const auto starts = said<PullStart>();
  ASSERT_EQ(starts.size(), 1U);
  EXPECT_EQ(starts[0].incarnation, Incarnation{1});
}

TEST_F(Keeping, AsksAnotherNodeToKeepWhatOnlyADrainingOneHas) {
  engine_.handle_command(
      {ClientId{1}, RequestId{2}, PutCommand{id_, Incarnation{1}, floats_meta(100'000), {}}}, now_);
  engine_.handle_command({ClientId{1}, RequestId{3}, WroteCommand{id_, Incarnation{1}, 100'000}},
                         now_);
  EXPECT_TRUE(said<Adopt>().empty());
  engine_.handle_command({ClientId{0}, RequestId{0}, DrainCommand{}}, now_);
  EXPECT_EQ(engine_.stats().sole_copies, 1U);
  EXPECT_EQ(said<Adopt>().size(), 1U);
  Claim declines;
  declines.object = id_;
  hear(declines);
  EXPECT_TRUE(said<Adopt>().empty()) << "it has said no, and there is nobody else";
  engine_.handle_timeout(now_ + 1_s);
  EXPECT_EQ(said<Adopt>().size(), 1U) << "it may have room by now";
}

}  // namespace
}  // namespace hoplite

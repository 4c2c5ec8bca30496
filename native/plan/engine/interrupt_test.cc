// SPDX-License-Identifier: Apache-2.0
// Operations interrupted in every state they pass through: after each number of delivered events a
// request is cancelled, its client dies, its object is deleted, a link breaks or a node dies. At
// every moment each request gets one answer, and no byte of the arena is left behind.
#include "plan/engine/engine_test.h"

namespace hoplite {
namespace {

constexpr int kMomentsMax = 200;  // more than any of these operations takes
const Bytes kSmall = floats(1.5F, 100);
const Bytes kLarge = floats(2.5F);

struct Case {
  const char* name;
  Bytes content;
  std::size_t home;
};
std::ostream& operator<<(std::ostream& out, const Case& one) { return out << one.name; }

class Interrupted : public ::testing::TestWithParam<Case> {
 protected:
  // A put on node 0 and gets on the nodes 1 and 2, interrupted after `moment` events.
  struct Scene {
    explicit Scene(const Case& one) : nodes(3), id(nodes.object_at(one.home)) {}
    Nodes nodes;
    ObjectId id;
    RequestId put, near, far;
  };
  void at_every_moment(const std::function<void(Scene&)>& interrupt) {
    bool under_way = true;
    for (int moment = 0; under_way && moment < kMomentsMax; ++moment) {
      SCOPED_TRACE("after " + std::to_string(moment) + " events");
      Scene scene(GetParam());
      scene.near = scene.nodes.get(1, scene.id);
      scene.put = scene.nodes.put(0, scene.id, GetParam().content);
      scene.far = scene.nodes.get(2, scene.id);
      for (int i = 0; i < moment; ++i) under_way = scene.nodes.step();
      interrupt(scene);
      if (HasFatalFailure() || HasNonfatalFailure()) return;
    }
  }
  void expect_fetched(Scene& scene, RequestId get) {
    EXPECT_EQ(scene.nodes.fetched(get), GetParam().content);
    EXPECT_EQ(scene.nodes.replies(get).size(), 1U);
  }
  // Deletes and releases everything that is still held. Nothing may be left then.
  void expect_nothing_left(Scene& scene, std::size_t node_count) {
    scene.nodes.erase(node_count - 1, scene.id);
    scene.nodes.elapse(3_s);
    for (std::size_t node = 3 - node_count; node < 3; ++node) {
      scene.nodes.lose_client(node);
      EXPECT_EQ(scene.nodes.stats(node).arena_bytes_used, 0U) << "node " << node;
      EXPECT_EQ(scene.nodes.stats(node).objects, 0U) << "node " << node;
      EXPECT_EQ(scene.nodes.stats(node).waiters, 0U) << "node " << node;
    }
  }
};

TEST_P(Interrupted, GetsAreCancelledAndTheOtherOneGoesOn) {
  at_every_moment([&](Scene& scene) {
    const bool answered = !scene.nodes.replies(scene.near).empty();
    scene.nodes.cancel(1, scene.near);
    scene.nodes.elapse(1_s);
    expect_fetched(scene, scene.far);
    EXPECT_EQ(scene.nodes.replies(scene.near).size(), 1U);
    EXPECT_EQ(scene.nodes.code(scene.near), answered ? Code::kOk : Code::kCancelled);
    expect_nothing_left(scene, 3);
  });
}

TEST_P(Interrupted, GetsAreAskedAgainAfterTheirCancellation) {
  at_every_moment([&](Scene& scene) {
    scene.nodes.cancel(1, scene.near);
    const RequestId again = scene.nodes.get(1, scene.id);
    scene.nodes.elapse(1_s);
    expect_fetched(scene, scene.far);
    expect_fetched(scene, again);
    expect_nothing_left(scene, 3);
  });
}

TEST_P(Interrupted, ReceivingClientsDie) {
  at_every_moment([&](Scene& scene) {
    scene.nodes.lose_client(2);
    scene.nodes.elapse(1_s);
    expect_fetched(scene, scene.near);
    expect_nothing_left(scene, 3);
  });
}

TEST_P(Interrupted, ACancelledPutCanBePutAgain) {
  at_every_moment([&](Scene& scene) {
    const bool sealed = scene.nodes.is_sealed(scene.put);
    scene.nodes.cancel(0, scene.put);
    const RequestId again = scene.nodes.put(0, scene.id, GetParam().content);
    scene.nodes.elapse(1_s);
    EXPECT_EQ(scene.nodes.is_sealed(again), !sealed);
    expect_fetched(scene, scene.nodes.get(0, scene.id));
    for (const RequestId get : {scene.near, scene.far}) {
      EXPECT_EQ(scene.nodes.replies(get).size(), 1U);
      if (scene.nodes.is<Fetched>(get)) expect_fetched(scene, get);
    }
    expect_nothing_left(scene, 3);
  });
}

TEST_P(Interrupted, TheObjectIsDeleted) {
  at_every_moment([&](Scene& scene) {
    scene.nodes.erase(2, scene.id);
    scene.nodes.elapse(1_s);
    for (const RequestId get : {scene.near, scene.far}) {
      ASSERT_EQ(scene.nodes.replies(get).size(), 1U);
      if (scene.nodes.is<Fetched>(get)) {
        expect_fetched(scene, get);
      } else {
        EXPECT_EQ(scene.nodes.code(get), Code::kObjectLost);
      }
    }
    expect_nothing_left(scene, 3);
  });
}

TEST_P(Interrupted, ALinkBreaksAndComesBack) {
  for (const auto& [a, b] :
       std::vector<std::pair<std::size_t, std::size_t>>{{0, 1}, {1, 2}, {0, 2}}) {
    at_every_moment([&, a = a, b = b](Scene& scene) {
      scene.nodes.cut(a, b);
      scene.nodes.elapse(10_ms);
      scene.nodes.heal(a, b);
      scene.nodes.elapse(1_s);
      expect_fetched(scene, scene.near);
      expect_fetched(scene, scene.far);
      expect_nothing_left(scene, 3);
    });
  }
}

TEST_P(Interrupted, AReceiverDies) {
  at_every_moment([&](Scene& scene) {
    scene.nodes.kill(1);
    scene.nodes.elapse(1_s);
    expect_fetched(scene, scene.far);
    scene.nodes.erase(2, scene.id);
    scene.nodes.elapse(3_s);
    for (const std::size_t node : {0U, 2U}) {
      scene.nodes.lose_client(node);
      EXPECT_EQ(scene.nodes.stats(node).arena_bytes_used, 0U) << "node " << node;
    }
  });
}

TEST_P(Interrupted, TheOriginDiesAndEveryReceiverGetsTheBytesOrTheReason) {
  at_every_moment([&](Scene& scene) {
    scene.nodes.kill(0);
    scene.nodes.elapse(1_s);
    const bool someone = scene.nodes.is<Fetched>(scene.near) || scene.nodes.is<Fetched>(scene.far);
    for (const RequestId get : {scene.near, scene.far}) {
      if (someone) expect_fetched(scene, get);
      if (!someone && !scene.nodes.replies(get).empty()) {
        EXPECT_EQ(scene.nodes.code(get), Code::kObjectLost);
      }
    }
    expect_nothing_left(scene, 2);
  });
}

// The node must process its own claims before it replays peers' claims that came ahead of the view.
// Otherwise objects that only this node holds are lost.
TEST(NewHome, HasItsOwnCopyBeforeItSaysThatSomethingIsLost) {
  Nodes names(2);
  const ObjectId id = names.object_at(0);  // its home among two nodes
  EngineConfig config;
  config.node = NodeId{1};
  config.arena_bytes = 1_MiB;
  Engine engine(config, 7);
  const Instant now{1'000'000};
  const auto command = [&](CommandBody body) {
    engine.handle_command({ClientId{1}, RequestId{1}, std::move(body)}, now);
  };
  const auto hear = [&](PeerMessage body) {
    engine.handle_io(MessageIn{NodeId{2}, Message{Epoch{2}, {}, {}, std::move(body)}, {}}, now);
  };
  const std::vector<Member> two{{NodeId{1}, Incarnation{1}, {}}, {NodeId{2}, Incarnation{1}, {}}};
  std::vector<Member> three = two;
  three.push_back({NodeId{3}, Incarnation{1}, {}});
  command(SetViewCommand{Epoch{1}, three});
  engine.handle_io(LinkUp{NodeId{2}, Incarnation{1}}, now);
  command(PutCommand{id, Incarnation{1}, floats_meta(100'000), {}});
  command(WroteCommand{id, Incarnation{1}, 100'000});
  Claim wants;
  wants.object = id;
  wants.wants = wants.exists = true;
  wants.incarnation = Incarnation{1};
  wants.meta = floats_meta(100'000);
  hear(wants);
  hear(ResyncDone{});
  while (engine.poll_action()) {
  }
  command(SetViewCommand{Epoch{2}, two});
  bool granted = false;
  while (const auto action = engine.poll_action()) {
    const auto* sent = std::get_if<SendMessage>(&*action);
    if (sent == nullptr) continue;
    EXPECT_FALSE(std::holds_alternative<Lost>(sent->message.body));
    granted = granted || std::holds_alternative<Grant>(sent->message.body);
  }
  EXPECT_TRUE(granted);
}

INSTANTIATE_TEST_SUITE_P(
    , Interrupted,
    ::testing::Values(Case{"SmallAtTheOrigin", kSmall, 0}, Case{"SmallAtAReceiver", kSmall, 1},
                      Case{"SmallAtTheOther", kSmall, 2}, Case{"LargeAtTheOrigin", kLarge, 0},
                      Case{"LargeAtAReceiver", kLarge, 1}, Case{"LargeAtTheOther", kLarge, 2}),
    [](const auto& one) { return std::string(one.param.name); });

}  // namespace
}  // namespace hoplite

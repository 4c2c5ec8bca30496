// SPDX-License-Identifier: Apache-2.0
// Reduces from the first confirmed source to the get of the result, over a few engines wired in
// memory, undisturbed and interrupted in every state.
#include "plan/engine/one_engine_test.h"

namespace hoplite {
namespace {

constexpr int kMomentsMax = 400;  // more than any of these operations takes

// Source i has the value 2^i in every element, so that a sum names its members.
class Reduces : public ::testing::TestWithParam<std::uint64_t> {
 protected:
  struct Scene {
    explicit Scene(std::size_t node_count, std::size_t home = 0, const Nodes::Tune& tune = {})
        : nodes(node_count, tune), target(nodes.object_at(home, 100)) {}
    Nodes nodes;
    ObjectId target;
    RequestId reduce;
    std::vector<ObjectId> sources;
  };
  void put_source(Scene& scene, std::size_t node) {
    const auto index = scene.sources.size();
    scene.sources.push_back(scene.nodes.object_at((index + 1) % scene.nodes.size(),
                                                  static_cast<std::uint8_t>(index + 1)));
    scene.nodes.put(node, scene.sources[index], value_of({static_cast<std::uint32_t>(index)}));
  }
  static void confirm(Scene& scene, std::size_t caller, std::uint32_t index) {
    scene.nodes.confirm(caller, scene.target, index, scene.sources[index]);
  }
  [[nodiscard]] Bytes value_of(const std::vector<std::uint32_t>& members) const {
    float sum = 0;
    for (const std::uint32_t index : members) sum += static_cast<float>(1U << index);
    return floats(sum, GetParam());
  }
  static std::vector<std::uint32_t> members(Scene& scene) {
    if (!scene.nodes.is<Reduced>(scene.reduce)) return {};
    return std::get<Reduced>(scene.nodes.replies(scene.reduce).back()).members;
  }
  // Sources on all nodes but the caller's, the caller being the last node; it asks for the result.
  Scene start(std::size_t node_count, std::uint32_t count, std::size_t home,
              const Nodes::Tune& tune = {}) {
    Scene scene(node_count, home, tune);
    for (std::size_t node = 0; node + 1 < node_count; ++node) put_source(scene, node);
    const auto source_count = static_cast<std::uint32_t>(scene.sources.size());
    scene.nodes.run();
    scene.reduce = scene.nodes.reduce(node_count - 1, scene.target, source_count, count);
    for (std::uint32_t i = 0; i < source_count; ++i) confirm(scene, node_count - 1, i);
    return scene;
  }
  void expect_result(Scene& scene, std::size_t node, const std::vector<std::uint32_t>& of) {
    const RequestId got = scene.nodes.get(node, scene.target);
    scene.nodes.elapse(2_s);
    EXPECT_EQ(scene.nodes.fetched(got), value_of(of)) << scene.nodes.text(got);
  }
  static void expect_nothing_left(Scene& scene, std::size_t first_node) {
    const std::size_t end = scene.nodes.size();
    for (const ObjectId& source : scene.sources) scene.nodes.erase(first_node, source);
    scene.nodes.erase(first_node, scene.target);
    scene.nodes.elapse(3_s);
    for (std::size_t node = 0; node < end; ++node) {
      if (!scene.nodes.is_alive(node)) continue;
      scene.nodes.lose_client(node);
      EXPECT_EQ(scene.nodes.stats(node).arena_bytes_used, 0U) << "node " << node;
      EXPECT_EQ(scene.nodes.stats(node).objects, 0U) << "node " << node;
    }
  }
};

TEST_P(Reduces, OfOneTargetFromTwoNodesAreOneAndARefusal) {
  for (std::size_t home = 0; home < 4; ++home) {
    Scene scene(4, home);
    for (std::size_t node = 0; node < 3; ++node) put_source(scene, node);
    scene.nodes.run();
    scene.reduce = scene.nodes.reduce(3, scene.target, 3, 2);
    confirm(scene, 3, 0);
    scene.nodes.run();
    const RequestId second = scene.nodes.reduce(1, scene.target, 3, 1);
    confirm(scene, 1, 2);
    scene.nodes.run();
    confirm(scene, 3, 1);
    scene.nodes.elapse(1_s);
    EXPECT_EQ(scene.nodes.code(second), Code::kDuplicateObject) << "home " << home;
    EXPECT_EQ(members(scene), (std::vector<std::uint32_t>{0, 1})) << "home " << home;
    for (std::size_t node = 0; node < 4; ++node) expect_result(scene, node, {0, 1});
    expect_nothing_left(scene, 0);
  }
}

TEST_P(Reduces, FoldTheFirstSourcesToArriveWhateverTheHome) {
  for (std::size_t home = 0; home < 4; ++home) {
    Scene scene = start(4, 2, home);
    scene.nodes.elapse(1_s);
    EXPECT_EQ(members(scene), (std::vector<std::uint32_t>{0, 1})) << "home " << home;
    for (std::size_t node = 0; node < 4; ++node) expect_result(scene, node, {0, 1});
    expect_nothing_left(scene, 0);
  }
}

TEST_P(Reduces, FollowTheOrderOfArrival) {
  Scene scene(3);
  for (const std::size_t node : {0U, 1U, 0U, 1U}) put_source(scene, node);
  scene.reduce = scene.nodes.reduce(2, scene.target, 4, 3);
  for (const std::uint32_t index : {3U, 0U, 2U, 1U}) {
    scene.nodes.run();
    EXPECT_TRUE(index == 1 || scene.nodes.replies(scene.reduce).empty());
    confirm(scene, 2, index);
  }
  scene.nodes.elapse(1_s);
  EXPECT_EQ(members(scene), (std::vector<std::uint32_t>{3, 0, 2}));
  expect_result(scene, 1, {0, 2, 3});
}

TEST_P(Reduces, StreamTheirResultBeforeItIsCommitted) {
  Scene scene = start(3, 2, 0);
  const RequestId got = scene.nodes.get(2, scene.target);
  scene.nodes.elapse(1_s);
  EXPECT_EQ(scene.nodes.fetched(got), value_of({0, 1}));
  expect_nothing_left(scene, 0);
}

TEST_P(Reduces, TakeTheLargestValueWithMax) {
  Scene scene(2);
  put_source(scene, 0);
  put_source(scene, 1);
  scene.reduce = scene.nodes.reduce(0, scene.target, 2, 2, ReduceOp::kMax);
  confirm(scene, 0, 0);
  confirm(scene, 0, 1);
  scene.nodes.elapse(1_s);
  expect_result(scene, 1, {1});
}

TEST_P(Reduces, WorkOnOneNode) {
  Scene scene(1);
  put_source(scene, 0);
  put_source(scene, 0);
  scene.reduce = scene.nodes.reduce(0, scene.target, 2, 2);
  confirm(scene, 0, 0);
  confirm(scene, 0, 1);
  scene.nodes.elapse(1_s);
  expect_result(scene, 0, {0, 1});
  expect_nothing_left(scene, 0);
}

TEST_P(Reduces, FoldAResultOfAnotherReduce) {
  Scene scene = start(3, 2, 0);
  const ObjectId outer = scene.nodes.object_at(1, 200);
  const RequestId second = scene.nodes.reduce(1, outer, 2, 2);
  scene.nodes.confirm(1, outer, 0, scene.sources[0]);
  scene.nodes.elapse(1_s);
  scene.nodes.confirm(1, outer, 1, scene.target);
  scene.nodes.elapse(1_s);
  ASSERT_TRUE(scene.nodes.is<Reduced>(second)) << scene.nodes.text(second);
  const RequestId got = scene.nodes.get(2, outer);
  scene.nodes.elapse(1_s);
  EXPECT_EQ(scene.nodes.fetched(got), floats(1 + 3, GetParam()));
  scene.nodes.erase(0, outer);
  expect_nothing_left(scene, 0);
}

TEST_P(Reduces, ReplaceASourceThatDiesByASpareAtAnyMoment) {
  bool under_way = true;
  for (int moment = 0; under_way && moment < kMomentsMax; ++moment) {
    SCOPED_TRACE("after " + std::to_string(moment) + " events");
    Scene scene = start(4, 2, 3);
    const RequestId early = scene.nodes.get(3, scene.target);
    for (int i = 0; i < moment; ++i) under_way = scene.nodes.step();
    scene.nodes.kill(0);
    scene.nodes.elapse(2_s);
    const auto sealed = members(scene);
    ASSERT_EQ(sealed.size(), 2U) << scene.nodes.text(scene.reduce);
    // If the commit comes first, node 0's death may take its stripes.
    if (scene.nodes.is<Fetched>(early) || sealed[0] != 0) {
      EXPECT_EQ(scene.nodes.fetched(early), value_of(sealed)) << scene.nodes.text(early);
    } else {
      EXPECT_EQ(scene.nodes.code(early), Code::kObjectLost);
    }
    expect_nothing_left(scene, 1);
    if (HasFailure()) return;
  }
}

TEST_P(Reduces, FailWhenTooFewSourcesAreLeftAtAnyMoment) {
  bool under_way = true;
  for (int moment = 0; under_way && moment < kMomentsMax; ++moment) {
    SCOPED_TRACE("after " + std::to_string(moment) + " events");
    Scene scene = start(3, 2, 2);
    for (int i = 0; i < moment; ++i) under_way = scene.nodes.step();
    scene.nodes.kill(0);
    scene.nodes.elapse(2_s);
    if (!scene.nodes.is<Reduced>(scene.reduce)) {
      EXPECT_EQ(scene.nodes.code(scene.reduce), Code::kReduceFailed);
    }
    expect_nothing_left(scene, 1);
    if (HasFailure()) return;
  }
}

TEST_P(Reduces, GoOnUnderANewHomeWhenTheirHomeDiesAtAnyMoment) {
  bool under_way = true;
  for (int moment = 0; under_way && moment < kMomentsMax; ++moment) {
    SCOPED_TRACE("after " + std::to_string(moment) + " events");
    Scene scene(4, 0);  // node 0 is the home, has no source, and may own a stripe
    for (const std::size_t node : {1U, 2U, 1U}) put_source(scene, node);
    scene.nodes.run();
    scene.reduce = scene.nodes.reduce(3, scene.target, 3, 2);
    for (const std::uint32_t index : {0U, 1U, 2U}) confirm(scene, 3, index);
    const RequestId early = scene.nodes.get(3, scene.target);
    for (int i = 0; i < moment; ++i) under_way = scene.nodes.step();
    scene.nodes.kill(0);
    scene.nodes.elapse(3_s);
    ASSERT_EQ(members(scene).size(), 2U) << scene.nodes.text(scene.reduce);
    if (scene.nodes.is<Fetched>(early)) {
      EXPECT_EQ(scene.nodes.fetched(early), value_of(members(scene)));
    } else {
      EXPECT_EQ(scene.nodes.code(early), Code::kObjectLost);
    }
    expect_nothing_left(scene, 1);
    if (HasFailure()) return;
  }
}

// home: ReduceState(committed) -> caller and owners │ links of home and owners: down │ caller hears
// it │ home dies. The owners know of no commit, and the new home must hear of it from the caller.
TEST_P(Reduces, KeepAResultOfWhichOnlyTheCallerHasHeardThatItIsCommitted) {
  Scene scene(4, 0);
  for (const std::size_t node : {1U, 2U}) put_source(scene, node);
  scene.nodes.run();
  scene.reduce = scene.nodes.reduce(3, scene.target, 2, 2);
  for (const std::uint32_t index : {0U, 1U}) confirm(scene, 3, index);
  const auto is_committed = [&] {
    return scene.nodes.stats(0).reduces_committed + scene.nodes.stats(3).reduces_committed > 0;
  };
  while (!is_committed()) ASSERT_TRUE(scene.nodes.step());
  for (const std::size_t owner : {1U, 2U}) scene.nodes.cut(0, owner);
  scene.nodes.run();
  ASSERT_EQ(members(scene).size(), 2U) << scene.nodes.text(scene.reduce);
  scene.nodes.kill(0);
  const RequestId got = scene.nodes.get(2, scene.target, true);
  scene.nodes.elapse(2_s);
  EXPECT_EQ(scene.nodes.fetched(got), value_of({0, 1})) << scene.nodes.text(got);
  scene.nodes.release(2, scene.target);
  expect_nothing_left(scene, 1);
}

TEST_P(Reduces, AreCancelledAtAnyMomentWithoutARest) {
  bool under_way = true;
  for (int moment = 0; under_way && moment < kMomentsMax; ++moment) {
    SCOPED_TRACE("after " + std::to_string(moment) + " events");
    Scene scene = start(3, 2, 0);
    for (int i = 0; i < moment; ++i) under_way = scene.nodes.step();
    const bool done = scene.nodes.is<Reduced>(scene.reduce);
    scene.nodes.cancel(2, scene.reduce);
    scene.nodes.elapse(1_s);
    ASSERT_EQ(scene.nodes.replies(scene.reduce).size(), 1U);
    EXPECT_EQ(scene.nodes.code(scene.reduce), done ? Code::kOk : Code::kCancelled);
    expect_nothing_left(scene, 0);
    if (HasFailure()) return;
  }
}

TEST_P(Reduces, EndWithTheirCallersNodeAtAnyMoment) {
  bool under_way = true;
  for (int moment = 0; under_way && moment < kMomentsMax; ++moment) {
    SCOPED_TRACE("after " + std::to_string(moment) + " events");
    Scene scene = start(3, 2, 0);
    for (int i = 0; i < moment; ++i) under_way = scene.nodes.step();
    scene.nodes.kill(2);
    scene.nodes.elapse(1_s);
    expect_nothing_left(scene, 0);
    if (HasFailure()) return;
  }
}

TEST_P(Reduces, SurviveABrokenLinkAtAnyMoment) {
  for (const std::size_t other : {0U, 1U}) {
    bool under_way = true;
    for (int moment = 0; under_way && moment < kMomentsMax; ++moment) {
      SCOPED_TRACE("after " + std::to_string(moment) + " events");
      Scene scene = start(3, 2, 0);
      for (int i = 0; i < moment; ++i) under_way = scene.nodes.step();
      scene.nodes.cut(other, 2);
      scene.nodes.elapse(5_ms);
      scene.nodes.heal(other, 2);
      scene.nodes.elapse(2_s);
      EXPECT_EQ(members(scene).size(), 2U) << scene.nodes.text(scene.reduce);
      expect_result(scene, 2, {0, 1});
      expect_nothing_left(scene, 0);
      if (HasFailure()) return;
    }
  }
}

TEST_P(Reduces, RefuseSourcesOfAnotherShapeByName) {
  Scene scene(2);
  put_source(scene, 0);
  const ObjectId odd = scene.nodes.object_at(1, 50);
  scene.nodes.put(1, odd, floats(1.0F, GetParam() + 4));
  scene.nodes.run();
  scene.reduce = scene.nodes.reduce(0, scene.target, 2, 2);
  confirm(scene, 0, 0);
  scene.nodes.confirm(0, scene.target, 1, odd);
  scene.nodes.elapse(1_s);
  EXPECT_EQ(scene.nodes.code(scene.reduce), Code::kLayoutMismatch);
  EXPECT_NE(scene.nodes.text(scene.reduce).find(short_name(odd)), std::string::npos);
  scene.nodes.erase(0, odd);
  expect_nothing_left(scene, 0);
}

TEST_P(Reduces, EndWhenConfirmedSourcesAreLostAndNoOthersCanComeAndNameThem) {
  for (std::size_t home = 0; home < 3; ++home) {
    Scene scene(3, home);
    for (const std::size_t node : {0U, 1U, 0U}) put_source(scene, node);
    scene.nodes.run();
    scene.reduce = scene.nodes.reduce(2, scene.target, 4, 2);
    scene.nodes.ask(2, ReduceSourceCommand{scene.target, ReduceSource{3, {}, {}, true}});
    for (const std::uint32_t lost : {0U, 2U}) scene.nodes.erase(2, scene.sources[lost]);
    scene.nodes.run();
    for (std::uint32_t index = 0; index < 3; ++index) confirm(scene, 2, index);
    scene.nodes.elapse(1_s);
    ASSERT_TRUE(scene.nodes.is<ReduceFailed>(scene.reduce)) << "home " << home;
    const auto& answer = std::get<ReduceFailed>(scene.nodes.replies(scene.reduce).back());
    EXPECT_EQ(answer.lost, (std::vector<std::uint32_t>{0, 2, 3})) << "home " << home;
    EXPECT_NE(answer.text.find("source 3: it failed"), std::string::npos) << answer.text;
    const RequestId again = scene.nodes.reduce(2, scene.target, 3, 3);
    scene.nodes.run();
    ASSERT_TRUE(scene.nodes.is<ReduceFailed>(again)) << "home " << home;
    EXPECT_EQ(std::get<ReduceFailed>(scene.nodes.replies(again).back()).lost,
              (std::vector<std::uint32_t>{0, 2}));
  }
}

INSTANTIATE_TEST_SUITE_P(, Reduces, ::testing::Values(100, 4 * kTestBlock),
                         [](const auto& size) { return size.param == 100 ? "Small" : "Large"; });

class Confirmations : public OneEngine {
 protected:
  Confirmations() : OneEngine(3, NodeId{2}) {}

  void confirm(std::uint32_t index, const ObjectId& source) {
    ask(ReduceSourceCommand{id_, {index, source, Incarnation{1}, false}, true});
  }
};

TEST_F(Confirmations, OfOneTurnGoToTheHomeInOneMessage) {
  ask(ReduceCommand{id_, ReduceOp::kSum, 4, 4});
  const ObjectId source = Nodes(3).object_at(2, 9);
  confirm(0, source);
  hear(NodeId{3}, Located{source, Incarnation{1}, meta(), NodeId{3}});
  ASSERT_EQ(said<ReduceWant>().back().confirmed.size(), 1U);
  for (std::uint8_t i = 1; i < 4; ++i) confirm(i, Nodes(3).object_at(2, i));
  EXPECT_EQ(engine_.poll_timeout(), now_);
  const auto wants = said<ReduceWant>();
  ASSERT_EQ(wants.size(), 1U);
  EXPECT_EQ(wants[0].first, 1U);
  EXPECT_EQ(wants[0].confirmed.size(), 3U);
  EXPECT_TRUE(said<ReduceWant>().empty());
}

}  // namespace
}  // namespace hoplite

// SPDX-License-Identifier: Apache-2.0
// Two or three engines wired in memory: what a client asks for is answered once, with the right
// bytes, and nothing is left behind, whatever interrupts it.
#include "plan/engine/engine_test.h"

#include "plan/engine/one_engine_test.h"

namespace hoplite {
namespace {

const Bytes kSmall = floats(1.5F, 100);
const Bytes kLarge = floats(2.5F);

TEST(Engine, AnswersAGetOnTheNodeOfThePut) {
  Nodes nodes(1);
  const ObjectId id = nodes.object_at(0);
  const RequestId put = nodes.put(0, id, kLarge);
  nodes.run();
  ASSERT_TRUE(nodes.is_sealed(put));
  const RequestId got = nodes.get(0, id);
  EXPECT_EQ(nodes.fetched(got), kLarge);
}

// Every operation must work whichever node is the object's home.
class EngineHomes : public ::testing::TestWithParam<std::size_t> {};

TEST_P(EngineHomes, MoveALargeObjectBlockByBlock) {
  Nodes nodes(3);
  const ObjectId id = nodes.object_at(GetParam());
  const RequestId early = nodes.get(2, id);
  nodes.run();
  EXPECT_TRUE(nodes.replies(early).empty()) << "a get may come before its object";
  nodes.put(0, id, kLarge);
  const RequestId late = nodes.get(1, id, true);
  nodes.run();
  EXPECT_EQ(nodes.fetched(early), kLarge);
  EXPECT_EQ(nodes.fetched(late), kLarge);
}

TEST_P(EngineHomes, PushASmallObjectToItsWaiters) {
  Nodes nodes(3);
  const ObjectId id = nodes.object_at(GetParam());
  const RequestId early = nodes.get(2, id);
  nodes.run();
  const RequestId put = nodes.put(0, id, kSmall);
  const RequestId late = nodes.get(1, id, true);
  nodes.run();
  EXPECT_TRUE(nodes.is_sealed(put));
  EXPECT_EQ(nodes.fetched(early), kSmall);
  EXPECT_EQ(nodes.fetched(late), kSmall);
}

TEST_P(EngineHomes, DeleteEverywhereAndAnswerWhoWaits) {
  Nodes nodes(3);
  const ObjectId id = nodes.object_at(GetParam());
  nodes.put(0, id, kLarge);
  const RequestId got = nodes.get(1, id);
  nodes.run();
  EXPECT_EQ(nodes.fetched(got), kLarge);
  nodes.release(1, id);
  const RequestId erased = nodes.erase(2, id);
  nodes.run();
  EXPECT_TRUE(nodes.is<Done>(erased));
  for (std::size_t node = 0; node < 3; ++node) {
    EXPECT_EQ(nodes.stats(node).arena_bytes_used, 0U) << "node " << node;
    EXPECT_EQ(nodes.stats(node).objects, 0U) << "node " << node;
  }
  const RequestId late = nodes.get(1, id);
  nodes.run();
  EXPECT_EQ(nodes.code(late), Code::kObjectLost);
}

TEST_P(EngineHomes, RefuseAnotherObjectUnderTheSameId) {
  Nodes nodes(3);
  const ObjectId id = nodes.object_at(GetParam());
  nodes.put(0, id, kSmall);
  nodes.run();
  const RequestId again = nodes.put(0, id, kSmall);
  nodes.run();
  EXPECT_EQ(nodes.code(again), Code::kDuplicateObject);
  nodes.put(1, id, floats(1.0F, 200));
  nodes.run();
  const RequestId got = nodes.get(2, id);
  nodes.run();
  EXPECT_EQ(nodes.fetched(got), kSmall) << "the first put stands";
}

TEST_P(EngineHomes, ServeTheBytesOfALaterAttempt) {
  Nodes nodes(3);
  const ObjectId id = nodes.object_at(GetParam());
  nodes.put(0, id, kLarge);
  const RequestId old = nodes.get(2, id);
  nodes.run();
  nodes.put(1, id, floats(7.0F), 2);
  nodes.run();
  const RequestId got = nodes.get(2, id);
  nodes.run();
  EXPECT_EQ(nodes.fetched(old), kLarge);
  EXPECT_EQ(nodes.fetched(got), floats(7.0F));
}

TEST_P(EngineHomes, KeepAnotherAttemptThanTheDeletedOne) {
  Nodes nodes(3);
  const ObjectId id = nodes.object_at(GetParam());
  nodes.put(0, id, kLarge, 1);
  nodes.run();
  nodes.put(1, id, floats(7.0F), 2);
  nodes.run();
  nodes.erase(0, id, 1);
  nodes.run();
  const RequestId got = nodes.get(2, id, true);
  nodes.run();
  EXPECT_EQ(nodes.fetched(got), floats(7.0F));
}

TEST_P(EngineHomes, AcceptALaterAttemptAfterTheDeletion) {
  Nodes nodes(3);
  const ObjectId id = nodes.object_at(GetParam());
  nodes.put(0, id, kLarge, 1);
  nodes.run();
  nodes.erase(1, id, 1);
  nodes.run();
  EXPECT_EQ(nodes.code(nodes.put(1, id, kLarge, 1)), Code::kDuplicateObject);
  nodes.put(0, id, floats(7.0F), 2);
  nodes.run();
  const RequestId got = nodes.get(2, id, true);
  nodes.run();
  EXPECT_EQ(nodes.fetched(got), floats(7.0F));
}

INSTANTIATE_TEST_SUITE_P(, EngineHomes, ::testing::Range<std::size_t>(0, 3));

TEST(Engine, StreamsAnObjectThatIsStillBeingWritten) {
  Nodes nodes(2);
  const ObjectId id = nodes.object_at(0);
  nodes.put(0, id, kLarge, 1, 2);
  nodes.get(1, id);
  nodes.run();
  EXPECT_EQ(nodes.stats(1).blocks_received, 2U) << "what is written is already there";
}

TEST(Engine, AnswersInvalidInputWithItsReason) {
  Nodes nodes(1);
  const ObjectId id = nodes.object_at(0);
  const ObjectMeta meta = floats_meta(100);
  const auto refused = [&](CommandBody body) { return nodes.code(nodes.ask(0, std::move(body))); };
  EXPECT_EQ(refused(PutCommand{id, Incarnation{0}, meta, kSmall}), Code::kInvalidArgument);
  EXPECT_EQ(refused(PutCommand{id, Incarnation{1}, meta, Bytes(99)}), Code::kInvalidArgument);
  ObjectMeta wordy = meta;
  wordy.layout = std::string(kLayoutBytesMax + 1, 'x');
  EXPECT_EQ(refused(PutCommand{id, Incarnation{1}, wordy, kSmall}), Code::kInvalidArgument);
  const ObjectMeta huge = floats_meta(kObjectBytesMax + 1);
  EXPECT_EQ(refused(PutCommand{id, Incarnation{1}, huge, {}}), Code::kInvalidArgument);
  EXPECT_EQ(refused(ReduceCommand{id, ReduceOp::kSum, 2, 3}), Code::kInvalidArgument);
  EXPECT_EQ(refused(ReduceCommand{id, ReduceOp::kSum, 2, 0}), Code::kInvalidArgument);
  EXPECT_EQ(refused(ReduceCommand{id, ReduceOp::kSum, kReduceSourcesMax + 1, 1}),
            Code::kInvalidArgument);
  EXPECT_EQ(refused(WroteCommand{id, Incarnation{1}, 1}), Code::kObjectLost)
      << "nobody reserved it";
  EXPECT_EQ(nodes.stats(0).objects, 0U);
}

TEST(Engine, RefusesWhatTheArenaCanNeverHoldAndNamesWhoHoldsIt) {
  Nodes nodes(1);
  const ObjectId held = nodes.object_at(0, 1);
  nodes.put(0, held, floats(1.0F, 512_KiB));
  nodes.run();
  const RequestId never = nodes.put(0, nodes.object_at(0, 2), Bytes(2_MiB));
  EXPECT_EQ(nodes.code(never), Code::kStoreFull);
  for (const char* word : {"2097152", "917504", "1048576", "1/8", "larger arena_bytes"}) {
    EXPECT_NE(nodes.text(never).find(word), std::string::npos) << nodes.text(never);
  }
  const RequestId full = nodes.put(0, nodes.object_at(0, 3), Bytes(512_KiB));
  nodes.run();
  nodes.elapse(2_s);
  EXPECT_EQ(nodes.code(full), Code::kStoreFull);
  const std::string holder = short_name(held) + " 524288 bytes (put here)";
  EXPECT_NE(nodes.text(full).find(holder), std::string::npos) << nodes.text(full);
}

TEST(Engine, LetsAPutWaitForMemoryUntilTheGraceIsOver) {
  Nodes nodes(1);
  const ObjectId first = nodes.object_at(0, 1);
  nodes.put(0, first, floats(1.0F, 768_KiB));
  nodes.run();
  const RequestId freed = nodes.put(0, nodes.object_at(0, 2), floats(2.0F, 512_KiB));
  nodes.elapse(1_s);
  EXPECT_TRUE(nodes.replies(freed).empty());
  nodes.erase(0, first);
  nodes.run();
  EXPECT_TRUE(nodes.is_sealed(freed));
  const RequestId full = nodes.put(0, nodes.object_at(0, 3), floats(3.0F, 768_KiB));
  nodes.elapse(1_s);
  EXPECT_TRUE(nodes.replies(full).empty());
  nodes.elapse(2_s);
  EXPECT_EQ(nodes.code(full), Code::kStoreFull);
}

// The home has been given the older attempt's bytes, and has no room for them yet.
TEST(Engine, WritesNothingOfAnOlderAttemptIntoTheRangeOfALaterOne) {
  Nodes nodes(2);
  const ObjectId filler = nodes.object_at(0, 1);
  nodes.put(0, filler, floats(1.0F, 896_KiB));  // all that puts and copies may take
  nodes.run();
  const ObjectId id = nodes.object_at(0, 2);
  nodes.put(1, id, floats(2.0F, 200));
  nodes.run();
  const RequestId later = nodes.put(0, id, kLarge, 2);
  nodes.erase(0, filler);
  nodes.run();
  EXPECT_TRUE(nodes.is_sealed(later)) << nodes.text(later);
  const RequestId got = nodes.get(1, id);
  nodes.run();
  EXPECT_EQ(nodes.fetched(got), kLarge);
}

TEST(Engine, EvictsCopiesThatNobodyMapsAndFetchesThemAgain) {
  Nodes nodes(2);
  const ObjectId first = nodes.object_at(0, 1);
  const ObjectId second = nodes.object_at(1, 2);
  const Bytes one = floats(1.0F, 640_KiB);
  nodes.put(0, first, one);
  nodes.get(1, first);
  nodes.run();
  nodes.release(1, first);
  nodes.put(1, second, floats(2.0F, 640_KiB));
  nodes.run();
  EXPECT_EQ(nodes.stats(1).evictions, 1U);
  nodes.erase(1, second);
  const RequestId again = nodes.get(1, first);
  nodes.run();
  EXPECT_EQ(nodes.fetched(again), one);
}

TEST(Engine, KeepsARangeThatIsMappedAfterTheDeletion) {
  Nodes nodes(2);
  const ObjectId id = nodes.object_at(0);
  nodes.put(0, id, kLarge);
  nodes.get(1, id);
  nodes.run();
  nodes.erase(0, id);
  nodes.run();
  EXPECT_GT(nodes.stats(1).arena_bytes_used, 0U);
  nodes.release(1, id);
  EXPECT_EQ(nodes.stats(1).arena_bytes_used, 0U);
}

TEST(Engine, GivesBackAllPinsOfAClientThatDied) {
  Nodes nodes(2);
  const ObjectId id = nodes.object_at(0);
  nodes.put(0, id, kLarge);
  nodes.get(1, id);
  nodes.get(1, id);
  nodes.run();
  nodes.erase(0, id);
  nodes.run();
  nodes.lose_client(1);
  EXPECT_EQ(nodes.stats(1).arena_bytes_used, 0U);
}

TEST(Engine, KeepsTwoMappedRangesOfOneNameUntilBothAreReleased) {
  Nodes nodes(1);
  const ObjectId id = nodes.object_at(0);
  for (int life = 0; life < 2; ++life) {
    nodes.put(0, id, kLarge);
    nodes.run();
    EXPECT_TRUE(nodes.is<Fetched>(nodes.get(0, id)));
    nodes.erase(0, id);
    nodes.elapse(kTombstoneLife + 1_s);  // then the id may be used again
  }
  nodes.release(0, id);
  EXPECT_EQ(nodes.stats(0).arena_bytes_used, 2 * 4_KiB) << "which one was it?";
  nodes.release(0, id);
  EXPECT_EQ(nodes.stats(0).arena_bytes_used, 0U);
}

TEST(Engine, GivesUpAPartialCopyThatNobodyWantsAndMovesWhomItServed) {
  Nodes nodes(3);
  const ObjectId id = nodes.object_at(0);
  nodes.put(0, id, kLarge, 1, 2);  // two of four blocks
  const RequestId relay = nodes.get(1, id);
  nodes.run();
  nodes.get(2, id);
  nodes.run();
  EXPECT_EQ(nodes.stats(1).blocks_sent, 2U);
  nodes.cancel(1, relay);
  nodes.run();
  EXPECT_EQ(nodes.stats(1).arena_bytes_used, 0U);
  EXPECT_EQ(nodes.stats(1).objects, 0U);
  EXPECT_EQ(nodes.stats(2).blocks_received, 2U) << "what has landed stays";
  EXPECT_EQ(nodes.stats(0).regrants, 1U);
}

class EchoTest : public OneEngine {
 protected:
  EchoTest() : OneEngine(2, NodeId{2}) {}
};

TEST_F(EchoTest, ComesBehindTheAnswersThatAreThere) {
  ask(PutCommand{id_, Incarnation{1}, floats_meta(100'000), {}});
  ask(WroteCommand{id_, Incarnation{1}, 100'000, false});
  deeds<ReplyToClient>();
  ask(GetCommand{Nodes(2).object_at(1, 9)});  // no node has it
  const RequestId get = ask(GetCommand{id_});
  const RequestId echo = ask(EchoCommand{});
  const auto replies = deeds<ReplyToClient>();
  ASSERT_EQ(replies.size(), 2U);
  EXPECT_EQ(replies[0].request, get);
  EXPECT_EQ(replies[1].request, echo);
  EXPECT_TRUE(std::holds_alternative<Done>(replies[1].reply));
}

TEST(Engine, RefusesAReduceOntoAnObjectThatIsThere) {
  Nodes nodes(1);
  const ObjectId id = nodes.object_at(0);
  nodes.put(0, id, kLarge);
  nodes.run();
  EXPECT_EQ(nodes.code(nodes.reduce(0, id, 1, 1)), Code::kDuplicateObject);
}

TEST(Engine, SaysEverythingAgainAfterALinkBroke) {
  Nodes nodes(2);
  const ObjectId id = nodes.object_at(0);
  nodes.put(0, id, kLarge);
  const RequestId got = nodes.get(1, id);
  for (int i = 0; i < 8; ++i) nodes.step();
  nodes.cut(0, 1);
  nodes.run();
  EXPECT_TRUE(nodes.replies(got).empty());
  nodes.heal(0, 1);
  nodes.elapse(1_s);
  EXPECT_EQ(nodes.fetched(got), kLarge);
}

// Otherwise the receiver's claim counts as older than that grant, and its get is never answered.
TEST(Engine, GrantsAgainWhatItGrantedWhileTheLinkWasDown) {
  Nodes nodes(4);
  const ObjectId id = nodes.object_at(0);
  nodes.put(1, id, kLarge);
  nodes.run();
  const RequestId got = nodes.get(2, id);
  while (nodes.stats(2).blocks_received == 0) ASSERT_TRUE(nodes.step());
  nodes.cut(1, 2);  // its sender fails it
  nodes.run();
  nodes.cut(0, 2);
  nodes.get(3, id);  // and another node can send
  nodes.run();
  EXPECT_TRUE(nodes.replies(got).empty());
  nodes.heal(0, 2);
  nodes.run();
  EXPECT_EQ(nodes.fetched(got), kLarge);
}

TEST(Engine, SaysThatAnObjectIsLostWhenItsOnlyHolderDied) {
  for (std::size_t home = 0; home < 3; ++home) {
    Nodes nodes(3);
    const ObjectId id = nodes.object_at(home);
    nodes.put(0, id, kLarge);
    nodes.run();
    nodes.kill(0);
    const RequestId got = nodes.get(2, id, true);
    nodes.elapse(3_s);
    EXPECT_EQ(nodes.code(got), Code::kObjectLost) << "home " << home;
  }
}

}  // namespace
}  // namespace hoplite

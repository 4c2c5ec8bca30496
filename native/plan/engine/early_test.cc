// SPDX-License-Identifier: Apache-2.0
// Gets of leading bytes: answered while the rest still comes, and by an error where a get of all
// bytes would be. A reader streams with both (decision 49).
#include "plan/engine/engine_test.h"

namespace hoplite {
namespace {

const Bytes kContent = floats(2.5F, 8 * kTestBlock);

// Node 0 puts, node 1 reads, and the object's home is node 1 or node 2.
class EarlyGets : public ::testing::TestWithParam<std::size_t> {
 protected:
  RequestId ask_early(std::uint64_t upto_bytes, std::size_t node = 1, bool exists = false) {
    return nodes_.ask(node, GetCommand{id_, exists, upto_bytes});
  }
  // The origin has written this many blocks, and they have gone where they are wanted.
  RequestId put(std::uint32_t blocks, std::uint32_t life = 1) {
    const RequestId request = nodes_.put(0, id_, kContent, life, blocks);
    nodes_.run();
    return request;
  }
  Fetched fetched(RequestId request) {
    EXPECT_TRUE(nodes_.is<Fetched>(request));
    return nodes_.is<Fetched>(request) ? std::get<Fetched>(nodes_.replies(request).back())
                                       : Fetched{};
  }
  void expect_used(std::size_t node, bool is_used) {
    nodes_.elapse(3_s);
    EXPECT_EQ(nodes_.stats(node).arena_bytes_used > 0, is_used);
  }

  Nodes nodes_{3};
  ObjectId id_ = nodes_.object_at(GetParam());
};

INSTANTIATE_TEST_SUITE_P(Homes, EarlyGets, ::testing::Values(1, 2));

TEST_P(EarlyGets, AreAnsweredInTheOrderInWhichTheBytesCome) {
  const RequestId whole = nodes_.get(1, id_);
  const RequestId one = ask_early(1);
  const RequestId two = ask_early(2 * kTestBlock);
  const RequestId three = ask_early(3 * kTestBlock);
  put(2);
  EXPECT_EQ(fetched(one).ready_bytes, kTestBlock);
  EXPECT_EQ(fetched(two).ready_bytes, 2 * kTestBlock);
  EXPECT_EQ(fetched(one).extent, fetched(two).extent);
  EXPECT_EQ(fetched(one).meta.size_bytes, kContent.size());
  EXPECT_TRUE(nodes_.replies(three).empty());
  EXPECT_TRUE(nodes_.replies(whole).empty());
  EXPECT_EQ(fetched(ask_early(kTestBlock)).ready_bytes, 2 * kTestBlock);  // at once
  EXPECT_EQ(nodes_.stats(1).waiters, 2U);
}

TEST_P(EarlyGets, AreAnsweredByTheWholeObject) {
  nodes_.get(1, id_);
  const RequestId beyond = ask_early(10 * kContent.size());
  put(1U << 20);
  EXPECT_EQ(fetched(beyond).ready_bytes, kContent.size());
  EXPECT_EQ(fetched(ask_early(0)).ready_bytes, kContent.size());
  EXPECT_EQ(nodes_.stats(1).waiters, 0U);
}

TEST_P(EarlyGets, OnTheWritersNodeSeeWhatIsWritten) {
  put(3);
  EXPECT_EQ(fetched(ask_early(2 * kTestBlock, 0)).ready_bytes, 3 * kTestBlock);
  EXPECT_TRUE(nodes_.replies(ask_early(4 * kTestBlock, 0)).empty());
}

TEST_P(EarlyGets, OfASmallObjectCopyAllOfIt) {
  const Bytes small = floats(1.0F, 128);
  const RequestId early = ask_early(1);
  nodes_.put(0, id_, small);
  nodes_.run();
  EXPECT_FALSE(fetched(early).mapped);
  EXPECT_EQ(fetched(early).ready_bytes, small.size());
}

TEST_P(EarlyGets, PinTheirRangeUntilItIsReleasedThoughThePutIsTakenBack) {
  const RequestId written = put(3);
  ask_early(kTestBlock, 0);
  nodes_.cancel(0, written);
  expect_used(0, true);
  nodes_.release(0, id_);
  expect_used(0, false);
}

TEST_P(EarlyGets, OfARangeWhosePutIsTakenBackAreAnsweredByTheNextAttempt) {
  const RequestId first = put(3);
  const Fetched early = fetched(ask_early(kTestBlock, 0));
  const RequestId next = ask_early(5 * kTestBlock, 0);
  nodes_.cancel(0, first);
  put(6, 2);
  EXPECT_EQ(fetched(next).incarnation, Incarnation{2});
  EXPECT_NE(fetched(next).extent, early.extent);  // the first range is still mapped
  expect_used(0, true);
}

TEST_P(EarlyGets, OfADeletedObjectKeepTheBytesThatTheyGave) {
  nodes_.get(1, id_);
  const RequestId early = ask_early(kTestBlock);
  put(3);
  EXPECT_EQ(fetched(early).ready_bytes, kTestBlock);
  const RequestId next = ask_early(5 * kTestBlock);
  nodes_.erase(2, id_);
  nodes_.run();
  EXPECT_EQ(nodes_.code(next), Code::kObjectLost);
  expect_used(1, true);
  nodes_.release(1, id_);
  expect_used(1, false);
}

TEST_P(EarlyGets, FailWithTheObjectThatIsLost) {
  nodes_.get(1, id_, true);
  put(3);
  const RequestId next = ask_early(5 * kTestBlock, 1, true);
  nodes_.kill(0);
  nodes_.elapse(5_s);
  nodes_.run();
  EXPECT_EQ(nodes_.code(next), Code::kObjectLost);
}

TEST_P(EarlyGets, MayBeTakenBack) {
  nodes_.get(1, id_);
  const RequestId next = ask_early(5 * kTestBlock);
  put(3);
  nodes_.cancel(1, next);
  nodes_.run();
  EXPECT_EQ(nodes_.code(next), Code::kCancelled);
  EXPECT_EQ(nodes_.stats(1).waiters, 1U);
}

TEST_P(EarlyGets, GoWithTheirClient) {
  nodes_.get(1, id_);
  ask_early(kTestBlock);
  ask_early(5 * kTestBlock);
  put(3);
  nodes_.lose_client(1);
  nodes_.run();
  EXPECT_EQ(nodes_.stats(1).waiters, 0U);
  expect_used(1, false);
}

}  // namespace
}  // namespace hoplite

// SPDX-License-Identifier: Apache-2.0
// Each thing that the checker watches is broken by hand, and it says so.
#include "sim/check/checker.h"

#include <gtest/gtest.h>

#include "sim/model/content.h"

namespace hoplite::sim {
namespace {

const ObjectId kA = object_named(1);
const ObjectId kTarget = object_named(2);
const std::vector<Part> kParts = {{DType::kFloat32, 64}};

class CheckerTest : public testing::Test {
 protected:
  Request& request(Verb verb, const ObjectId& object, Incarnation attempt = Incarnation{1}) {
    Request& made = requests_.emplace_back();
    made.verb = verb;
    made.object = object;
    made.node_life = Incarnation{1};
    made.incarnation = attempt;
    made.asked = Instant{++now_};
    return made;
  }
  Request& put(const ObjectId& object, Incarnation attempt = Incarnation{1}) {
    Request& made = request(Verb::kPut, object, attempt);
    made.parts = kParts;
    made.bytes = content_of(object, attempt, kParts);
    checker_.note_put(made);
    made.answered = Instant{++now_};
    checker_.note_seal(made, *made.answered);
    return made;
  }
  Request& finish_get(const ObjectId& object, Bytes bytes, Incarnation attempt = Incarnation{1}) {
    Request& made = request(Verb::kGet, object);
    made.bytes = std::move(bytes);
    made.fetched.incarnation = attempt;
    made.fetched.meta.parts = kParts;
    made.fetched.meta.layout = layout_of(made.fetched.meta.parts);
    made.answered = Instant{++now_};
    checker_.check_get(made, *made.answered);
    return made;
  }
  void fail_request(Request& made, Code code, const std::string& text = "text") {
    made.error = Error{code, text};
    checker_.check_error(made, Instant{++now_});
  }
  Request& begin_reduce(std::uint32_t count) {  // of two sources
    Request& made = request(Verb::kReduce, kTarget);
    made.source_count = 2;
    made.count = count;
    for (std::uint32_t i = 0; i < 2; ++i) {
      put(object_named(10 + i));
      made.sources.push_back({i, object_named(10 + i), {}, false});
    }
    checker_.note_reduce(made);
    return made;
  }
  Request& finish_reduce(Request& made, const std::vector<std::uint32_t>& members) {
    made.answered = Instant{++now_};
    made.members = members;
    checker_.check_result(made);
    return made;
  }
  void expect(const std::string& said) {
    ASSERT_EQ(checker_.failures().size(), 1U);
    EXPECT_EQ(checker_.failures()[0].find(said), 0U) << checker_.failures()[0];
  }
  void expect_nothing() { EXPECT_TRUE(checker_.failures().empty()); }

  Checker checker_;
  std::deque<Request> requests_;
  std::int64_t now_ = 0;
};

TEST_F(CheckerTest, SeesALossWhileFewerNodesHaveDiedThanKeepTheObject) {
  put(kA);
  Request& keep = request(Verb::kKeep, kA);
  keep.copies = 2;
  checker_.note_keep(keep, 4);
  checker_.note_kept(keep, 4);
  checker_.note_node_loss(0, Incarnation{1}, Instant{++now_});
  EXPECT_TRUE(checker_.has_live_copy(kA));
  fail_request(request(Verb::kGet, kA), Code::kObjectLost);
  ASSERT_EQ(checker_.failures().size(), 1U);
  EXPECT_NE(checker_.failures()[0].find("fewer nodes died"), std::string::npos);
  checker_.note_node_loss(1, Incarnation{1}, Instant{++now_});
  EXPECT_FALSE(checker_.has_live_copy(kA));
  fail_request(request(Verb::kGet, kA), Code::kObjectLost);
  EXPECT_EQ(checker_.failures().size(), 1U) << "two nodes kept it, and both have died";
}

TEST_F(CheckerTest, RightAnswersAreNoFailures) {
  const Request& made = put(kA);
  finish_get(kA, made.bytes);
  Request& sum = finish_reduce(begin_reduce(2), {0, 1});
  finish_get(kTarget, reduce_all(kParts, ReduceOp::kSum,
                                 {content_of(object_named(10), Incarnation{1}, kParts),
                                  content_of(object_named(11), Incarnation{1}, kParts)}));
  EXPECT_TRUE(sum.has_value());
  checker_.check_reduces(requests_);
  expect_nothing();
}

TEST_F(CheckerTest, AResultOfOtherMembersThanReportedIsSeen) {
  Request& one = begin_reduce(1);
  finish_get(kTarget, content_of(object_named(11), Incarnation{1}, kParts));
  finish_reduce(one, {0});
  checker_.check_reduces(requests_);
  expect("the value is not the fold of the members that were reported");
}

TEST_F(CheckerTest, AReaderThatDiedBeforeTheReduceWasAnsweredMayHaveReadOtherMembers) {
  Request& one = begin_reduce(1);
  const Request& read = finish_get(kTarget, content_of(object_named(11), Incarnation{1}, kParts));
  checker_.note_node_loss(read.node, read.node_life, Instant{++now_});
  finish_reduce(one, {0});
  checker_.check_reduces(requests_);
  expect_nothing();
}

TEST_F(CheckerTest, OneWrongByteIsSeen) {
  Bytes bytes = put(kA).bytes;
  bytes[7] ^= std::byte{1};
  finish_get(kA, bytes);
  expect("a wrong value");
}

TEST_F(CheckerTest, BytesOfTwoAttemptsAreAMix) {
  Bytes bytes = put(kA).bytes;
  const Bytes later = put(kA, Incarnation{2}).bytes;
  std::copy_n(later.begin(), 32, bytes.begin());
  finish_get(kA, bytes, Incarnation{2});
  expect("a wrong value");
}

TEST_F(CheckerTest, AnAttemptThatNobodyPutIsSeen) {
  finish_get(kA, put(kA).bytes, Incarnation{3});
  expect("a value of an attempt that nobody put");
}

TEST_F(CheckerTest, ASecondPutOfOneAttemptThatIsTakenIsSeen) {
  put(kA);
  put(kA);
  expect("sealed twice");
}

TEST_F(CheckerTest, BytesThatChangeUnderAMappingAreSeen) {
  Request& get = finish_get(kA, put(kA).bytes);
  Bytes mapped = get.bytes;
  mapped[0] ^= std::byte{1};
  checker_.check_release(get, mapped);
  expect("the bytes changed while they were mapped");
}

TEST_F(CheckerTest, AnObjectThatIsLostThoughANodeHasItIsSeen) {
  put(kA);
  fail_request(request(Verb::kGet, kA), Code::kObjectLost);
  expect("lost, though a live node has all of it");
}

TEST_F(CheckerTest, AnObjectMayBeLostWithItsNode) {
  put(kA);
  checker_.note_node_loss(0, Incarnation{1}, Instant{++now_});
  fail_request(request(Verb::kGet, kA), Code::kObjectLost);
  expect_nothing();
}

TEST_F(CheckerTest, WhatWasDeletedThereIsNotServedThereAgain) {
  const Request& made = put(kA);
  Request& erase = request(Verb::kDelete, kA);
  checker_.note_delete_request(kA, Instant{now_});
  erase.answered = Instant{++now_};
  checker_.note_delete(erase);
  finish_get(kA, made.bytes);
  expect("a value that was deleted");
}

TEST_F(CheckerTest, MembersThatRepeatAreSeen) {
  finish_reduce(begin_reduce(2), {1, 1});
  expect("the members are not `count` different ones");
}

TEST_F(CheckerTest, AMemberThatWasNeverConfirmedIsSeen) {
  finish_reduce(begin_reduce(2), {0, 5});
  expect("a member that was never confirmed");
}

TEST_F(CheckerTest, ASourceThatWentInTwiceIsSeen) {
  finish_reduce(begin_reduce(2), {0, 1});
  const Bytes first = content_of(object_named(10), Incarnation{1}, kParts);
  finish_get(kTarget, reduce_all(kParts, ReduceOp::kSum, {first, first}));
  expect("the value is no fold of 2 confirmed sources");
}

TEST_F(CheckerTest, AReduceThatFailsThoughEnoughIsLeftIsSeen) {
  Request& sum = finish_reduce(begin_reduce(2), {0, 1});
  fail_request(sum, Code::kReduceFailed);
  expect("enough sources are left");
}

TEST_F(CheckerTest, AFailedReduceThatNamesTooFewLostSourcesIsSeen) {
  Request& one = begin_reduce(2);
  one.sources[1].failed = true;
  one.lost = {1};
  fail_request(one, Code::kReduceFailed);
  expect_nothing();
  one.lost.clear();
  fail_request(one, Code::kReduceFailed);
  expect("lost sources are not named");
}

TEST_F(CheckerTest, AFullStoreAndACancellationNeedAReason) {
  put(kA);
  fail_request(request(Verb::kGet, kA), Code::kStoreFull);
  expect("the arena is large enough");
  checker_.allow_store_full();
  fail_request(request(Verb::kGet, kA), Code::kStoreFull);
  EXPECT_EQ(checker_.failures().size(), 1U);
  fail_request(request(Verb::kGet, kA), Code::kCancelled);
  EXPECT_EQ(checker_.failures().size(), 2U);
}

}  // namespace
}  // namespace hoplite::sim

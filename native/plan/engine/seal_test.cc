// SPDX-License-Identifier: Apache-2.0
// Large puts whose writer keeps its mapping: the seal takes a pin, and no deletion frees the range
// before the writer has let go of it.
#include "plan/engine/engine_test.h"

namespace hoplite {
namespace {

const Bytes kContent = floats(2.5F);

// Node 0 has reserved the object's range, and its client has written nothing yet.
class Sealing : public ::testing::Test {
 protected:
  Sealing() : put_(nodes_.put(0, id_, kContent, 1, 0)) { nodes_.run(); }
  RequestId seal(std::uint32_t life = 1) {
    return nodes_.ask(0, WroteCommand{id_, Incarnation{life}, kContent.size(), true});
  }
  void expect_used(bool is_used) {
    nodes_.elapse(3_s);
    EXPECT_EQ(nodes_.stats(0).arena_bytes_used > 0, is_used);
  }

  Nodes nodes_{2};
  ObjectId id_ = nodes_.object_at(1);
  RequestId put_;
};

TEST_F(Sealing, IsAnsweredWithAPinThatOutlivesTheObject) {
  const RequestId sealed = seal();
  ASSERT_TRUE(nodes_.is<Fetched>(sealed));
  const auto fetched = std::get<Fetched>(nodes_.replies(sealed).back());
  EXPECT_TRUE(fetched.mapped);
  EXPECT_EQ(fetched.extent, std::get<Reserved>(nodes_.replies(put_).back()).extent);
  nodes_.erase(0, id_);
  expect_used(true);
  nodes_.release(0, id_);
  expect_used(false);
}

TEST_F(Sealing, LetsTheOthersReadAtOnce) {
  const RequestId early = nodes_.get(1, id_);
  seal();
  nodes_.run();
  EXPECT_TRUE(nodes_.is<Fetched>(early));
  EXPECT_TRUE(nodes_.is<Fetched>(nodes_.get(0, id_)));
}

TEST_F(Sealing, OfADeletedObjectFailsAndLeavesTheRangeToItsWriterUntilItCancels) {
  nodes_.erase(1, id_);
  expect_used(true);
  const RequestId sealed = seal();
  EXPECT_EQ(nodes_.code(sealed), Code::kObjectLost);
  expect_used(true);
  nodes_.cancel(0, put_);
  expect_used(false);
}

TEST_F(Sealing, IsUndoneByTheDeathOfTheWriter) {
  nodes_.erase(1, id_);
  seal();
  nodes_.lose_client(0);
  expect_used(false);
}

TEST_F(Sealing, OfASealedAndDeletedObjectIsUndoneByTheDeathOfTheWriter) {
  seal();
  nodes_.erase(1, id_);
  expect_used(true);
  nodes_.lose_client(0);
  expect_used(false);
}

TEST_F(Sealing, OfAnOlderAttemptDoesNotSealTheNewerOne) {
  const RequestId newer = nodes_.put(0, id_, kContent, 2, 0);
  EXPECT_TRUE(nodes_.is<Reserved>(newer));
  EXPECT_EQ(nodes_.code(seal(1)), Code::kObjectLost);
  EXPECT_FALSE(nodes_.is<Fetched>(nodes_.get(0, id_)));
  EXPECT_TRUE(nodes_.is<Fetched>(seal(2)));
  nodes_.cancel(0, put_);
  nodes_.erase(0, id_);
  nodes_.release(0, id_, 2);  // the mapping of the seal
  nodes_.release(0, id_, 2);  // and that of the get
  expect_used(false);
}

}  // namespace
}  // namespace hoplite

// SPDX-License-Identifier: Apache-2.0
// The listing of incoming objects: the bytes of each stripe, until its sender is gone; and that of
// named objects.
#include "plan/engine/one_engine_test.h"

namespace hoplite {
namespace {

class Transfers : public OneEngine {
 protected:
  Transfers() : OneEngine(3, NodeId{2}) { ask(GetCommand{id_, true}); }

  // Returns the transfer of stripe `index` of three, which node 3 is to send.
  TransferId begin(std::uint16_t index) {
    hear(NodeId{2}, Grant{id_,
                          Incarnation{1},
                          TargetEpoch{0},
                          meta(),
                          3,
                          {{StripeIndex{index}, NodeId{3}, LeaseId{index + 1U}}}});
    EXPECT_EQ(said<PullStart>().size(), 1U);
    return transfer_;
  }
  void land(TransferId transfer, BlockIndex block) {
    engine_.handle_io(BlockLanded{NodeId{3}, transfer, block}, now_);
    engine_.check_invariants();
  }
  std::vector<TransferRow> listed(std::uint64_t rows_max) {
    deeds<TellListing>();
    ask(ListCommand{0, rows_max});
    const auto told = deeds<TellListing>();
    EXPECT_EQ(told.size(), 1U);
    return told.at(0).listing.transfers;
  }
};

// 100,000 bytes are 12 blocks of 8,192 and one of 1,696, which is the first stripe's.
TEST_F(Transfers, TellWhatHasLandedOfEachStripeTheLargestFirst) {
  const TransferId first = begin(0);
  begin(1);
  land(first, BlockIndex{0});
  land(first, BlockIndex{6});
  const auto rows = listed(10);
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(rows[0].object, id_);
  EXPECT_EQ(rows[0].target, id_);
  EXPECT_STREQ(rows[0].kind, "copy");
  EXPECT_EQ(rows[0].sender, NodeId{3});
  EXPECT_EQ(rows[0].stripe, StripeIndex{0});
  EXPECT_EQ(rows[0].stripe_count, 3U);
  EXPECT_EQ(rows[0].landed_bytes, 2U * 8192);
  EXPECT_EQ(rows[0].size_bytes, 4U * 8192 + 1696);
  EXPECT_EQ(rows[1].landed_bytes, 0U);
  EXPECT_EQ(rows[1].size_bytes, 4U * 8192);
  EXPECT_EQ(listed(1).size(), 1U);
}

TEST_F(Transfers, OfAStripeThatIsHereOrWhoseSenderIsGoneAreNotTold) {
  const TransferId second = begin(1);
  for (const std::uint32_t block : {1U, 4U, 7U, 10U}) land(second, BlockIndex{block});
  EXPECT_TRUE(listed(10).empty());
  begin(0);
  EXPECT_EQ(listed(10).size(), 1U);
  engine_.handle_io(PeerDead{NodeId{3}, Incarnation{1}, true}, now_);
  EXPECT_TRUE(listed(10).empty());
}

TEST_F(Transfers, NamedObjectsAreListedInTheirOrderAndUnknownOnesLeftOut) {
  const ObjectId put = Nodes(3).object_at(0);
  const ObjectId unknown = Nodes(3).object_at(2);
  ask(PutCommand{put, Incarnation{1}, floats_meta(400), Bytes(400)});
  begin(0);
  deeds<TellListing>();
  ask(ListCommand{.objects_max = 1, .named = {id_, unknown, put}});
  const auto told = deeds<TellListing>();
  ASSERT_EQ(told.size(), 1U);
  const auto& rows = told.at(0).listing.objects;
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(rows[0].object, id_);
  EXPECT_STREQ(rows[0].state, "partial");
  EXPECT_EQ(rows[1].object, put);
  EXPECT_STREQ(rows[1].state, "whole");
}

}  // namespace
}  // namespace hoplite

// SPDX-License-Identifier: Apache-2.0
#include "io/links/receive_table.h"

#include <gtest/gtest.h>

#include <functional>
#include <vector>

namespace hoplite {
namespace {

constexpr NodeId kSender{3};
constexpr TransferId kTransfer{11};

OpenReceive receive_of(std::uint64_t size_bytes, std::uint16_t stripes, std::uint16_t stripe,
                       std::uint32_t slots = 0) {
  OpenReceive receive;
  receive.transfer = kTransfer;
  receive.from = kSender;
  receive.object.bytes.fill(5);
  receive.incarnation = Incarnation{2};
  receive.target_epoch = TargetEpoch{1};
  receive.meta.size_bytes = size_bytes;
  receive.meta.block_bytes = 100;
  receive.stripe_count = stripes;
  receive.stripe = StripeIndex{stripe};
  receive.base = {1000, size_bytes};
  receive.slots = slots;
  return receive;
}

BlockHeader block_at(std::uint64_t offset, std::uint32_t size_bytes) {
  BlockHeader header;
  header.transfer = kTransfer;
  header.object.bytes.fill(5);
  header.incarnation = Incarnation{2};
  header.target_epoch = TargetEpoch{1};
  header.offset = offset;
  header.size_bytes = size_bytes;
  return header;
}

TEST(ReceiveTable, PlacesBlocksAtTheirOffset) {
  ReceiveTable table(10'000);
  table.open(receive_of(450, 1, 0));
  const Placement first = table.place(kSender, block_at(0, 100));
  EXPECT_EQ(first.arrival, Arrival::kLand);
  EXPECT_EQ(first.block, BlockIndex{0});
  EXPECT_EQ(first.extent, (Extent{1000, 100}));
  const Placement last = table.place(kSender, block_at(400, 50));
  EXPECT_EQ(last.block, BlockIndex{4});
  EXPECT_EQ(last.extent, (Extent{1400, 50}));
}

TEST(ReceiveTable, PlacesTheNthBlockOfAStripeIntoASlot) {
  ReceiveTable table(10'000);
  table.open(receive_of(1000, 3, 1, 2));  // blocks 1, 4, 7 in slots 0, 1, 0
  EXPECT_EQ(table.place(kSender, block_at(100, 100)).extent, (Extent{1000, 100}));
  EXPECT_EQ(table.place(kSender, block_at(400, 100)).extent, (Extent{1100, 100}));
  EXPECT_EQ(table.place(kSender, block_at(700, 100)).extent, (Extent{1000, 100}));
}

TEST(ReceiveTable, DiscardsWhatNobodyWaitsFor) {
  ReceiveTable table(10'000);
  EXPECT_EQ(table.place(kSender, block_at(0, 100)).arrival, Arrival::kDiscard);
  table.open(receive_of(450, 1, 0));
  EXPECT_EQ(table.place(NodeId{4}, block_at(0, 100)).arrival, Arrival::kDiscard);
  const std::vector<std::function<void(BlockHeader&)>> changes{
      [](BlockHeader& h) { h.transfer = TransferId{12}; },
      [](BlockHeader& h) { h.object.bytes[0] = 6; },
      [](BlockHeader& h) { h.incarnation = Incarnation{1}; },
      [](BlockHeader& h) { h.target_epoch = TargetEpoch{2}; },
  };
  for (const auto& change : changes) {
    BlockHeader header = block_at(0, 100);
    change(header);
    EXPECT_EQ(table.place(kSender, header).arrival, Arrival::kDiscard);
  }
  table.close(kSender, kTransfer);
  EXPECT_EQ(table.place(kSender, block_at(0, 100)).arrival, Arrival::kDiscard);
}

TEST(ReceiveTable, ABlockThatItsTransferCannotHaveIsHostile) {
  ReceiveTable table(10'000);
  table.open(receive_of(450, 2, 1));
  const std::vector<BlockHeader> hostile{
      block_at(50, 100),                 // between blocks
      block_at(0, 100),                  // another stripe's
      block_at(500, 100),                // behind the end
      block_at(~std::uint64_t{0}, 100),  // far behind it
      block_at(100, 99),                 // too short
      block_at(100, 101),                // too long
  };
  for (const BlockHeader& header : hostile) {
    EXPECT_EQ(table.place(kSender, header).arrival, Arrival::kHostile) << header.offset;
  }
  EXPECT_EQ(table.place(kSender, block_at(100, 100)).arrival, Arrival::kLand);
}

TEST(ReceiveTable, ForgetsASenderWhole) {
  ReceiveTable table(10'000);
  OpenReceive receive = receive_of(450, 1, 0);
  table.open(receive);
  receive.transfer = TransferId{12};
  table.open(receive);
  receive.from = NodeId{4};
  table.open(receive);
  table.close_all(kSender);
  EXPECT_EQ(table.size(), 1U);
}

TEST(ReceiveTable, AnExtentOutsideTheArenaIsAProgrammersError) {
  ReceiveTable table(1200);
  EXPECT_DEATH(table.open(receive_of(450, 1, 0)), "check failed");
  EXPECT_DEATH(table.open(receive_of(450, 1, 0, 3)), "check failed");
}

TEST(ReceiveTable, CountsTheNodesThatMaySend) {
  ReceiveTable table(10'000);
  const auto open = [&](NodeId from, TransferId transfer) {
    OpenReceive receive = receive_of(450, 1, 0);
    receive.from = from;
    receive.transfer = transfer;
    table.open(receive);
  };
  EXPECT_EQ(table.senders(), 0U);
  open(NodeId{3}, TransferId{1});
  open(NodeId{3}, TransferId{2});
  open(NodeId{3}, TransferId{2});  // again
  open(NodeId{4}, TransferId{1});
  EXPECT_EQ(table.senders(), 2U);
  table.close(NodeId{3}, TransferId{1});
  table.close(NodeId{5}, TransferId{1});  // never opened
  EXPECT_EQ(table.senders(), 2U);
  table.close(NodeId{3}, TransferId{2});
  table.close(NodeId{3}, TransferId{2});
  EXPECT_EQ(table.senders(), 1U);
  table.close_all(NodeId{3});
  EXPECT_EQ(table.senders(), 1U);
  table.close_all(NodeId{4});
  EXPECT_EQ(table.senders(), 0U);
}

}  // namespace
}  // namespace hoplite

// SPDX-License-Identifier: Apache-2.0
// Checksums that travel with their blocks: a writer's and a receiver's are sent on, and nothing
// else is taken for one.
#include "plan/engine/one_engine_test.h"

namespace hoplite {
namespace {

constexpr NodeId kHome{2}, kReader{3};
constexpr std::uint32_t kBlocks = 13;  // of meta()

class Sums : public OneEngine {
 protected:
  Sums() : OneEngine(3, kHome) {}

  void put(std::vector<std::uint32_t> sums, BlockIndex first = {}) {
    ask(PutCommand{id_, Incarnation{1}, meta(), {}});
    ask(WroteCommand{id_, Incarnation{1}, meta().size_bytes, false, first, std::move(sums)});
  }
  // The checksums that go out with the blocks that a reader asks for; 0: io/ makes one.
  std::vector<std::uint32_t> read(std::uint64_t transfer, const PullStart& start) {
    hear(kReader, start, TransferId{transfer});
    std::vector<std::uint32_t> sums;
    for (const SendBlock& block : deeds<SendBlock>()) {
      sums.push_back(block.header.crc32c);
      engine_.handle_io(BlockSent{block.to, block.rail, block.extent.size_bytes, block.ticket},
                        now_);
    }
    return sums;
  }
  PullStart all() const {
    return {.object = id_,
            .incarnation = Incarnation{1},
            .target_epoch = {},
            .stripe_count = 1,
            .stripe = {},
            .from = 0,
            .credits = kBlocks};
  }
  static std::vector<std::uint32_t> make_numbers() {  // 1, 2, ...
    std::vector<std::uint32_t> sums(kBlocks);
    for (std::uint32_t i = 0; i < kBlocks; ++i) sums[i] = i + 1;
    return sums;
  }
};

TEST_F(Sums, OfAWriterGoOutWithItsBlocks) {
  put(make_numbers());
  EXPECT_EQ(read(1, all()), make_numbers());
}

TEST_F(Sums, AreMadeForABlockWithoutOne) {
  put({8}, BlockIndex{7});
  std::vector<std::uint32_t> sums(kBlocks);
  sums[7] = 8;
  EXPECT_EQ(read(1, all()), sums);
}

TEST_F(Sums, OfBlocksThatAnObjectDoesNotHaveAreNone) {
  put({1, 2, 3}, BlockIndex{kBlocks - 1});
  std::vector<std::uint32_t> sums(kBlocks);
  sums[kBlocks - 1] = 1;
  EXPECT_EQ(read(1, all()), sums);
}

TEST_F(Sums, AreNotOfARangeWithBlocksOfItsOwn) {
  put(make_numbers());
  PullStart range = all();
  range.is_range = true;
  range.range = {8192, 16'384};
  range.block_bytes = 8192;
  EXPECT_EQ(read(1, range), (std::vector<std::uint32_t>(2)));
}

// The writer's source changed under the copy, say: the receiver ends the link, and must not meet
// the same checksums again.
TEST_F(Sums, EndWithTheLinkOverWhichTheyWent) {
  put(make_numbers());
  EXPECT_EQ(read(1, all()), make_numbers()) << "all have left";
  engine_.handle_io(LinkDown{kReader}, now_);
  engine_.handle_io(LinkUp{kReader, Incarnation{1}}, now_);
  EXPECT_EQ(read(2, all()), std::vector<std::uint32_t>(kBlocks));
}

TEST_F(Sums, OfAWriterWhoseLinkBrokeMeanwhileCountNoMore) {
  ask(PutCommand{id_, Incarnation{1}, meta(), {}});
  const auto wrote = [&](std::uint64_t upto, BlockIndex first, std::vector<std::uint32_t> sums) {
    ask(WroteCommand{id_, Incarnation{1}, upto, false, first, std::move(sums)});
  };
  wrote(8192, {}, {1});
  engine_.handle_io(LinkDown{kReader}, now_);
  engine_.handle_io(LinkUp{kReader, Incarnation{1}}, now_);
  wrote(meta().size_bytes, BlockIndex{1}, {2, 3, 4});
  EXPECT_EQ(read(1, all()), std::vector<std::uint32_t>(kBlocks));
}

TEST_F(Sums, OfABlockThatComesAgainAreThoseOfItsNewBytes) {
  ask(GetCommand{id_, true});
  hear(kHome, Grant{id_, Incarnation{1}, {}, meta(), 1, {{StripeIndex{0}, kHome, LeaseId{1}}}});
  const auto opened = deeds<OpenReceive>();
  ASSERT_EQ(opened.size(), 1U);
  for (const std::uint32_t sum : {77U, 78U}) {
    engine_.handle_io(BlockLanded{kHome, opened[0].transfer, BlockIndex{0}, sum}, now_);
  }
  EXPECT_EQ(read(1, all()), std::vector<std::uint32_t>{78});
}

TEST_F(Sums, OfAReceiverGoOutWithTheBlocksThatItPassesOn) {
  ask(GetCommand{id_, true});
  hear(kHome, Grant{id_, Incarnation{1}, {}, meta(), 1, {{StripeIndex{0}, kHome, LeaseId{1}}}});
  const auto opened = deeds<OpenReceive>();
  ASSERT_EQ(opened.size(), 1U);
  EXPECT_TRUE(read(1, all()).empty());
  const auto landed = [&](std::uint32_t block, std::uint32_t sum) {
    engine_.handle_io(BlockLanded{kHome, opened[0].transfer, BlockIndex{block}, sum}, now_);
    const auto sent = deeds<SendBlock>();
    return sent.size() == 1 ? sent[0].header.crc32c : 0;
  };
  EXPECT_EQ(landed(0, 77), 77U);
  EXPECT_EQ(landed(1, 78), 78U);
}

}  // namespace
}  // namespace hoplite

// SPDX-License-Identifier: Apache-2.0
#include "io/bulk/shared_receives.h"

#include <gtest/gtest.h>

namespace hoplite {
namespace {

using Loan = SharedReceives::Loan;
constexpr NodeId kFrom{2};
constexpr TransferId kTransfer{5};

OpenReceive receive() {
  OpenReceive receive;
  receive.transfer = kTransfer;
  receive.from = kFrom;
  receive.meta.size_bytes = 4096;
  receive.meta.block_bytes = 4096;
  receive.base = {0, 4096};
  return receive;
}

TEST(SharedReceives, AClosedReceiveIsFreeAtOnceIfNothingWritesThere) {
  SharedReceives receives(4096);
  receives.open(receive());
  ASSERT_TRUE(receives.begin_write(kFrom, kTransfer));
  EXPECT_EQ(receives.end_write(kFrom, kTransfer), Loan::kOpen);
  EXPECT_TRUE(receives.close(kFrom, kTransfer));
  EXPECT_FALSE(receives.begin_write(kFrom, kTransfer));
}

TEST(SharedReceives, AReceiveThatIsNotOpenIsClosedAtOnce) {
  SharedReceives receives(4096);
  EXPECT_FALSE(receives.begin_write(kFrom, kTransfer));
  EXPECT_TRUE(receives.close(kFrom, kTransfer));
}

// Two rails of one peer bring blocks of one transfer to two threads.
TEST(SharedReceives, TheLastWriterOfAClosedReceiveFreesIt) {
  SharedReceives receives(4096);
  receives.open(receive());
  ASSERT_TRUE(receives.begin_write(kFrom, kTransfer));
  ASSERT_TRUE(receives.begin_write(kFrom, kTransfer));
  EXPECT_FALSE(receives.close(kFrom, kTransfer));
  EXPECT_FALSE(receives.begin_write(kFrom, kTransfer));
  EXPECT_EQ(receives.end_write(kFrom, kTransfer), Loan::kClosed);
  EXPECT_EQ(receives.end_write(kFrom, kTransfer), Loan::kLastClosed);
}

TEST(SharedReceives, ALoanConcernsItsTransferAlone) {
  SharedReceives receives(8192);
  receives.open(receive());
  OpenReceive other = receive();
  other.transfer = TransferId{6};
  other.base.offset = 4096;
  receives.open(other);
  ASSERT_TRUE(receives.begin_write(kFrom, kTransfer));
  EXPECT_TRUE(receives.close(kFrom, TransferId{6}));
  EXPECT_EQ(receives.end_write(kFrom, kTransfer), Loan::kOpen);
  EXPECT_EQ(receives.senders(), 1U);
}

}  // namespace
}  // namespace hoplite

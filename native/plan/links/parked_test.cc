// SPDX-License-Identifier: Apache-2.0
#include "plan/links/parked.h"

#include <gtest/gtest.h>

namespace hoplite {
namespace {

constexpr NodeId kA{1}, kB{2};

MessageIn message(NodeId from, std::uint64_t epoch, std::size_t payload_bytes = 0) {
  return {from, Message{Epoch{epoch}, {}, {}, ResyncDone{}}, Bytes(payload_bytes)};
}

TEST(Parked, GivesBackWhatItKeepsInOrderOfArrival) {
  Parked parked(4, 1_MiB);
  parked.park(message(kB, 2));
  parked.park(message(kA, 3));
  const auto taken = parked.take();
  ASSERT_EQ(taken.size(), 2u);
  EXPECT_EQ(taken[0].from, kB);
  EXPECT_EQ(taken[1].from, kA);
  EXPECT_EQ(parked.size(), 0u);
  EXPECT_FALSE(parked.take_dropped(kA, Epoch{3}));
}

TEST(Parked, DropsAllOfThePeerThatSaysTooMuchAndNothingOfOthers) {
  Parked parked(2, 1_MiB);
  parked.park(message(kA, 2));
  for (int i = 0; i < 3; ++i) parked.park(message(kB, 2));
  parked.check_invariants();
  EXPECT_EQ(parked.size(), 1u);
  EXPECT_FALSE(parked.take_dropped(kA, Epoch{2}));
  EXPECT_TRUE(parked.take_dropped(kB, Epoch{2}));
  EXPECT_FALSE(parked.take_dropped(kB, Epoch{2}));  // asked once
}

TEST(Parked, DropsWhatThePeerSaysAfterwardsUntilItIsAskedInTheNewestViewOfThat) {
  Parked parked(1, 1_MiB);
  parked.park(message(kA, 2));
  parked.park(message(kA, 2));
  parked.park(message(kA, 3));
  EXPECT_EQ(parked.size(), 0u);
  EXPECT_FALSE(parked.take_dropped(kA, Epoch{2}));
  EXPECT_TRUE(parked.take_dropped(kA, Epoch{3}));
  parked.park(message(kA, 4));
  EXPECT_EQ(parked.size(), 1u);
}

TEST(Parked, DropsThePeerWithTheMostBytesWhenAllTogetherAreTooMany) {
  Parked parked(100, 64_KiB);
  parked.park(message(kA, 2, 40'000));
  parked.park(message(kB, 2, 20'000));
  parked.park(message(kB, 2, 10'000));
  parked.check_invariants();
  EXPECT_TRUE(parked.take_dropped(kA, Epoch{2}));
  EXPECT_FALSE(parked.take_dropped(kB, Epoch{2}));
  EXPECT_EQ(parked.size(), 2u);
}

// Each of these holds more than 8 KiB beside itself.
TEST(Parked, CountsAllThatAMessageHolds) {
  constexpr std::size_t kMany = 4096;
  std::vector<PeerMessage> bodies;
  const auto add = [&]<typename M>(M body, auto M::* field) {
    (body.*field).resize(kMany * 2);
    bodies.emplace_back(std::move(body));
  };
  add(ReduceReport{}, &ReduceReport::folded);
  add(ReduceReport{}, &ReduceReport::lost);
  add(ReduceReport{}, &ReduceReport::committed);
  add(ReduceReport{}, &ReduceReport::text);
  add(ReduceState{}, &ReduceState::members);
  add(ReduceState{}, &ReduceState::lost);
  add(ReduceState{}, &ReduceState::text);
  add(ReduceWant{}, &ReduceWant::confirmed);
  add(ReduceOwn{}, &ReduceOwn::owned);
  add(ReduceOwn{}, &ReduceOwn::members);
  add(Claim{}, &Claim::stripes);
  add(Progress{}, &Progress::stripes);
  add(Push{}, &Push::forward);
  add(PushTo{}, &PushTo::receivers);
  add(Lost{}, &Lost::text);
  Grant grant;
  grant.meta.parts.resize(kMany);
  bodies.emplace_back(grant);
  grant.meta.parts.clear();
  grant.meta.layout = std::string(kMany * 2, 'x');
  bodies.emplace_back(grant);
  for (const PeerMessage& body : bodies) {
    Parked parked(2, 2 * kMany * 2);
    for (int i = 0; i < 2; ++i) parked.park({kA, Message{Epoch{2}, {}, {}, body}, {}});
    EXPECT_TRUE(parked.take_dropped(kA, Epoch{2})) << "kind " << body.index();
  }
}

TEST(Parked, ForgetsAPeerWhoseLinkIsLost) {
  Parked parked(1, 1_MiB);
  parked.park(message(kA, 2));
  parked.park(message(kB, 2));
  parked.park(message(kB, 2));
  parked.forget(kA);
  parked.forget(kB);
  parked.check_invariants();
  EXPECT_EQ(parked.size(), 0u);
  EXPECT_FALSE(parked.take_dropped(kB, Epoch{2}));
}

}  // namespace
}  // namespace hoplite

// SPDX-License-Identifier: Apache-2.0
#include "io/liveness/liveness_rules.h"

#include <gtest/gtest.h>

#include <vector>

namespace hoplite {
namespace {

constexpr NodeId kPeer{2};
constexpr Incarnation kLife{1};

class LivenessRulesTest : public ::testing::Test {
 protected:
  void open(std::uint8_t rail = 0, Incarnation life = kLife) {
    rules_.handle_watch(kPeer, life, RailId{rail});
  }
  void end(RailEnd how, std::uint8_t rail = 0) { rules_.handle_end(kPeer, RailId{rail}, how); }
  // Ticks on time for as long; with a pulse before each, if asked.
  void pass(Duration time, bool is_heard = false) {
    for (const Instant last = now_ + time; now_ < last;) {
      now_ = now_ + kPulseEvery;
      if (is_heard) rules_.handle_pulse(kPeer);
      rules_.handle_tick(now_);
    }
  }
  std::vector<Verdict> verdicts() {
    std::vector<Verdict> sent;
    while (const auto event = rules_.poll_event()) {
      EXPECT_EQ(event->node, kPeer);
      sent.push_back(event->verdict);
    }
    return sent;
  }
  using Verdicts = std::vector<Verdict>;

  LivenessRules rules_{LivenessLimits{}};
  Instant now_{1'000'000'000};
};

TEST_F(LivenessRulesTest, TheEndOfTheLastConnectionIsADeathUnlessTheNetworkOrAGoodbyeMadeIt) {
  struct Case {
    std::vector<RailEnd> ends;  // of rail 0, 1, ...
    bool goodbye;
    Verdicts expected;
  };
  constexpr auto kClosed = RailEnd::kClosed;
  constexpr auto kCut = RailEnd::kCut;
  const std::vector<Case> cases{
      {{kClosed}, false, {Verdict::kDead}},
      {{kCut}, false, {Verdict::kUnreachable}},
      {{kClosed}, true, {Verdict::kLeft}},
      {{kCut}, true, {Verdict::kLeft}},
      {{kClosed, kClosed}, false, {Verdict::kRailLost, Verdict::kDead}},
      {{kClosed, kCut}, false, {Verdict::kRailLost, Verdict::kDead}},
      {{kCut, kClosed}, false, {Verdict::kRailCut, Verdict::kDead}},
      {{kCut, kCut}, false, {Verdict::kRailCut, Verdict::kUnreachable}},
      {{kCut, kCut, kCut}, false, {Verdict::kRailCut, Verdict::kRailCut, Verdict::kUnreachable}},
  };
  for (const Case& each : cases) {
    for (std::uint8_t rail = 0; rail < each.ends.size(); ++rail) open(rail);
    if (each.goodbye) rules_.handle_goodbye(kPeer);
    for (std::uint8_t rail = 0; rail < each.ends.size(); ++rail) end(each.ends[rail], rail);
    EXPECT_EQ(verdicts(), each.expected);
  }
}

TEST_F(LivenessRulesTest, ARailThatIsOpenAgainForgetsHowItEnded) {
  open(0);
  open(1);
  end(RailEnd::kClosed, 0);
  open(0);
  end(RailEnd::kCut, 0);
  end(RailEnd::kCut, 1);
  EXPECT_EQ(verdicts(), (Verdicts{Verdict::kRailLost, Verdict::kRailCut, Verdict::kUnreachable}));
}

TEST_F(LivenessRulesTest, SilenceIsSuspectThenFrozenAndAPulseEndsIt) {
  open();
  pass(400_ms);
  EXPECT_EQ(verdicts(), Verdicts{});
  pass(2_s);
  EXPECT_EQ(verdicts(), Verdicts{Verdict::kSuspect});
  EXPECT_GE(rules_.silence(kPeer), 2_s);
  pass(100_ms, true);
  EXPECT_EQ(verdicts(), Verdicts{Verdict::kRecovered});
  EXPECT_EQ(rules_.silence(kPeer), Duration{});
  pass(2'900_ms);
  EXPECT_EQ(verdicts(), Verdicts{Verdict::kSuspect});
  pass(100_ms);
  EXPECT_EQ(verdicts(), Verdicts{Verdict::kFrozen});
  pass(10_s);
  end(RailEnd::kClosed);
  EXPECT_EQ(verdicts(), Verdicts{});  // its life is over
}

TEST_F(LivenessRulesTest, WhoPulsesIsNeverSuspectHoweverLong) {
  open();
  pass(600_s, true);
  EXPECT_EQ(verdicts(), Verdicts{});
}

TEST_F(LivenessRulesTest, WhoWasStoppedHimselfAccusesNobodyOfTheSilence) {
  open();
  pass(100_ms, true);
  for (int i = 0; i < 14; ++i) {  // runs for a moment every hour, and hears nothing
    now_ = now_ + 3600_s;
    rules_.handle_tick(now_);
  }
  EXPECT_EQ(verdicts(), Verdicts{Verdict::kSuspect});
  now_ = now_ + 3600_s;
  rules_.handle_tick(now_);
  EXPECT_EQ(verdicts(), Verdicts{Verdict::kFrozen});  // 15 gaps count for 200 ms each
}

TEST_F(LivenessRulesTest, ANewLifeStartsAfresh) {
  open(0);
  open(1);
  pass(2'900_ms);
  EXPECT_EQ(verdicts(), Verdicts{Verdict::kSuspect});
  open(0, Incarnation{2});
  pass(400_ms);
  end(RailEnd::kClosed, 0);
  EXPECT_EQ(verdicts(), Verdicts{Verdict::kDead});  // rail 1 was the earlier life's
}

TEST_F(LivenessRulesTest, NothingIsSaidOfAForgottenPeerOrAStranger) {
  open();
  rules_.handle_forget(kPeer);
  pass(10_s);
  rules_.handle_pulse(kPeer);
  rules_.handle_goodbye(kPeer);
  end(RailEnd::kClosed);
  EXPECT_EQ(verdicts(), Verdicts{});
}

}  // namespace
}  // namespace hoplite

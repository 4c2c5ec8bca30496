// SPDX-License-Identifier: Apache-2.0
// Each event in each state of a link, at the node that dials and at the one that listens.
#include "io/links/link_rules.h"

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hoplite {
namespace {

constexpr NodeId kPeer{2};
constexpr NodeId kDialler{1}, kListener{3};
constexpr Incarnation kLife{5}, kNextLife{6}, kEarlierLife{4};
constexpr RailId kRail{0};
constexpr LinkLimits kLimits{};

using State = Link::State;
constexpr std::array kStates{State::kUnwanted, State::kNeverUp, State::kDown, State::kUp,
                             State::kAnnounced};

// In each state the peer's liveness connection is watched and control is open. Bulk is open if the
// link is up. The dialler's unwanted link alone has no connection.
class Player {
 public:
  Player(NodeId self, State state) : rules_(self, kLimits), dials_(self < kPeer) {
    if (!dials_) meet();
    if (state == State::kUnwanted && !dials_) return;
    connect();
    if (dials_) meet();
    if (state == State::kUnwanted) rules_.handle_disconnect(kPeer);
    perform();
    if (state == State::kUnwanted || state == State::kNeverUp) return;
    open(ConnectionKind::kBulk);
    if (state != State::kUp) rules_.handle_announced(kPeer);
    if (state == State::kDown) {
      end(ConnectionKind::kBulk);
      ++attempt_;
      open(ConnectionKind::kControl);
    }
  }

  void connect(Incarnation life = kLife) {
    rules_.handle_connect({kPeer, life, {"127.0.0.1:1"}}, now_);
    perform();
  }
  LinkRules::Answer greet(ConnectionKind kind, Incarnation life, std::uint32_t attempt) {
    Hello hello;
    hello.from = kPeer;
    hello.from_incarnation = life;
    hello.kind = kind;
    hello.rail = kRail;
    hello.attempt = attempt;
    return rules_.handle_hello(hello, ++token_, now_);
  }
  void open(ConnectionKind kind) {
    if (dials_) {
      dial();
    } else if (greet(kind, kLife, attempt_) != LinkRules::Answer::kJoined) {
      return;
    }
    const Link* const link = rules_.find(kPeer);
    if (link == nullptr || link->rails.empty() || token(kind) == 0) return;
    rules_.handle_open(kPeer, kRail, kind);
    perform();
  }
  void end(ConnectionKind kind) {
    rules_.handle_end(kPeer, kRail, token(kind), now_);
    perform();
  }
  void judge(Verdict verdict) { rules_.handle_verdict({kPeer, kLife, kRail, verdict}, now_); }
  void pass(Duration time) {
    now_ = now_ + time;
    rules_.handle_timeout(now_);
  }
  LinkRules& rules() { return rules_; }
  [[nodiscard]] Instant now() const { return now_; }
  [[nodiscard]] std::uint32_t attempt() const { return attempt_; }

  void forget_reports() { reports_.clear(); }
  // Returns the link's state and its reports: "up +U" for a link that comes up.
  std::string finish_and_describe() {
    finish();
    constexpr std::array<std::string_view, 5> kNames{"unwanted", "never", "down", "up",
                                                     "announced"};
    const Link* const link = rules_.find(kPeer);
    const State state = link == nullptr ? State::kUnwanted : link->state;
    std::string text(kNames.at(static_cast<std::size_t>(state)));
    if (!reports_.empty()) text += " +" + reports_;
    return text;
  }

 private:
  [[nodiscard]] std::uint64_t token(ConnectionKind kind) const {
    Link link = *rules_.find(kPeer);
    return link.rails.at(kRail.value).slot(kind).token;
  }
  void meet() {
    if (dials_) {
      dial();
    } else {
      EXPECT_EQ(greet(ConnectionKind::kLiveness, kLife, attempt_), LinkRules::Answer::kJoined);
    }
    rules_.handle_handed_over(kPeer, kRail);
    open(ConnectionKind::kControl);
  }
  void dial() {
    rules_.handle_timeout(now_);
    perform();
  }
  void finish() {
    perform();
    rules_.check_invariants();
  }
  void perform() {
    while (const auto action = rules_.poll_action()) {
      if (const auto* dial = std::get_if<DialRail>(&*action)) {
        rules_.handle_dialling(dial->node, dial->rail, dial->kind, ++token_);
      } else if (const auto* dead = std::get_if<ReportDead>(&*action)) {
        reports_ += is_certain(dead->cause) ? "X" : "x";
      } else if (std::holds_alternative<ReportUp>(*action)) {
        reports_ += "U";
      } else if (std::holds_alternative<ReportDown>(*action)) {
        reports_ += "D";
      } else if (std::holds_alternative<SayGoodbye>(*action)) {
        reports_ += "G";
      } else if (std::holds_alternative<ForgetPeer>(*action)) {
        reports_ += "F";
      }
    }
  }

  LinkRules rules_;
  bool dials_;
  Instant now_{1'000'000'000};
  std::uint64_t token_ = 0;
  std::uint32_t attempt_ = 1;
  std::string reports_;
};

struct Case {
  std::string_view name;
  std::function<void(Player&)> event;
  std::array<std::string_view, 5> expected;  // in the order of kStates
};

void expect_each(NodeId self, const std::vector<Case>& cases) {
  for (const Case& each : cases) {
    for (std::size_t i = 0; i < kStates.size(); ++i) {
      Player player(self, kStates.at(i));
      player.forget_reports();
      each.event(player);
      EXPECT_EQ(player.finish_and_describe(), each.expected.at(i))
          << each.name << " in state " << i;
    }
  }
}

constexpr std::array<std::string_view, 5> kNoChange{"unwanted", "never", "down", "up", "announced"};

// U: LinkUp, D: LinkDown, X: PeerDead for certain, x: PeerDead that the view decides, G: Goodbye,
// F: its liveness connections are forgotten.
std::vector<Case> cases_of_both() {
  using Kind = ConnectionKind;
  const auto judged = [](Verdict verdict) { return [=](Player& p) { p.judge(verdict); }; };
  const auto refuse = [](Player& p) { p.rules().handle_refused(kPeer, kRail, p.now()); };
  const auto part = [](Player& p) { p.rules().handle_goodbye(kPeer); };
  return {
      {"Connect again",
       [](Player& p) { p.connect(); },
       {"never", "never", "down", "up", "announced"}},
      {"LinkUp is taken",
       [](Player& p) { p.rules().handle_announced(kPeer); },
       {"unwanted", "never", "down", "announced", "announced"}},
      {"a dial is taken", [](Player& p) { p.rules().handle_taken(kPeer, kRail); }, kNoChange},
      {"a dial is refused",
       refuse,
       {"unwanted", "unwanted +FX", "unwanted +FX", "up", "announced"}},
      {"Goodbye", part, kNoChange},
      {"a refusal after Goodbye",
       [=](Player& p) {
         part(p);
         refuse(p);
       },
       kNoChange},
      {"bulk opens",
       [](Player& p) { p.open(Kind::kBulk); },
       {"unwanted", "up +U", "up +U", "up", "announced"}},
      {"control ends",
       [](Player& p) { p.end(Kind::kControl); },
       {"unwanted", "never", "down", "down +D", "down +D"}},
      {"bulk ends",
       [](Player& p) { p.end(Kind::kBulk); },
       {"unwanted", "never", "down", "down +D", "down +D"}},
      {"suspect", judged(Verdict::kSuspect), kNoChange},
      {"recovered", judged(Verdict::kRecovered), kNoChange},
      {"a rail is lost", judged(Verdict::kRailLost), kNoChange},
      {"a rail is cut",
       judged(Verdict::kRailCut),
       {"unwanted", "never", "down", "down +D", "down +D"}},
      {"left", judged(Verdict::kLeft), kNoChange},
      {"dead",
       judged(Verdict::kDead),
       {"unwanted", "unwanted +X", "unwanted +X", "unwanted +DX", "unwanted +DX"}},
      {"unreachable",
       judged(Verdict::kUnreachable),
       {"unwanted", "unwanted +x", "unwanted +x", "unwanted +Dx", "unwanted +Dx"}},
      {"frozen",
       judged(Verdict::kFrozen),
       {"unwanted", "unwanted +x", "unwanted +x", "unwanted +Dx", "unwanted +Dx"}},
      {"the patience with a link that was up ends",
       [](Player& p) { p.pass(kLimits.link_down_max); },
       {"unwanted", "never", "unwanted +Fx", "up", "announced"}},
      {"the patience with a new link ends",
       [](Player& p) { p.pass(kLimits.link_down_max * 10); },
       {"unwanted", "unwanted +Fx", "unwanted +Fx", "up", "announced"}},
  };
}

TEST(LinkRules, EachEventInEachStateOfTheListener) {
  using Kind = ConnectionKind;
  using Answer = LinkRules::Answer;
  const auto greet = [](Kind kind, Incarnation life, std::uint32_t attempts, Answer expected) {
    return [=](Player& p) { EXPECT_EQ(p.greet(kind, life, p.attempt() + attempts), expected); };
  };
  std::vector<Case> cases = cases_of_both();
  const std::vector<Case> own{
      {"Connect of the next life",
       [](Player& p) { p.connect(kNextLife); },
       {"never +F", "never +F", "never +F", "never +DF", "never +DF"}},
      {"Disconnect",
       [](Player& p) { p.rules().handle_disconnect(kPeer); },
       {"unwanted", "unwanted +F", "unwanted +F", "unwanted +GF", "unwanted +GF"}},
      {"the next life dials",
       greet(Kind::kControl, kNextLife, 0, Answer::kJoined),
       {"unwanted +F", "unwanted +FX", "unwanted +FX", "unwanted +FDX", "unwanted +FDX"}},
      {"an earlier life dials", greet(Kind::kControl, kEarlierLife, 1, Answer::kEarlierLife),
       kNoChange},
      {"the next attempt",
       greet(Kind::kControl, kLife, 1, Answer::kJoined),
       {"unwanted", "never", "down", "down +D", "down +D"}},
      {"an earlier attempt", greet(Kind::kBulk, kLife, -1U, Answer::kEarlierAttempt), kNoChange},
      {"the same rail twice", greet(Kind::kControl, kLife, 0, Answer::kRailTaken), kNoChange},
      {"liveness of any attempt", greet(Kind::kLiveness, kLife, -1U, Answer::kJoined), kNoChange},
  };
  cases.insert(cases.end(), own.begin(), own.end());
  expect_each(kListener, cases);
}

TEST(LinkRules, EachEventInEachStateOfTheDialler) {
  const auto meet = [](Incarnation life) {
    return [=](Player& p) { p.rules().handle_other_life(kPeer, life, p.now()); };
  };
  std::vector<Case> cases = cases_of_both();
  const std::vector<Case> own{
      {"Connect of the next life",
       [](Player& p) { p.connect(kNextLife); },
       {"never", "never +F", "never +F", "never +DF", "never +DF"}},
      {"Disconnect",
       [](Player& p) { p.rules().handle_disconnect(kPeer); },
       {"unwanted", "unwanted +F", "unwanted +F", "unwanted +GF", "unwanted +GF"}},
      {"the next life answers",
       meet(kNextLife),
       {"unwanted", "unwanted +FX", "unwanted +FX", "unwanted +FDX", "unwanted +FDX"}},
      {"an earlier life answers", meet(kEarlierLife), kNoChange},
  };
  cases.insert(cases.end(), own.begin(), own.end());
  expect_each(kDialler, cases);
}

TEST(LinkRules, ADeadLifeDoesNotComeBack) {
  for (const Incarnation life : {kEarlierLife, kLife}) {
    Player player(kListener, State::kAnnounced);
    player.judge(Verdict::kDead);
    player.finish_and_describe();
    EXPECT_EQ(player.greet(ConnectionKind::kControl, life, 9), LinkRules::Answer::kEarlierLife);
  }
  Player player(kListener, State::kAnnounced);
  player.judge(Verdict::kDead);
  player.finish_and_describe();
  EXPECT_EQ(player.greet(ConnectionKind::kControl, kNextLife, 0), LinkRules::Answer::kJoined);
}

TEST(LinkRules, AViewThatListsADeadLifeAgainBringsItNotBack) {
  for (const NodeId self : {kDialler, kListener}) {
    Player player(self, State::kAnnounced);
    player.judge(Verdict::kFrozen);
    player.finish_and_describe();
    player.forget_reports();
    player.connect();
    player.pass(kLimits.link_down_max * 10);
    EXPECT_EQ(player.finish_and_describe(), "unwanted");
    EXPECT_TRUE(player.rules().find(kPeer)->rails.front().has_none());
    player.connect(kNextLife);
    EXPECT_EQ(player.finish_and_describe(), "never");
  }
}

TEST(LinkRules, ADisconnectOfThePeersLastLifeKeepsTheConnectionsOfItsNextOne) {
  Player player(kListener, State::kAnnounced);
  for (const auto kind :
       {ConnectionKind::kLiveness, ConnectionKind::kControl, ConnectionKind::kBulk}) {
    EXPECT_EQ(player.greet(kind, kNextLife, 1), LinkRules::Answer::kJoined);
    if (kind == ConnectionKind::kLiveness) {
      player.rules().handle_handed_over(kPeer, kRail);
    } else {
      player.rules().handle_open(kPeer, kRail, kind);
    }
  }
  player.finish_and_describe();
  player.forget_reports();
  player.rules().handle_disconnect(kPeer);
  EXPECT_EQ(player.finish_and_describe(), "unwanted");
  player.connect(kNextLife);
  EXPECT_EQ(player.finish_and_describe(), "up +U");
  player.forget_reports();
  player.rules().handle_disconnect(kPeer);
  EXPECT_EQ(player.finish_and_describe(), "unwanted +GF");
}

TEST(LinkRules, AViewThatComesLaterThanThePeersNextLifeKeepsItsConnections) {
  Player player(kListener, State::kUnwanted);
  player.forget_reports();
  EXPECT_EQ(player.finish_and_describe(), "unwanted");
  player.open(ConnectionKind::kBulk);
  player.connect(kEarlierLife);
  EXPECT_EQ(player.finish_and_describe(), "unwanted +X");
  player.forget_reports();
  player.connect();
  EXPECT_EQ(player.finish_and_describe(), "up +U");
}

TEST(LinkRules, ANodeThatLeavesSaysGoodbyeAlsoToALifeThatWaits) {
  Player player(kListener, State::kNeverUp);
  EXPECT_EQ(player.greet(ConnectionKind::kLiveness, kNextLife, 1), LinkRules::Answer::kJoined);
  player.rules().handle_handed_over(kPeer, kRail);
  player.finish_and_describe();
  player.forget_reports();
  player.rules().handle_leaving();
  EXPECT_EQ(player.finish_and_describe(), "unwanted +F");
}

// A dial that is refused at once, before the owner has polled the others.
TEST(LinkRules, ADeathVoidsTheOtherDialsOfItsPeer) {
  LinkRules rules(kDialler, kLimits);
  const Instant now{1'000'000'000};
  rules.handle_connect({kPeer, kLife, {"127.0.0.1:1"}}, now);
  rules.handle_timeout(now);
  EXPECT_EQ(rules.poll_action(), LinkAction(DialRail{kPeer, kRail, ConnectionKind::kControl}));
  rules.handle_refused(kPeer, kRail, now);
  EXPECT_EQ(rules.poll_action(), LinkAction(ReportDead{kPeer, kLife, DeathCause::kRefused}));
  EXPECT_EQ(rules.poll_action(), std::nullopt);
}

TEST(LinkRules, AListenerProbesAndADiallerWaitsLongerEachTime) {
  for (const NodeId self : {kDialler, kListener}) {
    LinkRules rules(self, kLimits);
    Instant now{1'000'000'000};
    rules.handle_connect({kPeer, kLife, {"127.0.0.1:1"}}, now);
    Instant last = now;
    std::vector<Duration> waits;
    while (waits.size() < 9) {
      now = rules.poll_timeout().value_or(now);
      rules.handle_timeout(now);
      bool has_dialled = false;
      while (const auto action = rules.poll_action()) {  // a dial of which nothing is heard
        EXPECT_EQ(std::holds_alternative<ProbeRail>(*action), self == kListener);
        has_dialled = true;
      }
      if (has_dialled) waits.push_back(now - std::exchange(last, now));
    }
    const Duration first = self == kListener ? kLimits.redial_max : Duration{};
    EXPECT_EQ(waits, (std::vector<Duration>{first, 5_ms, 10_ms, 20_ms, 40_ms, 80_ms, 160_ms,
                                            kLimits.redial_max, kLimits.redial_max}));
  }
}

}  // namespace
}  // namespace hoplite

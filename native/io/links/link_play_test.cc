// SPDX-License-Identifier: Apache-2.0
// Plays LinkRules and LivenessRules of several nodes against each other, from seeds and in virtual
// time: refusals, resets, cut rails, deaths, next lives and Goodbyes, all with random delays.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/prng.h"
#include "io/links/link_rules.h"

namespace hoplite {
namespace {

constexpr std::uint64_t kSeeds = 2000;  // 0.4 s of a core
constexpr Duration kFaults = 20_s;
// After the last fault a death may still be found, by silence and then by a link that stays down.
// The node then comes back as another life, and dials at once. 40,000 seeds take 6 s at most.
constexpr Duration kCalmMax = 10_s;
constexpr Duration kStays = 5_s;
constexpr LinkLimits kLimits{};

class Play {
 public:
  explicit Play(std::uint64_t seed) : random_(seed) {
    rails_ = 1 + random_.below(2);
    const std::uint64_t hosts = 2 + random_.below(2);
    for (std::uint64_t node = 1; node <= hosts; ++node) start(node, 1_s);
  }

  // Returns how long after the last fault all links agree; nullopt if they do not.
  std::optional<Duration> run() {
    for (Instant at = now_; at < now_ + kFaults; at = at + milliseconds(1, 1500)) {
      events_.emplace(at, [this] { strike(); });
    }
    run_until(now_ + kFaults);
    for (std::size_t rail = 0; rail < rails_; ++rail) heal(rail);
    const Instant calm = now_;
    is_calm_ = true;
    for (std::uint64_t node = 1; node <= hosts_.size(); ++node) {
      if (!host(node).rules) start(node, milliseconds(0, 1000));
    }
    while (now_ < calm + kCalmMax) {
      run_until(now_ + 10_ms);
      if (!is_agreed()) continue;
      const Duration taken = now_ - calm;
      const std::uint64_t reports = reports_;
      run_until(now_ + kStays);
      if (reports == reports_ && is_agreed()) return taken;
    }
    return std::nullopt;
  }

  struct Counts {
    std::uint64_t ups = 0, downs = 0, deaths = 0, goodbyes = 0, refusals = 0, other_lives = 0;
  };
  [[nodiscard]] const Counts& counts() const { return counts_; }

 private:
  struct Seen {  // what one life of a node was told of one peer
    Incarnation wanted, up, highest_up, dead;
  };
  struct Host {
    NodeId node;
    Incarnation life;
    std::optional<LinkRules> rules;  // nullopt: no process
    LivenessRules liveness{kLimits.liveness};
    std::map<NodeId, Seen> seen;
    std::map<NodeId, Incarnation> view;  // the members that it was told
    std::uint64_t view_epoch = 0;
    std::optional<Instant> timer;
  };
  // A connection: its two ends, and the time before which nothing more arrives at each.
  struct Pipe {
    std::array<NodeId, 2> nodes;  // the dialler's, the listener's
    std::array<Incarnation, 2> lives;
    ConnectionKind kind = ConnectionKind::kControl;
    RailId rail;
    std::uint32_t attempt = 0;
    bool is_probe = false;
    std::array<bool, 2> is_closed{}, is_watched{};
    std::array<Instant, 2> arrives;
  };

  Host& host(std::uint64_t node) { return hosts_.at(NodeId{node}); }
  Duration milliseconds(std::uint64_t least, std::uint64_t more) {
    return 1_ms * static_cast<std::int64_t>(least + random_.below(more + 1));
  }
  Duration delay() { return random_.chance(10) ? milliseconds(0, 300) : milliseconds(0, 3); }

  // ---- time ----

  void run_until(Instant end) {
    while (!events_.empty() && events_.begin()->first <= end) {
      auto event = events_.extract(events_.begin());
      now_ = std::max(now_, event.key());
      event.mapped()();
    }
    now_ = end;
  }
  void after(Duration wait, std::function<void()> event) {
    events_.emplace(now_ + wait, std::move(event));
  }

  // ---- processes and the view ----

  void start(std::uint64_t number, Duration wait) {
    const NodeId node{number};
    hosts_[node].node = node;
    after(wait, [this, node] {
      Host& each = hosts_.at(node);
      if (each.rules) return;
      const Incarnation life{each.life.value + 1};
      each = {};
      each.node = node;
      each.life = life;
      each.rules.emplace(node, kLimits);
      view_[node] = life;
      spread_view();
    });
  }
  void stop(Host& each) {
    each.rules.reset();
    for (auto& [token, pipe] : pipes_) {
      for (const std::size_t end : {0U, 1U}) {
        if (pipe.nodes.at(end) == each.node) close(token, end);
      }
    }
    start(each.node.value, random_.chance(30) ? delay() : milliseconds(0, 4000));
  }
  void leave(Host& each) {
    each.rules->handle_leaving();
    for (auto& [node, seen] : each.seen) seen.wanted = seen.up = {};
    perform(each);
    view_.erase(each.node);
    stop(each);
    spread_view();
  }
  void spread_view() {
    ++view_epoch_;
    for (const auto& [node, each] : hosts_) {
      const Duration wait = random_.chance(30) ? milliseconds(0, 500) : delay();
      after(wait, [this, node = node, view = view_, epoch = view_epoch_] {
        Host& at = hosts_.at(node);
        if (at.rules && epoch > at.view_epoch) take_view(at, view, epoch);
      });
    }
  }
  void take_view(Host& at, const std::map<NodeId, Incarnation>& view, std::uint64_t epoch) {
    at.view_epoch = epoch;
    const auto own = view.find(at.node);
    if (own == view.end() || own->second != at.life) {  // taken for dead: comes back anew
      if (own == view.end() || own->second > at.life) stop(at);
      return;
    }
    for (const auto& [node, life] : std::exchange(at.view, view)) {
      const auto next = view.find(node);
      if (node == at.node || (next != view.end() && random_.chance(50))) continue;
      if (next != view.end() && next->second == life) continue;
      at.rules->handle_disconnect(node);
      at.seen[node].wanted = at.seen[node].up = {};
      perform(at);
    }
    for (const auto& [node, life] : view) {
      if (node == at.node) continue;
      if (at.seen[node].dead < life) at.seen[node].wanted = life;
      at.rules->handle_connect({node, life, std::vector<std::string>(rails_, "address")}, now_);
      perform(at);
    }
  }

  // ---- faults ----

  void strike() {
    if (is_calm_) return;
    Host& each = host(1 + random_.below(hosts_.size()));
    const std::size_t rail = random_.below(rails_);
    switch (random_.below(8)) {
      case 0:
        if (each.rules) stop(each);
        return;
      case 1:
        if (each.rules && random_.chance(50)) leave(each);
        return;
      case 2:
        cut_.at(rail) = true;
        end_watched(rail);
        after(milliseconds(1, 3000), [this, rail] { heal(rail); });
        return;
      default:
        reset();
    }
  }
  void heal(std::size_t rail) {
    cut_.at(rail) = false;
    for (auto& event : std::exchange(held_.at(rail), {})) event();
  }
  void end_watched(std::size_t rail) {  // the kernel's limit on unacknowledged bytes
    for (const auto& [token, pipe] : pipes_) {
      if (pipe.rail.value != rail || pipe.kind != ConnectionKind::kLiveness) continue;
      for (const std::size_t end : {0U, 1U}) {
        after(kLimits.liveness.cut, [this, token = token, end, rail] {
          const auto found = pipes_.find(token);
          if (found == pipes_.end() || !cut_.at(rail) || !found->second.is_watched.at(end)) return;
          found->second.is_closed.at(end) = true;
          end_liveness(found->second, end, RailEnd::kCut);
        });
      }
    }
  }
  void reset() {  // of a connection, while both processes live
    if (pipes_.empty()) return;
    auto each = pipes_.begin();
    std::advance(each, random_.below(pipes_.size()));
    if (each->second.kind == ConnectionKind::kLiveness && !random_.chance(5)) return;
    for (const std::size_t end : {0U, 1U}) send_end(each->first, end);
  }

  // ---- connections ----

  // Runs `arrival` at one end, after all that was sent to it before.
  void send(std::uint64_t token, std::size_t end, std::function<void(Pipe&, Host&)> arrival) {
    Pipe& pipe = pipes_.at(token);
    Instant& at = pipe.arrives.at(end);
    at = std::max(at, now_ + delay());
    events_.emplace(
        at, [this, token, end, arrival = std::move(arrival)] { arrive(token, end, arrival); });
  }
  void arrive(std::uint64_t token, std::size_t end,
              const std::function<void(Pipe&, Host&)>& arrival) {
    const auto found = pipes_.find(token);
    if (found == pipes_.end()) return;
    Pipe& pipe = found->second;
    if (cut_.at(pipe.rail.value)) {
      held_.at(pipe.rail.value).push_back([=, this] { arrive(token, end, arrival); });
      return;
    }
    Host& at = hosts_.at(pipe.nodes.at(end));
    if (pipe.is_closed.at(end) || !at.rules || at.life != pipe.lives.at(end)) return;
    arrival(pipe, at);
    if (at.rules) perform(at);
  }
  void send_end(std::uint64_t token, std::size_t end) {
    send(token, end, [this, token, end](Pipe& pipe, Host& at) {
      close(token, end);
      if (pipe.is_probe) return;
      if (std::exchange(pipe.is_watched.at(end), false)) {
        end_liveness(pipe, end, RailEnd::kClosed);
      } else {
        at.rules->handle_end(pipe.nodes.at(1 - end), pipe.rail, name(token, end), now_);
      }
    });
  }
  void close(std::uint64_t token, std::size_t end) {
    Pipe& pipe = pipes_.at(token);
    if (std::exchange(pipe.is_closed.at(end), true)) return;
    send_end(token, 1 - end);
  }
  void end_liveness(Pipe& pipe, std::size_t end, RailEnd how) {
    pipe.is_watched.at(end) = false;
    Host& at = hosts_.at(pipe.nodes.at(end));
    if (!at.rules || at.life != pipe.lives.at(end)) return;
    at.liveness.handle_end(pipe.nodes.at(1 - end), pipe.rail, how);
    judge(at);
  }
  void judge(Host& at) {
    while (const auto event = at.liveness.poll_event()) {
      at.rules->handle_verdict(*event, now_);
      perform(at);
    }
  }
  // The token of one end in its node's rules.
  static std::uint64_t name(std::uint64_t token, std::size_t end) { return token * 2 + end; }

  std::uint64_t begin(Host& from, NodeId to, RailId rail) {
    const std::uint64_t token = next_token_++;
    Pipe pipe;
    pipe.nodes = {from.node, to};
    pipe.lives = {from.life, hosts_.at(to).life};
    pipe.rail = rail;
    pipes_.emplace(token, pipe);
    return token;
  }
  void dial(Host& from, const DialRail& order) {
    if (!hosts_.at(order.node).rules && random_.chance(30)) {  // refused at once
      ++counts_.refusals;
      from.rules->handle_refused(order.node, order.rail, now_);
      return;
    }
    const std::uint64_t token = begin(from, order.node, order.rail);
    Pipe& pipe = pipes_.at(token);
    pipe.kind = order.kind;
    pipe.attempt = from.rules->find(order.node)->attempt;
    from.rules->handle_dialling(order.node, order.rail, order.kind, name(token, 0));
    send(token, 0, [this, token](Pipe& each, Host& at) { finish_dial(token, each, at); });
    after(kLimits.handshake_max, [this, token] { end_late(token); });
  }
  void finish_dial(std::uint64_t token, Pipe& pipe, Host& at) {
    const NodeId node = pipe.nodes[1];
    Host& to = hosts_.at(node);
    if (!to.rules) {
      ++counts_.refusals;
      pipe.is_closed = {true, true};
      at.rules->handle_end(node, pipe.rail, name(token, 0), now_);
      at.rules->handle_refused(node, pipe.rail, now_);
      return;
    }
    pipe.lives[1] = to.life;
    at.rules->handle_taken(node, pipe.rail);
    const Incarnation expected = at.rules->find(node)->member.incarnation;
    send(token, 1, [this, token, expected](Pipe& /*pipe*/, Host& listener) {
      const Incarnation answers = listener.life;
      send(token, 0, [this, token, expected, answers](Pipe& answered, Host& dialler) {
        finish_handshake(token, answered, dialler, expected, answers);
      });
    });
  }
  void finish_handshake(std::uint64_t token, Pipe& pipe, Host& at, Incarnation expected,
                        Incarnation answers) {
    if (answers != expected) {
      ++counts_.other_lives;
      at.rules->handle_other_life(pipe.nodes[1], answers, now_);
      perform(at);
      if (!pipe.is_closed[0]) {
        close(token, 0);
        at.rules->handle_end(pipe.nodes[1], pipe.rail, name(token, 0), now_);
      }
      return;
    }
    send(token, 1, [this, token](Pipe& each, Host& listener) { greet(token, each, listener); });
    open(pipe, at, 0);
  }
  void greet(std::uint64_t token, Pipe& pipe, Host& at) {
    Hello hello;
    hello.from = pipe.nodes[0];
    hello.from_incarnation = pipe.lives[0];
    hello.kind = pipe.kind;
    hello.rail = pipe.rail;
    hello.attempt = pipe.attempt;
    const bool has_joined =
        at.rules->handle_hello(hello, name(token, 1), now_) == LinkRules::Answer::kJoined;
    perform(at);
    if (has_joined) {
      open(pipe, at, 1);
    } else {
      close(token, 1);
    }
  }
  void open(Pipe& pipe, Host& at, std::size_t end) {
    const NodeId peer = pipe.nodes.at(1 - end);
    if (pipe.kind != ConnectionKind::kLiveness) {
      at.rules->handle_open(peer, pipe.rail, pipe.kind);
      return;
    }
    at.rules->handle_handed_over(peer, pipe.rail);
    pipe.is_watched.at(end) = true;
    at.liveness.handle_watch(peer, at.rules->find(peer)->incarnation, pipe.rail);
  }
  void end_late(std::uint64_t token) {  // no handshake within the limit
    const auto found = pipes_.find(token);
    if (found == pipes_.end()) return;
    Pipe& pipe = found->second;
    Host& at = hosts_.at(pipe.nodes[0]);
    if (pipe.is_closed[0] || pipe.is_watched[0] || !at.rules || at.life != pipe.lives[0]) return;
    Link link = *at.rules->find(pipe.nodes[1]);
    const Link::Slot slot = link.rails.at(pipe.rail.value).slot(pipe.kind);
    if (slot.is_open || slot.token != name(token, 0)) return;
    close(token, 0);
    at.rules->handle_end(pipe.nodes[1], pipe.rail, name(token, 0), now_);
    perform(at);
  }
  void probe(Host& from, const ProbeRail& order) {
    const std::uint64_t token = begin(from, order.node, order.rail);
    pipes_.at(token).is_probe = true;
    send(token, 0, [this](Pipe& pipe, Host& at) {
      const NodeId node = pipe.nodes[1];
      pipe.is_closed = {true, true};
      if (hosts_.at(node).rules) {
        at.rules->handle_taken(node, pipe.rail);
      } else {
        ++counts_.refusals;
        at.rules->handle_refused(node, pipe.rail, now_);
      }
    });
  }

  // ---- actions and properties ----

  void perform(Host& at) {
    while (const auto action = at.rules->poll_action()) {
      if (const auto* up = std::get_if<ReportUp>(&*action)) take_up(at, *up);
      if (const auto* down = std::get_if<ReportDown>(&*action)) take_down(at, *down);
      if (const auto* dead = std::get_if<ReportDead>(&*action)) take_death(at, *dead);
      if (const auto* order = std::get_if<DialRail>(&*action)) dial(at, *order);
      if (const auto* order = std::get_if<ProbeRail>(&*action)) probe(at, *order);
      if (const auto* order = std::get_if<CloseConnection>(&*action)) {
        close(order->token / 2, order->token % 2);
      }
      if (const auto* order = std::get_if<SayGoodbye>(&*action)) say_goodbye(*order);
      if (const auto* order = std::get_if<ForgetPeer>(&*action)) forget(at, *order);
    }
    at.rules->check_invariants();
    const auto due = at.rules->poll_timeout();
    if (!due || at.timer == due) return;
    at.timer = due;
    events_.emplace(std::max(*due, now_), [this, node = at.node, life = at.life, due] {
      Host& each = hosts_.at(node);
      if (!each.rules || each.life != life || each.timer != due) return;
      each.timer.reset();
      each.rules->handle_timeout(now_);
      perform(each);
    });
  }
  void say_goodbye(const SayGoodbye& order) {
    ++counts_.goodbyes;
    const std::size_t end = order.control % 2;
    send(order.control / 2, 1 - end, [end](Pipe& pipe, Host& at) {
      const NodeId from = pipe.nodes.at(end);
      const Link* const link = at.rules->find(from);
      if (link != nullptr && link->is_up()) at.rules->handle_goodbye(from);  // else it is not read
    });
  }
  void forget(Host& at, const ForgetPeer& order) {
    at.liveness.handle_forget(order.node);
    for (auto& [token, pipe] : pipes_) {
      for (const std::size_t end : {0U, 1U}) {
        const bool is_own = pipe.nodes.at(end) == at.node && pipe.nodes.at(1 - end) == order.node;
        if (!is_own || !pipe.is_watched.at(end)) continue;
        if (pipe.lives.at(end) != at.life || pipe.lives.at(1 - end) > order.upto) continue;
        send(token, 1 - end, [this, end](Pipe& each, Host& peer) {
          if (!each.is_watched.at(1 - end)) return;
          peer.liveness.handle_goodbye(each.nodes.at(end));
          judge(peer);
        });
        pipe.is_watched.at(end) = false;
        close(token, end);
      }
    }
  }
  void take_up(Host& at, const ReportUp& report) {
    Seen& seen = at.seen[report.node];
    ++counts_.ups;
    ++reports_;
    HOPLITE_CHECK(seen.wanted == report.incarnation);  // Connect has named this life
    HOPLITE_CHECK(seen.up == Incarnation{});           // LinkUp and LinkDown alternate
    HOPLITE_CHECK(report.incarnation >= seen.highest_up);
    HOPLITE_CHECK(report.incarnation > seen.dead);
    seen.up = seen.highest_up = report.incarnation;
    after(delay(), [this, node = at.node, life = at.life, peer = report.node] {
      Host& each = hosts_.at(node);
      if (each.rules && each.life == life) each.rules->handle_announced(peer);
    });
  }
  void take_down(Host& at, const ReportDown& report) {
    ++counts_.downs;
    ++reports_;
    HOPLITE_CHECK(at.seen[report.node].up != Incarnation{});
    at.seen[report.node].up = {};
  }
  void take_death(Host& at, const ReportDead& report) {
    Seen& seen = at.seen[report.node];
    ++counts_.deaths;
    ++reports_;
    HOPLITE_CHECK(seen.wanted != Incarnation{});
    HOPLITE_CHECK(seen.up == Incarnation{});  // LinkDown comes first
    HOPLITE_CHECK(report.incarnation > seen.dead);
    seen.wanted = {};
    seen.dead = report.incarnation;
    after(delay(), [this, report] {
      const auto member = view_.find(report.node);
      if (member == view_.end() || member->second != report.incarnation) return;
      view_.erase(member);
      spread_view();
    });
  }
  // Each end sends messages on the connection of its choice, which the other end reads.
  static bool has_open(const Link& link, std::uint64_t token) {
    return std::ranges::any_of(link.rails, [token](const Link::Rail& rail) {
      return rail.control.is_open && rail.control.token / 2 == token;
    });
  }
  // True if each two nodes live, and their link is up with the same life at both ends.
  bool is_agreed() {
    for (auto& [a, at_a] : hosts_) {
      for (auto& [b, at_b] : hosts_) {
        if (a >= b) continue;
        if (!at_a.rules || !at_b.rules) return false;
        const Link* const there = at_a.rules->find(b);
        const Link* const back = at_b.rules->find(a);
        if (there == nullptr || back == nullptr || !there->is_up() || !back->is_up()) return false;
        if (there->incarnation != at_b.life || back->incarnation != at_a.life) return false;
        if (there->attempt != back->attempt) return false;
        if (!has_open(*back, there->control / 2) || !has_open(*there, back->control / 2)) {
          return false;
        }
      }
    }
    return true;
  }

  Prng random_;
  std::size_t rails_ = 1;
  Instant now_{1'000'000'000};
  std::multimap<Instant, std::function<void()>> events_;
  std::map<NodeId, Host> hosts_;
  std::map<NodeId, Incarnation> view_;
  std::uint64_t view_epoch_ = 0;
  std::map<std::uint64_t, Pipe> pipes_;
  std::uint64_t next_token_ = 1;
  std::array<bool, 2> cut_{};
  std::array<std::vector<std::function<void()>>, 2> held_;
  bool is_calm_ = false;
  std::uint64_t reports_ = 0;
  Counts counts_;
};

TEST(LinkPlay, BothEndsAgreeAfterTheFaultsAndReportsAreInOrder) {
  Play::Counts all;
  Duration longest;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    Play play(seed);
    const auto taken = play.run();
    ASSERT_TRUE(taken) << "seed " << seed;
    longest = std::max(longest, *taken);
    const Play::Counts& counts = play.counts();
    all.ups += counts.ups;
    all.downs += counts.downs;
    all.deaths += counts.deaths;
    all.goodbyes += counts.goodbyes;
    all.refusals += counts.refusals;
    all.other_lives += counts.other_lives;
  }
  // The play reaches what it is for.
  for (const std::uint64_t count :
       {all.ups, all.downs, all.deaths, all.goodbyes, all.refusals, all.other_lives}) {
    EXPECT_GT(count, kSeeds / 20);
  }
  RecordProperty("longest_ms", static_cast<int>(longest.ns / 1'000'000));
}

}  // namespace
}  // namespace hoplite

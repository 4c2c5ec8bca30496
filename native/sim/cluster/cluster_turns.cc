// SPDX-License-Identifier: Apache-2.0
// Turns of the nodes. In plain turns each event has a turn of its own, at once, which performs all
// actions that follow. Real turns are those of the reactor: a turn takes some of the events,
// performs a limited number of actions, and takes time, in which other work waits.
#include <algorithm>

#include "sim/cluster/cluster.h"
#include "sim/model/describe.h"

namespace hoplite::sim {
namespace {

constexpr std::uint64_t kActionsPerTurn = 1'000'000;  // more is an engine that never stops
constexpr std::uint64_t kTurnsPerInstant = 10'000;    // likewise, of turns in which nothing happens
constexpr Duration kTurnMin = 1_us;                   // of a real turn

// Returns the bytes that the node's core reads and writes for an action.
std::uint64_t bytes_of(const Action& action) {
  if (const auto* fold = std::get_if<Fold>(&action)) return fold->from.size_bytes;
  if (const auto* finish = std::get_if<Finish>(&action)) return finish->from.size_bytes;
  if (const auto* write = std::get_if<WriteInline>(&action)) return write->payload.size();
  const auto* message = std::get_if<SendMessage>(&action);
  return message != nullptr && message->payload ? message->payload->size_bytes : 0;
}

bool sends_frame(const Action& action) {
  return std::holds_alternative<SendMessage>(action) || std::holds_alternative<SendBlock>(action);
}

// Mutes the checker while the lying node has a turn.
class Muted {
 public:
  Muted(Checker& checker, bool is_muted) : checker_(checker), before_(checker.mute(is_muted)) {}
  ~Muted() { checker_.mute(before_); }
  Muted(const Muted&) = delete;
  Muted& operator=(const Muted&) = delete;

 private:
  Checker& checker_;
  bool before_;
};

}  // namespace

// Runs `what` in a turn of the node, later where it is paused, never where that life is over.
void Cluster::run_in_turn(std::size_t index, Incarnation life,
                          const std::function<void(Node&)>& what, const Origin& origin) {
  Node& node = *nodes_[index];
  if (!node.alive || node.life != life) return;
  if (config_.turns.are_real) {
    Origin place = origin;
    if (config_.turns.is_fair) place.lane = Origin::Lane::kLocal;
    node.inbox.add({what, place});
    if (!node.is_busy) wake(node, *node.inbox.next_at(now()));
    return;
  }
  if (node.paused_until > now()) {
    node.deferred.push_back([this, index, life, what] { run_in_turn(index, life, what, {}); });
    return;
  }
  const Muted muted(checker_, is_liar(node.id));
  what(node);
  drive(node);
}

void Cluster::drive(Node& node) {
  count_turn(node, node.last_turn == now());
  perform_all(node);
  end_turn(node);
  const auto due = due_of(node);
  if (!due || (node.timer && *node.timer <= *due && *node.timer >= now())) return;
  node.timer = std::max(*due, now());
  timeline_.at(*node.timer,
               [this, index = node.index, life = node.life, when = *node.timer] {
                 Node& late = *nodes_[index];
                 if (late.life != life || late.timer != when)
                   return;  // an earlier one has replaced it
                 late.timer.reset();
                 run_in_turn(index, life,
                             [this](Node& awake) { awake.engine->handle_timeout(clock_of(awake)); },
                             {});
               },
               {Stream::Kind::kTimer, 0, node.id.value});
}

void Cluster::count_turn(Node& node, bool is_idle) {
  ++events_;
  ++node.load.turns;
  node.turns_now = is_idle ? node.turns_now + 1 : 0;
  node.last_turn = now();
  if (node.turns_now == kTurnsPerInstant) {
    checker_.fail("node " + std::to_string(node.index) + " spins: its timer is always due");
  }
}

// When the engine wants to be asked again, in virtual time.
std::optional<Instant> Cluster::due_of(const Node& node) const {
  auto due = node.engine->poll_timeout();
  if (due) due->ns -= node.clock_ahead.ns;
  return due;
}

void Cluster::perform_all(Node& node) {
  if (node.turns_now >= kTurnsPerInstant) return;
  std::uint64_t actions = 0;
  while (auto action = node.engine->poll_action()) {
    if (config_.trace) trace(node, "  " + describe(*action));
    perform(node, *action);
    if (++actions == kActionsPerTurn) {
      checker_.fail("node " + std::to_string(node.index) + " never runs out of actions");
      return;
    }
  }
}

void Cluster::end_turn(Node& node) {
  node.fences.end_turn();
  node.waits_differ = true;
  if (config_.check_every != 0 && node.load.turns % config_.check_every == 0) {
    node.engine->check_invariants();
    check_waits();
  }
}

// ---- real turns ----

// The next turn begins at `when`, or when an earlier one that was announced does.
void Cluster::wake(Node& node, Instant when) {
  when = std::max({when, now(), node.paused_until});
  if (node.turn_at && *node.turn_at <= when) return;
  node.turn_at = when;
  timeline_.at(when, [this, index = node.index, life = node.life, when] {
    Node& awake = *nodes_[index];
    if (!awake.alive || awake.life != life || awake.turn_at != when) return;
    awake.turn_at.reset();
    if (awake.paused_until > now()) return wake(awake, awake.paused_until);
    take_turn(awake);
  });
}

void Cluster::take_turn(Node& node) {
  const Muted muted(checker_, is_liar(node.id));
  const TurnConfig& turns = config_.turns;
  const auto batch = node.inbox.take(turns.limits, turns.stretch_max, now(), prng_);
  const auto goes_down = [](const Inbox::Item& item) {
    return item.origin.link == Origin::Link::kGoesDown;
  };
  const bool is_next = now() <= node.last_turn + kTurnMin * 2;
  count_turn(node, batch.empty() && !node.has_acted && is_next);
  // Perform the actions first that were decided for the link's old life: they must not go out on
  // the next one.
  if (std::ranges::any_of(batch, goes_down)) perform_all(node);
  for (const Inbox::Item& item : batch) {
    item.deed(node);
    const bool is_last = &item == &batch.back();  // end_turn checks what that leaves
    if (config_.check_every != 0 && !is_last) node.engine->check_invariants();
  }
  node.engine->handle_timeout(clock_of(node));
  node.is_busy = true;
  node.has_acted = false;
  node.actions_left = turns.limits.actions_max;
  node.bytes_left = turns.limits.bytes_max / 2;
  perform_some(node);
}

// Performs what the turn still may. An action that takes time is followed by the next one then.
void Cluster::perform_some(Node& node) {
  const Muted muted(checker_, is_liar(node.id));
  const TurnConfig& turns = config_.turns;
  while (node.actions_left > 0 && node.bytes_left > 0) {
    const auto action = node.engine->poll_action();
    if (!action) break;
    if (config_.trace) trace(node, "  " + describe(*action));
    const std::uint64_t bytes = bytes_of(*action);
    perform(node, *action);
    node.has_acted = true;
    --node.actions_left;
    node.bytes_left -= std::min(node.bytes_left, bytes);
    const Duration of_frame = sends_frame(*action) ? turns.per_frame : Duration{0};
    const Duration taken = turns.per_action + of_frame + turns.time_of(bytes);
    if (taken.ns > 0) return continue_later(node, taken, &Cluster::perform_some);
  }
  continue_later(node, kTurnMin, &Cluster::finish_turn);
}

void Cluster::finish_turn(Node& node) {
  const Muted muted(checker_, is_liar(node.id));
  node.is_busy = false;
  end_turn(node);
  if (const auto at = node.inbox.next_at(now())) wake(node, *at);
  if (const auto due = due_of(node)) wake(node, *due);
}

// The turn goes on after so long; when the node is paused, after that.
void Cluster::continue_later(Node& node, Duration taken, void (Cluster::*step)(Node&)) {
  const Instant when = std::max(now() + taken, node.paused_until);
  timeline_.at(when, [this, index = node.index, life = node.life, step] {
    Node& awake = *nodes_[index];
    if (!awake.alive || awake.life != life) return;
    if (awake.paused_until > now()) return continue_later(awake, {}, step);
    (this->*step)(awake);
  });
}

}  // namespace hoplite::sim

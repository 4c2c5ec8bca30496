// SPDX-License-Identifier: Apache-2.0
// The caller's side of reduces, and the questions to homes about sources. A source arrives once
// some node has it; arrivals go to the planner in their order. The planner is the target's home,
// or this node if the result is small.
// Invariant: only a call without a planner waits for answers of homes, each about a source of it.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "plan/messages.h"
#include "plan/objects/local_object.h"

namespace hoplite {

struct EngineStats;
struct Owners;

struct Call {
  Waiter waiter;
  ReduceWant want;                                // everything confirmed so far
  std::multimap<ObjectId, ReduceSource> awaited;  // confirmed once some node has them
  std::set<ObjectId> unanswered = {};       // those in `awaited` whose homes have not answered
  bool is_planned = false;                  // True if its planner is known
  std::deque<ReduceSource> unplanned = {};  // confirmed earlier; the first may be in question
  std::size_t told = 0;  // leading confirmed sources that its planner has been told of
};

class Calls {
 public:
  explicit Calls(Owners& engine) : engine_(engine) {}

  void handle_reduce(const Waiter& waiter, const ReduceCommand& reduce);
  void handle_reduce_source(const ReduceSourceCommand& command);
  void handle_located(NodeId from, const Located& located, Bytes payload);

  // ---- calls ----
  void answer_call(const ReduceState& state);
  void tell_state(const ReduceState& state);
  bool cancel_call(const ObjectId& target, const Waiter& waiter);
  [[nodiscard]] std::vector<std::pair<ObjectId, Waiter>> calls_of(ClientId client) const;
  void handle_target_deleted(const ObjectId& target);  // ends its call, or forgets how it failed
  // True if this node plans the reduce, for a client here; and the planner of any reduce.
  [[nodiscard]] bool is_planned_here(const ObjectId& target) const;
  [[nodiscard]] NodeId planner_of(const ObjectId& target) const;

  // ---- questions ----
  void ask(const Locate& question);
  [[nodiscard]] const Locate* find_question(const ObjectId& source) const;  // nullptr: none is open
  // Takes back a question whether an object is there yet, unless something else here waits for it.
  void withdraw_question(const ObjectId& source);
  void note_arrival(const ObjectId& source, const Located* located);  // nullptr: lost
  void repeat_questions(std::optional<NodeId> only_to);  // and calls, and their failures

  // Tells planners of the sources confirmed since the last time. Returns false if there are none.
  bool send_news();
  [[nodiscard]] bool has_news() const { return !news_.empty(); }
  void stop_waiting_for_answers();
  [[nodiscard]] std::optional<Instant> next_deadline() const;
  void add_stats(EngineStats& stats) const;
  void check_invariants() const;

 private:
  void confirm(const ObjectId& target, const ReduceSource& source);
  void begin_call(const ObjectId& target, bool is_lost = false);
  void forward(const ObjectId& target, const ReduceSource& source);
  static ReduceWant take_news(Call& call);
  void end_call(const ObjectId& target);
  void refuse_second(const ObjectId& target, const Call& call);

  Owners& engine_;
  std::map<ObjectId, Call> calls_;
  std::set<ObjectId> news_;  // calls whose homes are to be told of sources
  std::map<ObjectId, Locate> locates_;
  std::map<ObjectId, ReduceReport> failed_;  // reduces called here; until deleted
  // Until when a reduce waits to hear which sources are there, in order of time.
  std::deque<std::pair<Instant, ObjectId>> answers_due_;
};

}  // namespace hoplite

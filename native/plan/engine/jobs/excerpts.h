// SPDX-License-Identifier: Apache-2.0
// The parts of objects that clients here want (decision 48). An excerpt is an object of its own,
// and this node wants it like any other. Beside that it sees to it that some node makes it: this
// node, if it has the source, or a holder that the source's home names. It asks again when that
// holder dies or refuses, and after a while in which nothing came. Clients' questions what an
// object is are here, too.
// Invariants: each wish has a deadline; a wish that is being located has an open question about its
// source, unless the question was answered with an error in this turn.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "plan/messages.h"
#include "plan/objects/local_object.h"

namespace hoplite {

struct EngineStats;
struct Owners;

[[nodiscard]] const char* fault_of(const Excerpt& excerpt);  // of itself; nullptr if it has none
// How many bytes its source has at least. REQUIRES: the excerpt has no fault.
[[nodiscard]] std::uint64_t count_source_bytes(const Excerpt& excerpt);

class Excerpts {
 public:
  explicit Excerpts(Owners& engine) : engine_(engine) {}

  void handle_get(const Waiter& waiter, const ExcerptCommand& command);
  // Withdraws a question. Returns false if it is no question's request.
  bool cancel(const Waiter& waiter, const ObjectId& object);
  void handle_client_lost(ClientId client);
  // ---- from peers ----
  void handle_make(NodeId from, const MakeExcerpt& make);
  bool handle_lost(NodeId from, const Lost& lost);  // returns true if it is a maker's refusal
  void handle_located(const Located& located);
  void handle_source_lost(const ObjectId& source, const std::string& why);
  void handle_unreachable(NodeId node);

  void handle_refusal(const ObjectId& id, NodeId maker, Code code, const std::string& why);
  void note_here(const ObjectId& id) { forget(id); }
  void handle_timeout();
  [[nodiscard]] bool asks_about(const ObjectId& source) const;
  [[nodiscard]] std::optional<Instant> next_deadline() const;
  void add_stats(EngineStats& stats) const;
  void check_invariants() const;

 private:
  enum class State : std::uint8_t {
    kLocating,  // the source's home is asked for a holder
    kAsked,     // `maker` is asked to make it
    kMaking,    // it is made here
  };
  struct Wish {
    Excerpt excerpt;
    bool exists = false;  // the source was put
    State state = State::kLocating;
    NodeId maker;
    std::uint32_t refusals = 0;  // for want of room
    Instant until;
  };

  void describe(const Waiter& waiter, const ExcerptCommand& command);
  void answer_question(const Waiter& waiter, Incarnation incarnation, const ObjectMeta& meta);
  void find_maker(const ObjectId& id, NodeId failed);
  void ask(const Excerpt& excerpt, bool exists, NodeId failed);
  void fail(const ObjectId& id, Code code, const std::string& why);
  void forget(const ObjectId& id);
  void wait_until(const ObjectId& id, Wish& wish, Instant until);
  [[nodiscard]] bool is_coming(const ObjectId& id) const;
  [[nodiscard]] std::set<ObjectId> wishes_about(const ObjectId& source) const;

  Owners& engine_;
  std::map<ObjectId, Wish> wishes_;
  std::set<std::pair<Instant, ObjectId>> deadlines_;   // of all wishes
  std::set<std::pair<ObjectId, ObjectId>> by_source_;  // (source, excerpt) of all wishes
  std::multimap<ObjectId, Waiter> questions_;          // what an object is
};

}  // namespace hoplite

// SPDX-License-Identifier: Apache-2.0
#include "world/world.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/check.h"

namespace hoplite::worlds {
namespace {

// Turns of reading the bytes that an ended connection still holds: more than any socket holds.
constexpr int kLastTurnsMax = 64;

Interest both(Interest a, Interest b) {
  return static_cast<Interest>(static_cast<unsigned>(a) | static_cast<unsigned>(b));
}

Cause cause_of(const Error& error) {
  switch (error.code) {
    case Code::kPeerLost:
      return Cause::kPeerDied;
    case Code::kBadFrame:
    case Code::kLayoutMismatch:
      return Cause::kProtocol;
    case Code::kTimeout:
      return Cause::kFrozen;
    case Code::kStoreFull:
      return Cause::kLocal;
    default:
      return Cause::kUnreachable;
  }
}

// True if the connection has ended, and false if its bytes were wrong or this process failed.
bool is_of_pipe(const Error& error) {
  const Cause cause = cause_of(error);
  return cause != Cause::kProtocol && cause != Cause::kLocal;
}

const char* words(Cause cause) {
  switch (cause) {
    case Cause::kPeerDied:
      return "its process has ended without leaving";
    case Cause::kUnreachable:
      return "the network has cut it off";
    case Cause::kFrozen:
      return "its process has said nothing for too long";
    case Cause::kPeerLeft:
      return "it has left, and an operation needs it";
    case Cause::kAborted:
      return "it has given the world up";
    case Cause::kProtocol:
      return "it sent what fits nothing";
    case Cause::kLocal:
      break;
  }
  return "this process could not go on";
}

}  // namespace

World::World(Progress& progress, std::uint64_t number, WorldName name)
    : progress_(progress), number_(number), name_(std::move(name)) {}

// A closed world may outlive its Progress, because a companion that ends an operation holds it.
World::~World() {
  if (!is_closed_) close();
}

std::string World::title() const {
  return "world " + name_.name + " (epoch " + std::to_string(name_.epoch) + ")";
}

Result<void> World::add_edge(Rank peer, std::unique_ptr<Pipe> pipe) {
  const Lock lock(mutex_);
  if (peer == name_.rank || peer.value >= name_.size || edges_.contains(peer) || is_closed_) {
    return Error{Code::kInvalidArgument, title() + " takes no edge to rank " +
                                             std::to_string(peer.value) +
                                             "; add one to each other rank, once"};
  }
  auto token = progress_.register_edge(*this, peer, *pipe);
  if (!token) return token.error();
  Edge& edge =
      *edges_.emplace(peer, std::make_unique<Edge>(peer, *token, std::move(pipe))).first->second;
  edge.armed = Interest::kRead;
  if (end_) {  // the world broke before all edges were added
    edge.rules().handle_ending(*end_);
    if (finish_goodbye(edge)) progress_.revisit(edge.token());
    return {};
  }
  if (arm(edge, false)) progress_.revisit(edge.token());
  return {};
}

// ---- operations ----

Result<void> World::check(Rank peer) const {
  if (end_) return {};  // the operation reports the end
  if (is_closed_ || leaving_ != nullptr) {
    return Error{Code::kInvalidArgument, title() + " was left; join it anew"};
  }
  if (edges_.contains(peer)) return {};
  return Error{Code::kInvalidArgument, title() + " has no other rank " +
                                           std::to_string(peer.value) + ", of " +
                                           std::to_string(name_.size) + "; this is rank " +
                                           std::to_string(name_.rank.value)};
}

Result<OperationHandle> World::send(Rank peer, Content content, std::span<const std::byte> bytes) {
  const Lock lock(mutex_);
  if (auto valid = check(peer); !valid) return valid.error();
  const OperationId id{++operations_};
  if (end_) return begin(nullptr, id, peer);
  Edge& edge = *edges_.at(peer);
  edge.rules().handle_send(id, std::move(content), bytes);
  return begin(&edge, id, peer);
}

Result<OperationHandle> World::receive(Rank peer, Wanted wanted) {
  const Lock lock(mutex_);
  if (auto valid = check(peer); !valid) return valid.error();
  const OperationId id{++operations_};
  if (end_) return begin(nullptr, id, peer);
  Edge& edge = *edges_.at(peer);
  if (auto taken = edge.rules().handle_receive(id, std::move(wanted)); !taken) {
    handle_edge_error(edge, taken.error());
  }
  return begin(&edge, id, peer);
}

// Carries the operation as far as it goes without waiting. If the world has ended, `edge` may be
// null and the operation is broken.
OperationHandle World::begin(Edge* edge, OperationId id, Rank peer) {
  if (!end_) {
    carried_ = id;
    if (carry(*edge, Carrier::kCaller)) progress_.revisit(edge->token());
    carried_ = OperationId{};
  }
  std::optional<Outcome> outcome = std::exchange(carried_outcome_, std::nullopt);
  if (outcome && outcome->data == nullptr) return nullptr;
  auto operation = std::make_shared<Operation>();
  operation->id = id;
  operation->peer = peer;
  if (outcome) {
    operation->content = std::move(outcome->content);
    operation->data = std::move(outcome->data);
    operation->state = Operation::State::kDone;
  } else if (end_) {
    operation->state = Operation::State::kBroken;
  } else {
    open_.emplace(id, operation);
  }
  return operation;
}

bool World::cancel(Operation& operation) {
  const Lock lock(mutex_);
  if (operation.state != Operation::State::kPending || &operation == leaving_.get()) return false;
  if (companion_operations_.contains(operation.id)) {
    break_world(nullptr, {Cause::kAborted, name_.rank, "it gave up what was under way by NCCL"});
    return false;
  }
  Edge& edge = *edges_.at(operation.peer);
  operation.had_moved = edge.rules().has_moved(operation.id);
  const auto was_open = edge.rules().handle_cancel(operation.id);
  HOPLITE_CHECK(!was_open || *was_open);
  end_operation(operation, Operation::State::kCancelled);
  open_.erase(operation.id);
  if (!was_open) handle_edge_error(edge, was_open.error());
  progress_.revisit(edge.token());  // operations behind it may go now
  return true;
}

bool World::wait(const Operation& operation, Duration timeout) {
  std::unique_lock lock(mutex_);
  return ended_.wait_for(lock, std::chrono::nanoseconds(timeout.ns),
                         [&] { return operation.state != Operation::State::kPending; });
}

bool World::notify(Operation& operation, std::shared_ptr<Completions> completions,
                   std::uint64_t token) {
  const Lock lock(mutex_);
  if (operation.state != Operation::State::kPending) return false;
  operation.waiters.emplace_back(std::move(completions), token);
  return true;
}

bool World::has_moved(const Operation& operation) {
  const Lock lock(mutex_);
  if (operation.state == Operation::State::kCancelled) return operation.had_moved;
  if (companion_operations_.contains(operation.id)) return true;
  const auto edge = edges_.find(operation.peer);
  return edge != edges_.end() && edge->second->rules().has_moved(operation.id);
}

void World::end_operation(Operation& operation, Operation::State state) {
  operation.state = state;
  for (const auto& [completions, token] : operation.waiters) completions->push(token);
  operation.waiters.clear();
  ended_.notify_all();
}

// ---- beside the edges ----

void World::attach(std::shared_ptr<Companion> companion) {
  const Lock lock(mutex_);
  if (end_ || is_closed_) companion->handle_end(Companion::Ending::kBroken);
  companions_.push_back(std::move(companion));
}

OperationHandle World::begin_companion_operation() {
  const Lock lock(mutex_);
  auto operation = std::make_shared<Operation>();
  operation->id = OperationId{++operations_};
  operation->peer = name_.rank;
  if (end_ || is_closed_) {
    operation->state = Operation::State::kBroken;
  } else {
    companion_operations_.emplace(operation->id, operation);
  }
  return operation;
}

void World::end_companion_operation(OperationId id, Operation::State state) {
  const Lock lock(mutex_);
  const auto found = companion_operations_.find(id);
  // After the world's end a finished operation stays pending until its companion breaks it, because
  // NCCL may still touch its memory.
  if (found == companion_operations_.end() || (end_ && state == Operation::State::kDone)) return;
  end_operation(*found->second, state);
  companion_operations_.erase(found);
  check_drained();
}

// ---- moving bytes ----

// Returns whether there is more to do at once.
bool World::carry(Edge& edge, Carrier carrier) {
  EdgeRules& rules = edge.rules();
  if (edge.is_unregistered()) {  // messages that the peer sent before it left may be here
    settle(edge);
    if (!end_ && rules.has_left()) handle_goodbye(edge);
    return false;
  }
  if (end_) return finish_goodbye(edge);
  const bool may_rest = carrier == Carrier::kCaller || rules.is_waiting();
  const auto moved = move_bytes(edge, carrier);
  if (!moved && is_of_pipe(moved.error())) read_last_words(edge);
  if (const auto peer_end = rules.ending()) {
    break_world(&edge, *peer_end);
    return false;
  }
  if (rules.has_left()) {
    handle_goodbye(edge);
    return false;
  }
  if (rules.is_over()) return await_answer(edge, !moved);
  if (!moved) {
    handle_edge_error(edge, moved.error());
    return false;
  }
  return arm(edge, may_rest);
}

// Reads the frames in front of a connection's end: they may hold a Goodbye or the world's end.
void World::read_last_words(Edge& edge) {
  bool is_more = true;
  for (int turn = 0; is_more && turn < kLastTurnsMax; ++turn) {
    is_more = edge.read(Edge::Reading::kAll) && edge.has_more();
    settle(edge);
  }
}

Result<void> World::move_bytes(Edge& edge, Carrier carrier) {
  using enum Edge::Reading;
  const bool is_callers = carrier == Carrier::kCaller;
  const auto own = edge.rules().is_waiting() ? kWhileAwaited : kAll;
  const auto written = edge.write();
  settle(edge);
  if (!written) return written.error();
  if (is_callers && carried_outcome_) return {};
  bool has_settled = true;
  while (has_settled && !carried_outcome_) {
    const auto read = edge.read(is_callers ? kUntilOutcome : own);
    has_settled = settle(edge) && is_callers;
    if (!read) return read.error();
  }
  auto answered = edge.write();
  settle(edge);
  return answered;
}

bool World::settle(Edge& edge) {
  bool has_settled = false;
  while (auto outcome = edge.rules().poll_outcome()) {
    has_settled = true;
    if (outcome->operation == carried_) {
      carried_outcome_ = std::move(outcome);
      continue;
    }
    const auto open = open_.find(outcome->operation);
    HOPLITE_CHECK(open != open_.end());
    const OperationHandle operation = std::move(open->second);
    open_.erase(open);
    operation->content = std::move(outcome->content);
    operation->data = std::move(outcome->data);
    end_operation(*operation, Operation::State::kDone);
  }
  return has_settled;
}

bool World::arm(Edge& edge, bool may_rest) {
  const EdgeRules& rules = edge.rules();
  const bool rests = may_rest && !edge.is_blocked() && !rules.is_waiting();
  if (rests && edge.rests()) {
    edge.watch = Edge::Watch::kUsed;
    return false;
  }
  const Interest interest =
      rests ? Interest::kNone
            : both(Interest::kRead, edge.is_blocked() ? Interest::kWrite : Interest::kNone);
  edge.watch = rests ? Edge::Watch::kUsed : Edge::Watch::kPolled;
  if (const Interest polled = edge.pipe().interest_of(interest); polled != edge.armed) {
    progress_.change_interest(edge.pipe(), edge.token(), polled);
    edge.armed = polled;
  }
  const bool is_there = edge.pipe().await(interest, rules.coming_bytes());
  if (rests) progress_.schedule_rest_visit();
  return !rests && (is_there || edge.has_more() || edge.has_read_ahead());
}

// Waits, after our Goodbye, until the peer closes its half. A connection that we close earlier may
// be reset, and a reset loses the bytes in flight.
bool World::await_answer(Edge& edge, bool has_ended) {
  edge.finish(Edge::Finishing::kWhenSent);
  if (!has_ended) return arm(edge, false);
  unregister(edge);
  if (!edge.pipe().has_delivered_all()) handle_edge_error(edge, {Code::kPeerLost, ""});
  check_drained();
  return false;
}

// After the world's end: writes the last frame and discards all that comes.
bool World::finish_goodbye(Edge& edge) {
  const auto written = edge.write();
  if (edge.rules().is_over()) edge.finish(Edge::Finishing::kWhenSent);
  if (written && !edge.drain()) return arm(edge, false);
  unregister(edge);
  return false;
}

bool World::handle_ready(Rank peer) {
  const Lock lock(mutex_);
  const auto found = edges_.find(peer);
  if (found == edges_.end() || found->second->is_unregistered()) return false;
  found->second->pipe().handle_ready();
  return carry(*found->second, Carrier::kProgress);
}

bool World::handle_rest() {
  const Lock lock(mutex_);
  bool is_used = false;
  for (const auto& [peer, edge] : edges_) {
    if (edge->watch == Edge::Watch::kUsed) {
      edge->watch = Edge::Watch::kIdle;
      is_used = true;
    } else if (edge->watch == Edge::Watch::kIdle) {
      edge->watch = Edge::Watch::kPolled;
      if (carry(*edge, Carrier::kProgress)) progress_.revisit(edge->token());
    }
  }
  return is_used;
}

// ---- the end ----

void World::handle_peer_end(Rank peer, Cause cause) {
  const Lock lock(mutex_);
  const auto found = edges_.find(peer);
  if (end_ || is_closed_ || found == edges_.end()) return;
  Edge& edge = *found->second;
  if (edge.is_unregistered()) return;  // one of the two has left, and the other knows
  if (cause == Cause::kPeerDied) {
    if (carry(edge, Carrier::kProgress)) progress_.revisit(edge.token());
    if (!end_ && !edge.is_unregistered()) {
      read_last_words(edge);
      if (const auto peer_end = edge.rules().ending()) return break_world(&edge, *peer_end);
      if (edge.rules().has_left()) return handle_goodbye(edge);
    }
  }
  if (end_ || edge.is_unregistered()) return;
  unregister(edge);
  break_world(&edge, {cause, peer, words(cause)});
}

void World::handle_edge_error(Edge& edge, const Error& error) {
  const Cause cause = cause_of(error);
  if (is_of_pipe(error)) unregister(edge);
  break_world(&edge, {cause, cause == Cause::kLocal ? name_.rank : edge.peer(),
                      cause == Cause::kPeerDied ? words(cause) : error.text});
}

void World::handle_goodbye(Edge& edge) {
  if (!edge.is_unregistered()) {
    edge.finish(Edge::Finishing::kAtOnce);
    unregister(edge);
    progress_.push_event({.kind = WorldEvent::Kind::kPeerLeft,
                          .world = number_,
                          .rank = edge.peer(),
                          .text = "it has left"});
  }
  if (edge.rules().waits_in_vain()) {
    break_world(&edge, {Cause::kPeerLeft, edge.peer(), words(Cause::kPeerLeft)});
  }
  check_drained();
}

// Breaks the world and tells each peer, except when the peer of `by` has reported the end itself.
void World::break_world(const Edge* by, End end) {
  if (end_) return;
  end_ = std::move(end);
  // Copy the frame in flight first, because an ended operation gives its buffer back.
  for (const auto& [peer, edge] : edges_) edge->rules().handle_ending(*end_);
  break_pending();
  for (const auto& companion : companions_) companion->handle_end(Companion::Ending::kBroken);
  if (leaving_ != nullptr && leaving_->state == Operation::State::kPending) {
    end_operation(*leaving_, Operation::State::kBroken);
  }
  progress_.push_event({.kind = WorldEvent::Kind::kBroken,
                        .world = number_,
                        .rank = end_->rank,
                        .cause = static_cast<std::uint8_t>(end_->cause),
                        .text = end_->text});
  for (const auto& [peer, edge] : edges_) {
    if (edge.get() == by && edge->rules().ending()) {  // the peer knows
      unregister(*edge);
    } else if (!edge->is_unregistered() && finish_goodbye(*edge)) {
      progress_.revisit(edge->token());
    }
  }
}

void World::break_pending() {
  for (const auto& [id, operation] : std::exchange(open_, {})) {
    end_operation(*operation, Operation::State::kBroken);
  }
}

void World::unregister(Edge& edge) {
  if (std::exchange(edge.watch, Edge::Watch::kUnregistered) == Edge::Watch::kUnregistered) return;
  progress_.unregister_edge(edge.pipe(), edge.token());
}

void World::abort(Cause cause, const std::string& text) {
  const Lock lock(mutex_);
  if (is_closed_) return;
  break_world(nullptr, {cause, name_.rank, text.substr(0, kEndTextBytesMax)});
}

OperationHandle World::leave() {
  const Lock lock(mutex_);
  if (leaving_ != nullptr) return leaving_;
  leaving_ = std::make_shared<Operation>();
  if (end_ || is_closed_) {
    leaving_->state = Operation::State::kBroken;
    return leaving_;
  }
  for (const auto& [peer, edge] : edges_) {
    edge->rules().handle_leave();
    if (carry(*edge, Carrier::kProgress)) progress_.revisit(edge->token());
    if (end_) break;
  }
  check_drained();
  return leaving_;
}

void World::check_drained() {
  if (leaving_ == nullptr || leaving_->state != Operation::State::kPending) return;
  const bool is_drained =
      std::ranges::all_of(edges_, [](const auto& each) { return each.second->is_unregistered(); });
  if (!is_drained || !companion_operations_.empty()) return;
  end_operation(*leaving_, Operation::State::kDone);
  break_pending();  // only receives are left, and no message can come for them
}

void World::close() {
  if (progress_.is_forked()) return;  // the sockets and the poller are the parent's
  const Lock lock(mutex_);
  if (std::exchange(is_closed_, true)) return;
  const bool has_left = leaving_ != nullptr && leaving_->state == Operation::State::kDone;
  if (!end_ && !has_left) {
    break_world(nullptr, {Cause::kLocal, name_.rank, "it was closed without leaving"});
  }
  for (const auto& [peer, edge] : edges_) {
    if (!edge->is_unregistered()) {
      [[maybe_unused]] const bool is_more =
          finish_goodbye(*edge);  // reads all: unread bytes cause a reset
      unregister(*edge);
    }
    edge->finish(Edge::Finishing::kAtOnce);  // a forked child may hold the descriptor
  }
  edges_.clear();
  for (const auto& companion : std::exchange(companions_, {})) {
    companion->handle_end(has_left ? Companion::Ending::kLeft : Companion::Ending::kBroken);
  }
  progress_.remove(*this);
}

bool World::is_goodbye_delivered() {
  const Lock lock(mutex_);
  return std::ranges::all_of(edges_,
                             [](const auto& each) { return each.second->is_unregistered(); });
}

std::optional<End> World::end() {
  const Lock lock(mutex_);
  return end_;
}

std::vector<Rank> World::departed_ranks() {
  const Lock lock(mutex_);
  std::vector<Rank> ranks;
  for (const auto& [peer, edge] : edges_) {
    if (edge->rules().has_left()) ranks.push_back(peer);
  }
  return ranks;
}

const char* World::transport(Rank peer) {
  const Lock lock(mutex_);
  const auto found = edges_.find(peer);
  return found == edges_.end() ? nullptr : found->second->pipe().name();
}

}  // namespace hoplite::worlds

// SPDX-License-Identifier: Apache-2.0
#include "world/edges/edge_rules.h"

#include <algorithm>
#include <new>
#include <utility>

#include "base/check.h"
#include "base/copy.h"

namespace hoplite::worlds {
namespace {

End end_of(const Envelope& told) {
  const bool is_known = told.content.operation > 0 && told.content.operation < kCauseCount;
  return {is_known ? static_cast<Cause>(told.content.operation) : Cause::kProtocol,
          Rank{static_cast<std::uint32_t>(told.content.key.value)},
          told.content.dtype.substr(0, kEndTextBytesMax)};
}

}  // namespace

EdgeRules::EdgeRules(Rank peer, const EdgeLimits& limits) : peer_(peer), limits_(limits) {
  for (Lane& lane : lanes_) lane.credit = limits_.window_bytes;
}

// ---- what this member wants ----

void EdgeRules::handle_send(OperationId operation, Content content,
                            std::span<const std::byte> bytes) {
  HOPLITE_CHECK(content.size_bytes == bytes.size());
  const std::size_t lane = lane_of(content.key);
  lanes_[lane].sendings.push_back({operation, std::move(content), bytes, false, nullptr});
}

Result<void> EdgeRules::handle_receive(OperationId operation, Wanted wanted) {
  const auto at = inboxes_.try_emplace(wanted.key).first;
  Inbox& inbox = at->second;
  inbox.receives.push_back({operation, std::move(wanted)});
  if (inbox.receives.size() > 1 || inbox.arrivals.empty()) return {};
  if (auto claimed = claim(inbox); !claimed) return claimed.error();
  complete_if_whole(at);
  return {};
}

Result<bool> EdgeRules::handle_cancel(OperationId operation) {
  for (Lane& lane : lanes_) {
    const auto sending = std::ranges::find(lane.sendings, operation, &Sending::operation);
    if (sending == lane.sendings.end()) continue;
    if (!sending->has_begun) {
      lane.sendings.erase(sending);
      return true;
    }
    // Copy the rest of the frame in flight, if there is one, and then the bytes of no frame yet.
    const bool is_writing = writing_ == &lane && !frame_.payload.empty();
    const std::size_t in_frame = is_writing ? frame_.payload.size() : 0;
    sending->copy = std::make_unique_for_overwrite<std::byte[]>(in_frame + sending->bytes.size());
    sending->operation = OperationId{};
    std::byte* const rest = sending->copy.get() + in_frame;
    if (is_writing) {
      copy_bytes(sending->copy.get(), frame_.payload.data(), in_frame);
      frame_.payload = {sending->copy.get(), in_frame};
    }
    copy_bytes(rest, sending->bytes.data(), sending->bytes.size());
    sending->bytes = {rest, sending->bytes.size()};
    return true;
  }
  for (auto each = inboxes_.begin(); each != inboxes_.end(); ++each) {
    Inbox& inbox = each->second;
    const auto found = std::ranges::find(inbox.receives, operation, &Receiving::operation);
    if (found == inbox.receives.end()) continue;
    const bool is_claiming = found == inbox.receives.begin() && !inbox.arrivals.empty();
    if (is_claiming) pass_to_next_receive(inbox);
    inbox.receives.erase(found);
    if (is_claiming && !inbox.receives.empty()) {
      if (auto claimed = claim(inbox); !claimed) return claimed.error();
    }
    if (inbox.receives.empty() && inbox.arrivals.empty()) inboxes_.erase(each);
    return true;
  }
  return false;
}

void EdgeRules::pass_to_next_receive(Inbox& inbox) {
  Arrival& arrival = *inbox.arrivals.front();
  arrival.is_claimed = false;
  if (arrival.data != nullptr) return;
  arrival.data = std::make_unique_for_overwrite<std::byte[]>(arrival.content.size_bytes);
  copy_bytes(arrival.data.get(), arrival.at, arrival.got_bytes);
  arrival.at = arrival.data.get();
}

void EdgeRules::handle_leave() {
  if (out_ == Out::kOpen) out_ = Out::kLeaving;
}

void EdgeRules::handle_ending(const End& end) {
  if (out_ == Out::kLastFrame || out_ == Out::kOver) return;
  out_ = Out::kLastFrame;
  if (!frame_.payload
           .empty()) {  // the frame has begun: its bytes, but not from its caller's buffer
    last_payload_ = std::make_unique_for_overwrite<std::byte[]>(frame_.payload.size());
    copy_bytes(last_payload_.get(), frame_.payload.data(), frame_.payload.size());
    frame_.payload = {last_payload_.get(), frame_.payload.size()};
  }
  writing_ = nullptr;
  for (Lane& lane : lanes_) {
    lane.sendings.clear();
    lane.arrival = nullptr;
  }
  inboxes_.clear();
  outcomes_.clear();
  control_.clear();
  Envelope told{Verb::kEnding, 0, {}};
  told.content.operation = static_cast<std::uint8_t>(end.cause);
  told.content.key = MatchKey{end.rank.value};
  told.content.dtype = end.text.substr(0, kEndTextBytesMax);
  control_.push_back(std::move(told));
}

// ---- what comes ----

std::size_t EdgeRules::missing_bytes() const {
  return payload_left_ > 0 ? 0 : head_bytes_ - head_in_.size();
}

bool EdgeRules::is_amid_message() const {
  if (payload_left_ == 0) return false;
  const Arrival& arrival = *lanes_[lane_of(filling_)].arrival;
  return arrival.got_bytes + payload_left_ < arrival.content.size_bytes;
}

std::uint64_t EdgeRules::coming_bytes() const {
  std::uint64_t coming = 0;
  for (const Lane& lane : lanes_) {
    if (lane.arrival == nullptr) continue;
    const std::uint64_t left = lane.arrival->content.size_bytes - lane.arrival->got_bytes;
    const std::uint64_t credit = limits_.window_bytes - lane.outstanding;
    // A sender with less credit than a frame's least payload may wait for more.
    const std::uint64_t certain = credit - std::min(credit, limits_.payload_bytes_min);
    coming += std::min(left + left / limits_.payload_bytes_max * kEnvelopeBytes, certain);
  }
  return std::max<std::uint64_t>(coming, 1);
}

Result<std::size_t> EdgeRules::handle_bytes(std::span<const std::byte> bytes) {
  std::size_t used = 0;
  while (used < bytes.size() && payload_left_ == 0) {
    const std::size_t taken = std::min(missing_bytes(), bytes.size() - used);
    const auto first = bytes.begin() + static_cast<std::ptrdiff_t>(used);
    head_in_.insert(head_in_.end(), first, first + static_cast<std::ptrdiff_t>(taken));
    used += taken;
    if (head_in_.size() < head_bytes_) return used;
    if (head_bytes_ == kEnvelopeBytes) {
      auto tail = tail_bytes(head_in_);
      if (!tail) return tail.error();
      head_bytes_ += *tail;
      if (*tail > 0) continue;
    }
    const Envelope envelope = decode_envelope(head_in_);
    head_in_.clear();
    head_bytes_ = kEnvelopeBytes;
    if (auto handled = handle_envelope(envelope); !handled) return handled.error();
    if (payload_left_ == 0) return used;
  }
  if (const std::size_t left = bytes.size() - used; left > 0) {
    const std::span<std::byte> to = target();
    const std::size_t taken = std::min(to.size(), left);
    copy_bytes(to.data(), bytes.data() + used, taken);
    used += taken;
    if (auto landed = handle_landed(taken); !landed) return landed.error();
  }
  return used;
}

Result<void> EdgeRules::handle_envelope(const Envelope& envelope) {
  if (has_left_ || ending_) return protocol_error("more after its last word");
  switch (envelope.verb) {
    case Verb::kMessage:
      return handle_message(envelope);
    case Verb::kData:
      return handle_data(envelope);
    case Verb::kCredit: {
      Lane& lane = lanes_[lane_of(envelope.content.key)];
      if (envelope.content.size_bytes > limits_.window_bytes - lane.credit) {
        return protocol_error("credit for more than it got");
      }
      lane.credit += envelope.content.size_bytes;
      return {};
    }
    case Verb::kGoodbye:
      has_left_ = true;
      return {};
    case Verb::kEnding:
      ending_ = end_of(envelope);
      return {};
  }
  return protocol_error("an unknown verb");  // tail_bytes() refuses it before
}

Result<void> EdgeRules::handle_message(const Envelope& envelope) {
  const MatchKey key = envelope.content.key;
  Lane& lane = lanes_[lane_of(key)];
  if (lane.arrival != nullptr) return protocol_error("a message in the middle of another one");
  if (envelope.payload_bytes > envelope.content.size_bytes)
    return protocol_error("more than a message");
  if (envelope.content.size_bytes > limits_.message_bytes_max)
    return protocol_error("too much at once");
  const std::uint64_t overhead = overhead_bytes(envelope.content);
  if (auto taken = take_credit(lane_of(key), envelope.payload_bytes + overhead); !taken) {
    return taken.error();
  }
  const auto at = inboxes_.try_emplace(key).first;
  Inbox& inbox = at->second;
  Arrival& arrival = *inbox.arrivals.emplace_back(std::make_unique<Arrival>());
  arrival.content = envelope.content;
  arrival.unclaimed_bytes = overhead;
  filling_ = key;
  payload_left_ = envelope.payload_bytes;
  if (!arrival.is_whole()) lane.arrival = &arrival;
  if (inbox.arrivals.size() == 1 && !inbox.receives.empty()) {
    if (auto claimed = claim(inbox); !claimed) return claimed.error();
    complete_if_whole(at);
    return {};
  }
  // No more than the window comes before a receive claims the message.
  arrival.data = std::make_unique_for_overwrite<std::byte[]>(
      std::min(arrival.content.size_bytes, limits_.window_bytes));
  arrival.at = arrival.data.get();
  return {};
}

Result<void> EdgeRules::handle_data(const Envelope& envelope) {
  const std::size_t at = lane_of(envelope.content.key);
  const Lane& lane = lanes_[at];
  if (lane.arrival == nullptr) return protocol_error("data of no message");
  const Content& content = lane.arrival->content;
  if (envelope.content.key != content.key || envelope.payload_bytes == 0 ||
      envelope.payload_bytes > content.size_bytes - lane.arrival->got_bytes) {
    return protocol_error("data that fits no message");
  }
  filling_ = content.key;
  payload_left_ = envelope.payload_bytes;
  return take_credit(at, envelope.payload_bytes);
}

Result<void> EdgeRules::take_credit(std::size_t at, std::uint64_t bytes) {
  Lane& lane = lanes_[at];
  lane.outstanding += bytes;
  if (lane.outstanding > limits_.window_bytes) return protocol_error("more than it has credit for");
  return {};
}

std::span<std::byte> EdgeRules::target() const {
  if (payload_left_ == 0) return {};
  const Arrival& arrival = *lanes_[lane_of(filling_)].arrival;
  return {arrival.at + arrival.got_bytes, payload_left_};
}

Result<void> EdgeRules::handle_landed(std::size_t count) {
  HOPLITE_CHECK(count <= payload_left_);
  Lane& lane = lanes_[lane_of(filling_)];
  Arrival& arrival = *lane.arrival;
  payload_left_ -= count;
  arrival.got_bytes += count;
  if (arrival.is_claimed) {
    return_credit(filling_, count);
  } else {
    arrival.unclaimed_bytes += count;
  }
  if (!arrival.is_whole()) return {};
  lane.arrival = nullptr;
  const auto at = inboxes_.find(filling_);
  Inbox& inbox = at->second;
  const bool is_first = inbox.arrivals.front().get() == &arrival;
  if (is_first && !arrival.is_claimed && !inbox.receives.empty()) {
    if (auto claimed = claim(inbox); !claimed) return claimed.error();
  }
  complete_if_whole(at);
  return {};
}

// Gives the first arrival to the first receive: its bytes land there from here on.
Result<void> EdgeRules::claim(Inbox& inbox) {
  Arrival& arrival = *inbox.arrivals.front();
  const Wanted& wanted = inbox.receives.front().wanted;
  if (auto fits = check_match(wanted, arrival.content); !fits) return fits.error();
  if (wanted.into && !arrival.content.is_notice) {
    copy_bytes(wanted.into->data(), arrival.at, arrival.got_bytes);
    arrival.at = wanted.into->data();
    arrival.data.reset();
  } else if (arrival.data == nullptr || arrival.content.size_bytes > limits_.window_bytes) {
    // Report missing memory as an error instead of ending the process: the peer chose the size.
    std::unique_ptr<std::byte[]> whole(new (std::nothrow) std::byte[arrival.content.size_bytes]);
    if (whole == nullptr) {
      return Error{Code::kStoreFull, "no memory for " + content_text(arrival.content) +
                                         " from rank " + std::to_string(peer_.value)};
    }
    copy_bytes(whole.get(), arrival.at, arrival.got_bytes);
    arrival.data = std::move(whole);
    arrival.at = arrival.data.get();
  }
  arrival.is_claimed = true;
  return_credit(arrival.content.key, std::exchange(arrival.unclaimed_bytes, 0));
  return {};
}

void EdgeRules::complete_if_whole(std::map<MatchKey, Inbox>::iterator at) {
  Inbox& inbox = at->second;
  if (inbox.arrivals.empty() || inbox.receives.empty()) return;
  Arrival& arrival = *inbox.arrivals.front();
  if (!arrival.is_claimed || !arrival.is_whole()) return;
  outcomes_.push_back(
      {inbox.receives.front().operation, std::move(arrival.content), std::move(arrival.data)});
  inbox.receives.pop_front();
  inbox.arrivals.pop_front();
  if (inbox.receives.empty() && inbox.arrivals.empty()) inboxes_.erase(at);
}

void EdgeRules::return_credit(MatchKey key, std::uint64_t bytes) {
  Lane& lane = lanes_[lane_of(key)];
  lane.owed += bytes;
  if (lane.owed < limits_.window_bytes / 4) return;
  Envelope credit{Verb::kCredit, 0, {}};
  credit.content.key = key;
  credit.content.size_bytes = lane.owed;
  lane.outstanding -= std::exchange(lane.owed, 0);
  if (out_ == Out::kOpen) control_.push_back(std::move(credit));
}

Result<void> EdgeRules::check_match(const Wanted& wanted, const Content& content) const {
  const bool fits = wanted.operation == content.operation &&
                    (!wanted.into || content.is_notice ||
                     (wanted.into->size() == content.size_bytes && wanted.dtype == content.dtype));
  if (fits) return {};
  std::string text = "rank " + std::to_string(peer_.value) + " sent " + content_text(content);
  if (wanted.operation != content.operation) {
    text += " by operation " + std::to_string(content.operation) + ", and operation " +
            std::to_string(wanted.operation) + " was called here";
  } else {
    text += ", and " + std::to_string(wanted.into->size()) + " B of " + wanted.dtype +
            " were to be received";
  }
  return Error{Code::kLayoutMismatch, text + "; all members must call the same"};
}

Error EdgeRules::protocol_error(const std::string& what) const {
  return {Code::kBadFrame, "rank " + std::to_string(peer_.value) + " sent " + what};
}

// ---- what goes ----

Frame EdgeRules::poll_frame() {
  if (!frame_.head.empty() || !frame_.payload.empty() || out_ == Out::kOver) return frame_;
  if (!control_.empty()) {
    writing_ = nullptr;
    write(control_.front(), {});
    control_.pop_front();
    return frame_;
  }
  for (std::size_t i = 0; i < kLanes; ++i) {
    Lane& lane = lanes_[std::exchange(next_lane_, (next_lane_ + 1) % kLanes)];
    if (choose_message(lane)) return frame_;
  }
  const bool has_all_gone = lanes_[0].sendings.empty() && lanes_[1].sendings.empty();
  if (out_ == Out::kLeaving && has_all_gone) {
    out_ = Out::kLastFrame;
    writing_ = nullptr;
    write({Verb::kGoodbye, 0, {}}, {});
  }
  return frame_;
}

bool EdgeRules::choose_message(Lane& lane) {
  if (lane.sendings.empty()) return false;
  Sending& sending = lane.sendings.front();
  const std::uint64_t overhead = sending.has_begun ? 0 : overhead_bytes(sending.content);
  const std::uint64_t enough =
      std::min<std::uint64_t>(sending.bytes.size(), limits_.payload_bytes_min);
  if (lane.credit < overhead + enough) return false;
  const std::uint64_t payload = std::min<std::uint64_t>(
      {sending.bytes.size(), limits_.payload_bytes_max, lane.credit - overhead});
  lane.credit -= overhead + payload;
  Envelope envelope{Verb::kData, static_cast<std::uint32_t>(payload), {}};
  if (std::exchange(sending.has_begun, true)) {
    envelope.content.key = sending.content.key;
  } else {
    envelope.verb = Verb::kMessage;
    envelope.content = sending.content;
  }
  const auto bytes = sending.bytes.first(payload);
  sending.bytes = sending.bytes.subspan(payload);
  writing_ = &lane;
  write(envelope, bytes);
  return true;
}

void EdgeRules::write(const Envelope& envelope, std::span<const std::byte> payload) {
  head_out_.clear();
  encode_envelope(envelope, head_out_);
  frame_ = {head_out_, payload};
}

void EdgeRules::handle_written(std::size_t count) {
  const std::size_t of_head = std::min(count, frame_.head.size());
  frame_.head = frame_.head.subspan(of_head);
  frame_.payload = frame_.payload.subspan(count - of_head);
  if (frame_.head.empty() && frame_.payload.empty()) finish_frame();
}

void EdgeRules::finish_frame() {
  frame_ = {};
  if (Lane* const lane = std::exchange(writing_, nullptr)) {
    const Sending& sending = lane->sendings.front();
    if (!sending.bytes.empty()) return;
    if (sending.operation != OperationId{}) outcomes_.push_back({sending.operation, {}, nullptr});
    lane->sendings.pop_front();
  } else if (out_ == Out::kLastFrame && control_.empty()) {
    out_ = Out::kOver;
  }
}

// ---- what has become of it ----

std::optional<Outcome> EdgeRules::poll_outcome() {
  if (outcomes_.empty()) return std::nullopt;
  Outcome outcome = std::move(outcomes_.front());
  outcomes_.pop_front();
  return outcome;
}

bool EdgeRules::has_moved(OperationId operation) const {
  for (const Lane& lane : lanes_) {
    const auto sending = std::ranges::find(lane.sendings, operation, &Sending::operation);
    if (sending != lane.sendings.end()) return sending->has_begun;
  }
  return std::ranges::any_of(inboxes_, [&](const auto& each) {
    const Inbox& inbox = each.second;
    return !inbox.arrivals.empty() && !inbox.receives.empty() &&
           inbox.receives.front().operation == operation;
  });
}

bool EdgeRules::is_waiting() const {
  return !lanes_[0].sendings.empty() || !lanes_[1].sendings.empty() || has_receive();
}

bool EdgeRules::has_receive() const {
  return std::ranges::any_of(inboxes_,
                             [](const auto& each) { return !each.second.receives.empty(); });
}

bool EdgeRules::waits_in_vain() const {
  const auto has_caller = [](const Sending& each) { return each.operation != OperationId{}; };
  const auto waits = [&](const Lane& lane) {
    return std::ranges::any_of(lane.sendings, has_caller);
  };
  return has_left_ && (std::ranges::any_of(lanes_, waits) || has_receive());
}

}  // namespace hoplite::worlds

// One member's half of one edge: which bytes go out next, where those that come in belong, and
// which operations that ends. Bytes in, bytes out: no descriptor, no clock, no lock.
//  - A lane (point to point, collectives) is a stream of messages with a window of credit: what
//    nobody has asked for yet waits here up to the window, and at its sender beyond that. A message
//    that is awaited lands where the receiver wants it. So small messages go at once and large ones
//    meet their receiver, by one mechanism; neither lane waits for the other's credit.
//  - Messages of one key meet receives of that key in the order of both.
//  - What has landed is never lost: a receive that is cancelled in mid-message leaves the message
//    to the next one. What a sender has begun is finished from a copy when it is cancelled.
//  - A caller's buffer is its own again as soon as its operation has ended, however it did.
// MultiWorld, with eager and rendezvous as in MPI; design decision 22a. One thread at a time.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "world/edge_limits.h"
#include "world/envelope.h"
#include "world/operation.h"

namespace hoplite::worlds {

struct Frame {  // the rest of it
  std::span<const std::byte> head;
  std::span<const std::byte> payload;
};

class EdgeRules {
 public:
  explicit EdgeRules(Rank peer, const EdgeLimits& limits = {});

  // The bytes stay as they are until the operation has ended.
  void handle_send(OperationId operation, Content content, std::span<const std::byte> bytes);
  // An error is a mismatch with what has come: the world's end.
  [[nodiscard]] Result<void> handle_receive(OperationId operation, Wanted wanted);
  // Returns whether it was open; its buffer is its caller's again. An error is a mismatch of what
  // had come for it with the next receive: the world's end.
  Result<bool> handle_cancel(OperationId operation);
  void handle_leave();                 // after all that is to be sent: Goodbye
  void handle_ending(const End& end);  // instead of all that is to be sent: why the world ended

  // How much of the next envelope is missing; 0: its payload comes next, to target().
  [[nodiscard]] std::size_t missing_bytes() const;
  // Whether the frame under way is not the last one of its message.
  [[nodiscard]] bool is_amid_message() const;
  // Of messages under way, what has credit: it comes once all frames here are written. At least 1.
  [[nodiscard]] std::uint64_t coming_bytes() const;
  // Takes what came, at most to the end of one frame, and returns how much that is.
  [[nodiscard]] Result<std::size_t> handle_bytes(std::span<const std::byte> bytes);
  // Where the next bytes of payload belong; handle_landed says how many are there.
  [[nodiscard]] std::span<std::byte> target() const;
  [[nodiscard]] Result<void> handle_landed(std::size_t count);

  // What is to be written now: the rest of a frame, or nothing. Valid until the next call.
  [[nodiscard]] Frame poll_frame();
  void handle_written(std::size_t count);

  [[nodiscard]] std::optional<Outcome> poll_outcome();
  [[nodiscard]] bool has_outcome() const { return !outcomes_.empty(); }

  [[nodiscard]] bool has_moved(OperationId operation) const;
  [[nodiscard]] bool is_waiting() const;  // for anything of the peer: bytes or credit
  [[nodiscard]] bool has_left() const { return has_left_; }  // the peer said Goodbye
  [[nodiscard]] const std::optional<End>& ending() const { return ending_; }  // it said why
  // Does a receive or a send wait for a peer that has left?
  [[nodiscard]] bool waits_in_vain() const;
  [[nodiscard]] bool is_over() const { return is_over_; }  // our last word is written

 private:
  struct Sending {
    OperationId operation;  // 0: cancelled, and finished from `copy`
    Content content;
    std::span<const std::byte> bytes;  // what is not in a frame yet
    bool has_begun = false;
    std::unique_ptr<std::byte[]> copy;
  };
  struct Arrival {
    Content content;
    std::uint64_t got_bytes = 0;
    std::uint64_t unclaimed_bytes = 0;  // for which no credit was given back
    bool is_claimed = false;            // lands where the first receive wants it
    std::unique_ptr<std::byte[]> data;
    std::byte* at = nullptr;
    [[nodiscard]] bool is_whole() const { return got_bytes == content.size_bytes; }
  };
  struct Receiving {
    OperationId operation;
    Wanted wanted;
  };
  struct Inbox {  // the i-th receive takes the i-th arrival; only the last one may be unfinished
    std::list<Receiving> receives;
    std::list<std::unique_ptr<Arrival>> arrivals;
  };
  struct Lane {
    std::deque<Sending> sendings;
    std::uint64_t credit = 0;
    Arrival* arrival = nullptr;     // that is not whole yet
    std::uint64_t outstanding = 0;  // what came, and no credit was given back for it
    std::uint64_t owed = 0;         // the part of it that was taken out
  };

  [[nodiscard]] bool has_receive() const;
  [[nodiscard]] Result<void> handle_envelope(const Envelope& envelope);
  [[nodiscard]] Result<void> handle_message(const Envelope& envelope);
  [[nodiscard]] Result<void> handle_data(const Envelope& envelope);
  [[nodiscard]] Result<void> take_credit(std::size_t lane, std::uint64_t bytes);
  [[nodiscard]] Result<void> claim(Inbox& inbox);
  void complete_if_whole(std::map<MatchKey, Inbox>::iterator inbox);
  void give_back(MatchKey key, std::uint64_t bytes);
  [[nodiscard]] Result<void> compare(const Wanted& wanted, const Content& content) const;
  [[nodiscard]] Error nonsense(const std::string& what) const;
  static void leave_to_the_next(Inbox& inbox);

  bool choose_message(Lane& lane);
  void write(const Envelope& envelope, std::span<const std::byte> payload);
  void end_of_frame();

  Rank peer_;
  EdgeLimits limits_;
  std::array<Lane, kLanes> lanes_;
  std::map<MatchKey, Inbox> inboxes_;
  // Out.
  std::deque<Envelope> control_;
  std::vector<std::byte> head_out_;
  std::unique_ptr<std::byte[]> last_payload_;  // of a frame that an ending has cut off
  Frame frame_;
  Lane* writing_ = nullptr;  // whose message the frame is of
  std::size_t next_lane_ = 0;
  bool is_leaving_ = false;
  bool is_ending_ = false;
  bool is_over_ = false;
  // In.
  std::vector<std::byte> head_in_;
  std::size_t head_bytes_ = kEnvelopeBytes;
  std::uint64_t payload_left_ = 0;
  MatchKey filling_;  // the payload's
  bool has_left_ = false;
  std::optional<End> ending_;
  std::deque<Outcome> outcomes_;
};

}  // namespace hoplite::worlds

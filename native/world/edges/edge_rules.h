// SPDX-License-Identifier: Apache-2.0
// One member's half of one edge: which bytes go out next, where those that come in belong, and
// which operations that ends. Bytes in, bytes out: no descriptor, no clock, no lock.
//  - A lane (point to point, collectives) is a stream of messages with a window of credit. A
//    message without a receive waits here up to the window, and at its sender beyond it. A message
//    with a receive lands in the receive's buffer. Neither lane waits for the other's credit.
//  - The n-th message of a key goes to the n-th receive of that key.
//  - Landed bytes are never lost: a receive that is cancelled in mid-message leaves the message to
//    the next receive. A send that is cancelled in mid-message is finished from a copy.
//  - A buffer belongs to its caller again as soon as its operation has ended or failed.
// MultiWorld, with eager and rendezvous as in MPI; design decision 22a. One thread at a time.
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
#include "world/edges/edge_limits.h"
#include "world/edges/envelope.h"
#include "world/edges/operation.h"

namespace hoplite::worlds {

struct Frame {  // the part of the frame that is not written yet
  std::span<const std::byte> head;
  std::span<const std::byte> payload;
};

class EdgeRules {
 public:
  explicit EdgeRules(Rank peer, const EdgeLimits& limits = {});

  // REQUIRES: `bytes` stay valid and unchanged until the operation has ended.
  void handle_send(OperationId operation, Content content, std::span<const std::byte> bytes);
  // Returns an error if the message that has come does not fit; it ends the world.
  [[nodiscard]] Result<void> handle_receive(OperationId operation, Wanted wanted);
  // Returns whether the operation was open; its buffer then belongs to its caller again. Returns
  // an error if the message that it leaves does not fit the next receive; it ends the world.
  Result<bool> handle_cancel(OperationId operation);
  void handle_leave();                 // sends Goodbye after all pending sends
  void handle_ending(const End& end);  // drops all pending sends and sends the world's end

  // Returns how many bytes of the next envelope are missing; 0 if payload comes next, to target().
  [[nodiscard]] std::size_t missing_bytes() const;
  // True if the payload that comes now is not the last of its message.
  [[nodiscard]] bool is_amid_message() const;
  // Returns how many bytes of unfinished messages come without more credit than the written frames
  // give. At least 1.
  [[nodiscard]] std::uint64_t coming_bytes() const;
  // Takes received bytes, at most to the end of one frame, and returns how many it took.
  [[nodiscard]] Result<std::size_t> handle_bytes(std::span<const std::byte> bytes);
  // Returns the place for the next bytes of payload. The caller reports them by handle_landed().
  [[nodiscard]] std::span<std::byte> target() const;
  [[nodiscard]] Result<void> handle_landed(std::size_t count);

  // Returns the rest of the frame to write now, or an empty frame. Valid until the next call.
  [[nodiscard]] Frame poll_frame();
  void handle_written(std::size_t count);

  [[nodiscard]] std::optional<Outcome> poll_outcome();
  [[nodiscard]] bool has_outcome() const { return !outcomes_.empty(); }

  [[nodiscard]] bool has_moved(OperationId operation) const;
  [[nodiscard]] bool is_waiting() const;  // True if a send or a receive is pending
  [[nodiscard]] bool has_left() const { return has_left_; }  // True if the peer sent Goodbye
  [[nodiscard]] const std::optional<End>& ending() const { return ending_; }  // the peer's report
  // True if a receive or a send waits for a peer that has left.
  [[nodiscard]] bool waits_in_vain() const;
  [[nodiscard]] bool is_over() const { return out_ == Out::kOver; }  // the last frame is written

 private:
  struct Sending {
    OperationId operation;  // 0: cancelled, and finished from `copy`
    Content content;
    std::span<const std::byte> bytes;  // the bytes that no frame holds yet
    bool has_begun = false;
    std::unique_ptr<std::byte[]> copy;
  };
  struct Arrival {
    Content content;
    std::uint64_t got_bytes = 0;
    std::uint64_t unclaimed_bytes = 0;  // credit to give back once a receive claims it
    bool is_claimed = false;            // True if it lands where the first receive wants it
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
    Arrival* arrival = nullptr;     // the message that is not whole yet
    std::uint64_t outstanding = 0;  // bytes that have come without credit sent back for them
    std::uint64_t owed = 0;         // the part of `outstanding` that receives have taken
  };

  [[nodiscard]] bool has_receive() const;
  [[nodiscard]] Result<void> handle_envelope(const Envelope& envelope);
  [[nodiscard]] Result<void> handle_message(const Envelope& envelope);
  [[nodiscard]] Result<void> handle_data(const Envelope& envelope);
  [[nodiscard]] Result<void> take_credit(std::size_t lane, std::uint64_t bytes);
  [[nodiscard]] Result<void> claim(Inbox& inbox);
  void complete_if_whole(std::map<MatchKey, Inbox>::iterator inbox);
  void return_credit(MatchKey key, std::uint64_t bytes);
  [[nodiscard]] Result<void> check_match(const Wanted& wanted, const Content& content) const;
  [[nodiscard]] Error protocol_error(const std::string& what) const;
  static void pass_to_next_receive(Inbox& inbox);
  bool choose_message(Lane& lane);
  void write(const Envelope& envelope, std::span<const std::byte> payload);
  void finish_frame();

  Rank peer_;
  EdgeLimits limits_;
  std::array<Lane, kLanes> lanes_;
  std::map<MatchKey, Inbox> inboxes_;
  // Out.
  std::deque<Envelope> control_;
  std::vector<std::byte> head_out_;
  std::unique_ptr<std::byte[]> last_payload_;  // copied when the world ends in mid-frame
  Frame frame_;
  Lane* writing_ = nullptr;  // the lane of the message in frame_; null for a control frame
  std::size_t next_lane_ = 0;
  // kOpen -> kLeaving by handle_leave(). Either -> kLastFrame by handle_ending(), or when Goodbye
  // follows the last send. kLastFrame -> kOver when that frame is written.
  enum class Out : std::uint8_t { kOpen, kLeaving, kLastFrame, kOver };
  Out out_ = Out::kOpen;
  // In.
  std::vector<std::byte> head_in_;
  std::size_t head_bytes_ = kEnvelopeBytes;
  std::uint64_t payload_left_ = 0;
  MatchKey filling_;  // the key of the payload that comes now
  bool has_left_ = false;
  std::optional<End> ending_;
  std::deque<Outcome> outcomes_;
};

}  // namespace hoplite::worlds

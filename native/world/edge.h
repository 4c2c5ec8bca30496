// One member's end of one edge: its rules, and the pipe that their bytes go by. Whoever holds the
// world's lock may call it: a caller's thread carries its own operation as far as it goes without
// waiting, and the progress thread whatever waits. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/result.h"
#include "io/poller.h"
#include "world/edge_rules.h"
#include "world/pipe.h"

namespace hoplite::worlds {

// Of one turn, so that no other edge and no caller waits for long.
inline constexpr std::size_t kTurnBytesMax = 1_MiB;

class Edge {
 public:
  Edge(Rank peer, std::uint64_t token, std::unique_ptr<Pipe> pipe)
      : rules_(peer), peer_(peer), token_(token), pipe_(std::move(pipe)) {}

  [[nodiscard]] EdgeRules& rules() { return rules_; }
  [[nodiscard]] Pipe& pipe() { return *pipe_; }
  [[nodiscard]] Rank peer() const { return peer_; }
  [[nodiscard]] std::uint64_t token() const { return token_; }

  // Writes until the pipe takes no more, a turn is full, or nothing is left. An error is the edge's
  // end, of which read() may know more.
  [[nodiscard]] Result<void> write();
  // Reads until nothing is there, a turn is full, an operation has ended or nobody waits any more,
  // as asked, or the peer has said its last word.
  enum class Reading : std::uint8_t { kAll, kUntilOutcome, kWhileAwaited };
  [[nodiscard]] Result<void> read(Reading reading);
  // Throws away what comes, after our last word. Returns whether the peer has ended as well.
  [[nodiscard]] bool drain();
  // Nothing more will be written; idempotent. kWhenSent does nothing while bytes are unsent.
  enum class Finishing : std::uint8_t { kWhenSent, kAtOnce };
  void finish(Finishing when);

  [[nodiscard]] bool is_blocked() const { return is_blocked_; }  // bytes to write, and no room
  [[nodiscard]] bool has_more() const { return has_more_; }      // the turn was full
  [[nodiscard]] bool has_read_ahead() const { return staged_at_ < staged_end_; }

  // What the poller has been told to wait for.
  Interest armed = Interest::kNone;
  // Nobody waits for anything of it, so that no thread reads what a caller may soon want in a place
  // of its own; and it was used since somebody last looked.
  bool is_resting = false;
  bool was_used = false;
  bool is_retired = false;  // no poller knows it any more

 private:
  [[nodiscard]] Result<void> write_frames();
  [[nodiscard]] Result<std::size_t> read_some();

  EdgeRules rules_;
  Rank peer_;
  std::uint64_t token_;
  std::unique_ptr<Pipe> pipe_;
  std::vector<std::byte> staged_;  // read ahead, and for envelopes
  std::size_t staged_at_ = 0;
  std::size_t staged_end_ = 0;
  bool is_blocked_ = false;
  bool has_more_ = false;
  bool is_finished_ = false;
};

}  // namespace hoplite::worlds

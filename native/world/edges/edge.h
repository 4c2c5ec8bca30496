// SPDX-License-Identifier: Apache-2.0
// One member's end of one edge: its rules, and the pipe that carries their bytes. Any thread that
// holds the world's lock may call it. A caller's thread carries its own operation as far as it goes
// without waiting; the progress thread carries the rest. Design decision 22g.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/result.h"
#include "io/sockets/poller.h"
#include "world/edges/edge_rules.h"
#include "world/pipes/pipe.h"

namespace hoplite::worlds {

// Bytes that one turn reads or writes at most. A longer transfer goes on in the next turn, so that
// no other edge and no caller waits for long. A choice, not a measurement.
inline constexpr std::size_t kTurnBytesMax = 1_MiB;

class Edge {
 public:
  Edge(Rank peer, std::uint64_t token, std::unique_ptr<Pipe> pipe)
      : rules_(peer), peer_(peer), token_(token), pipe_(std::move(pipe)) {}

  [[nodiscard]] EdgeRules& rules() { return rules_; }
  [[nodiscard]] Pipe& pipe() { return *pipe_; }
  [[nodiscard]] Rank peer() const { return peer_; }
  [[nodiscard]] std::uint64_t token() const { return token_; }

  // Writes until the pipe takes no more, the turn is full, or nothing is left. An error ends the
  // edge; read() may still find the peer's reason for it.
  [[nodiscard]] Result<void> write();
  // Reads until the pipe is empty, the turn is full, or the peer's last frame has come.
  // kUntilOutcome also stops when an operation has ended, and kWhileAwaited when no operation
  // waits for the peer.
  enum class Reading : std::uint8_t { kAll, kUntilOutcome, kWhileAwaited };
  [[nodiscard]] Result<void> read(Reading reading);
  // Discards what the peer sends after this end's last frame. Returns whether the peer's end is
  // closed.
  [[nodiscard]] bool drain();
  // Closes the pipe for writing. Idempotent. kWhenSent does nothing while bytes are unsent.
  enum class Finishing : std::uint8_t { kWhenSent, kAtOnce };
  void finish(Finishing when);

  [[nodiscard]] bool is_blocked() const { return is_blocked_; }  // bytes to write, and no room
  [[nodiscard]] bool has_more() const { return has_more_; }      // the turn was full
  [[nodiscard]] bool has_read_ahead() const { return staged_at_ < staged_end_; }

  // The interest that the poller has for this edge.
  Interest armed = Interest::kNone;
  // Whether the progress thread reads the edge. An edge rests while no operation waits for the
  // peer: a later receive can then take the bytes straight into its buffer. Transitions:
  //
  //   from              event                                       to
  //   kPolled, kIdle    a caller leaves no operation that waits     kUsed
  //   kUsed             World::handle_rest()                        kIdle
  //   kIdle             World::handle_rest()                        kPolled
  //   kUsed, kIdle      an operation waits, or bytes to write       kPolled
  //   any               the peer or the world has ended             kUnregistered
  enum class Watch : std::uint8_t {
    kPolled,
    kUsed,          // rests, and a caller has used it since the last handle_rest()
    kIdle,          // rests, and no caller has used it since then
    kUnregistered,  // the poller has forgotten it
  };
  Watch watch = Watch::kPolled;
  [[nodiscard]] bool rests() const { return watch == Watch::kUsed || watch == Watch::kIdle; }
  [[nodiscard]] bool is_unregistered() const { return watch == Watch::kUnregistered; }

 private:
  [[nodiscard]] Result<void> write_frames();
  [[nodiscard]] Result<std::size_t> read_some();

  EdgeRules rules_;
  Rank peer_;
  std::uint64_t token_;
  std::unique_ptr<Pipe> pipe_;
  std::vector<std::byte> staged_;  // bytes read ahead of their place, envelopes among them
  std::size_t staged_at_ = 0;
  std::size_t staged_end_ = 0;
  bool is_blocked_ = false;
  bool has_more_ = false;
  bool is_finished_ = false;
};

}  // namespace hoplite::worlds

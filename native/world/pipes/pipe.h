// SPDX-License-Identifier: Apache-2.0
// The interface of a transport: carries the bytes of one edge, in order, in both directions. Any
// thread that holds the world's lock may call it. Design decision 22.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.h"
#include "io/sockets/poller.h"

namespace hoplite::worlds {

class Pipe {
 public:
  Pipe() = default;
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  virtual ~Pipe() = default;

  // Returns how many bytes it took; 0 if there is no room now.
  [[nodiscard]] virtual Result<std::size_t> write(std::span<iovec> parts) = 0;
  // Ends a run of writes: wakes a peer that sleeps for more bytes than have been written.
  virtual void flush() {}
  // True if write() has taken bytes that are still here. flush() sends them later, and the poller
  // must wait for room.
  [[nodiscard]] virtual bool has_unsent() const { return false; }
  // Returns how many bytes came; 0 if none is there now. The end is an error: kPeerLost if the
  // peer's process or its end is gone, kSystem if the network has cut it off.
  [[nodiscard]] virtual Result<std::size_t> read(std::span<iovec> parts) = 0;
  // Returns how many bytes to read beyond those that have a place, so that small messages share a
  // system call.
  [[nodiscard]] virtual std::size_t read_ahead_bytes() const = 0;

  // The descriptor that a poller watches for this pipe.
  [[nodiscard]] virtual int fd() const = 0;
  // Announces, before the poller sleeps, what it waits for. `enough` is how many bytes are worth a
  // wake-up while the peer has more. Returns true if they are there already: the poller must not
  // sleep.
  [[nodiscard]] virtual bool await(Interest interest, std::uint64_t enough) = 0;
  // Returns the interest that the poller needs to wait for `awaited`.
  [[nodiscard]] virtual Interest interest_of(Interest awaited) const = 0;
  // The poller has found the descriptor readable.
  virtual void handle_ready() = 0;
  // Closes the pipe for writing and drops unsent bytes.
  virtual void finish() = 0;
  // True if the peer has taken all written bytes. REQUIRES: read() has found the end.
  [[nodiscard]] virtual bool has_delivered_all() const = 0;

  [[nodiscard]] virtual const char* name() const = 0;
};

}  // namespace hoplite::worlds

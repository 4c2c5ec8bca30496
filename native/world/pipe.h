// The bytes of one edge, in order, in both directions: what a transport is. Whoever holds the
// world's lock may call it. Design decision 22. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.h"
#include "io/poller.h"

namespace hoplite::worlds {

class Pipe {
 public:
  Pipe() = default;
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  virtual ~Pipe() = default;

  // How many bytes were taken; 0: none now.
  [[nodiscard]] virtual Result<std::size_t> write(std::span<iovec> parts) = 0;
  // Nothing more is written for now: a peer that sleeps for more than that gets to know.
  virtual void flush() {}
  // True if write() has taken bytes that are still here: flush() goes on with them, and the poller
  // is to wait for room.
  [[nodiscard]] virtual bool has_unsent() const { return false; }
  // How many bytes came; 0: none now. The end is an error: kPeerLost if the peer's process or its
  // end is gone, kSystem if the network has cut it off.
  [[nodiscard]] virtual Result<std::size_t> read(std::span<iovec> parts) = 0;
  // How much to read beyond what has a place already, so that small messages share a call.
  [[nodiscard]] virtual std::size_t read_ahead_bytes() const = 0;

  // What a poller waits for, on the peer's behalf.
  [[nodiscard]] virtual int fd() const = 0;
  // Says what is waited for before the poller sleeps, and how many bytes are worth waking up for
  // while the peer has more. Returns whether it is there already, so that the poller must not
  // sleep.
  [[nodiscard]] virtual bool await(Interest interest, std::uint64_t enough) = 0;
  // What the poller is to wait for then.
  [[nodiscard]] virtual Interest interest_of(Interest awaited) const = 0;
  // The poller has found it readable.
  virtual void handle_ready() = 0;
  // Nothing more will be written; what is unsent is dropped.
  virtual void finish() = 0;
  // Once read() has found the end: whether the peer had taken all that was written.
  [[nodiscard]] virtual bool took_all() const = 0;

  [[nodiscard]] virtual const char* name() const = 0;
};

}  // namespace hoplite::worlds

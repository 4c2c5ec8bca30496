// An edge by shared memory, between processes of one host: a memfd with one ring of bytes for each
// direction, each with one writer and one reader, and a Unix socket that wakes whoever sleeps and
// tells of a death. Nobody spins, and nobody holds a lock that could die with it: a ring has two
// counters, each written by one side. Memory and counters are the peer's as well: what it writes
// there is checked like bytes from a socket.
//  - The memory has no name and its seals keep its size, so that a peer can neither leave it behind
//    nor take it from under us.
// MultiWorld's shared-memory edges; design decision 22g. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "base/units.h"
#include "io/mapping.h"
#include "io/unique_fd.h"
#include "world/pipe.h"

namespace hoplite::worlds {

// Of one direction. Two cores pass 4 MiB through it without waiting for each other's wake-ups.
inline constexpr std::uint64_t kRingBytes = 2_MiB;
inline constexpr std::uint64_t kRingHeadBytes = 4_KiB;
inline constexpr std::uint64_t kRingsBytes = 2 * (kRingHeadBytes + kRingBytes);

struct RingHead {
  // Counters of bytes since the beginning; apart, so that the two sides share no line of cache.
  alignas(128) std::atomic<std::uint64_t> written;
  std::atomic<std::uint32_t> is_writing;  // more than was written so far
  alignas(128) std::atomic<std::uint64_t> taken;
  // How many bytes, or how much room, it sleeps for; 0: it is awake.
  alignas(128) std::atomic<std::uint32_t> reader_sleeps_for;
  alignas(128) std::atomic<std::uint32_t> writer_sleeps_for;
};
static_assert(sizeof(RingHead) <= kRingHeadBytes &&
              std::atomic<std::uint64_t>::is_always_lock_free);

enum class RingSide : std::uint8_t { kFirst, kSecond };  // the memory's maker is the first

class RingPipe final : public Pipe {
 public:
  // `memory` is a memfd of kRingsBytes, sealed against changes of its size; zeroes at first.
  [[nodiscard]] static Result<std::unique_ptr<RingPipe>> open(UniqueFd socket, UniqueFd memory,
                                                              RingSide side);

  [[nodiscard]] Result<std::size_t> write(std::span<iovec> parts) override;
  void flush() override;
  [[nodiscard]] Result<std::size_t> read(std::span<iovec> parts) override;
  [[nodiscard]] std::size_t read_ahead_bytes() const override { return 0; }  // a call costs nothing
  [[nodiscard]] int fd() const override { return socket_.value(); }
  [[nodiscard]] bool await(Interest interest, std::uint64_t enough) override;
  [[nodiscard]] Interest interest_of(Interest) const override { return Interest::kRead; }
  void handle_ready() override;
  void finish() override;
  [[nodiscard]] bool took_all() const override;
  [[nodiscard]] const char* name() const override { return "shared_memory"; }

 private:
  struct Ring {
    RingHead* head;
    std::byte* bytes;
  };
  RingPipe(UniqueFd socket, Mapping memory, RingSide side);
  [[nodiscard]] Result<std::uint64_t> filled(const Ring& ring) const;
  void wake(std::atomic<std::uint32_t>& sleeps_for, std::uint64_t there);

  UniqueFd socket_;
  Mapping memory_;
  Ring out_;
  Ring in_;
  std::uint64_t written_ = 0;  // what we know of our own counters: the peer can write to them
  std::uint64_t taken_ = 0;
  bool is_writing_ = false;  // since the last flush()
  bool has_ended_ = false;   // the peer's end of the socket
};

}  // namespace hoplite::worlds

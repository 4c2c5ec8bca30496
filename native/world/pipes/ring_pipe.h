// SPDX-License-Identifier: Apache-2.0
// An edge by shared memory, between processes of one host. A memfd holds one ring of bytes for each
// direction, with one writer and one reader. A Unix socket wakes a sleeping side and shows a death.
//  - No side spins, and there is no lock that a dying side could hold: a ring has two counters, and
//    one side writes each.
//  - The peer can write to the memory and the counters, so they are checked like bytes of a socket.
//  - The memory has no name, so no process can leave it behind. Its seals keep its size, so that
//    the peer cannot shrink it.
// MultiWorld's shared-memory edges; design decision 22g.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "base/units.h"
#include "io/memory/mapping.h"
#include "io/sockets/unique_fd.h"
#include "world/pipes/pipe.h"

namespace hoplite::worlds {

// Room of one direction. A writer waits for its reader beyond it. Larger rings are no faster.
// Design decision 22g.
inline constexpr std::uint64_t kRingBytes = 2_MiB;
inline constexpr std::uint64_t kRingHeadBytes = 4_KiB;
inline constexpr std::uint64_t kRingsBytes = 2 * (kRingHeadBytes + kRingBytes);

struct RingHead {
  // Counters of bytes from the beginning, apart so that the two sides share no cache line.
  alignas(128) std::atomic<std::uint64_t> written;
  std::atomic<std::uint32_t> is_writing;  // 1 from the writer's first write until its flush()
  alignas(128) std::atomic<std::uint64_t> taken;
  // Bytes that the reader, or room that the writer, sleeps for; 0: it is awake.
  alignas(128) std::atomic<std::uint32_t> reader_sleeps_for;
  alignas(128) std::atomic<std::uint32_t> writer_sleeps_for;
};
static_assert(sizeof(RingHead) <= kRingHeadBytes &&
              std::atomic<std::uint64_t>::is_always_lock_free);

enum class RingSide : std::uint8_t { kFirst, kSecond };  // kFirst has made the memory

class RingPipe final : public Pipe {
 public:
  // REQUIRES: `memory` is a memfd of kRingsBytes zeroes. Returns an error if its size differs or is
  // not sealed.
  [[nodiscard]] static Result<std::unique_ptr<RingPipe>> open(UniqueFd socket, UniqueFd memory,
                                                              RingSide side);

  [[nodiscard]] Result<std::size_t> write(std::span<iovec> parts) override;
  void flush() override;
  [[nodiscard]] Result<std::size_t> read(std::span<iovec> parts) override;
  [[nodiscard]] std::size_t read_ahead_bytes() const override { return 0; }  // a read is cheap
  [[nodiscard]] int fd() const override { return socket_.value(); }
  [[nodiscard]] bool await(Interest interest, std::uint64_t enough) override;
  [[nodiscard]] Interest interest_of(Interest) const override { return Interest::kRead; }
  void handle_ready() override;
  void finish() override;
  [[nodiscard]] bool has_delivered_all() const override;
  [[nodiscard]] const char* name() const override { return "shared_memory"; }

 private:
  struct Ring {
    RingHead* head;
    std::byte* bytes;
  };
  RingPipe(UniqueFd socket, Mapping memory, RingSide side);
  [[nodiscard]] Result<std::uint64_t> used_bytes(const Ring& ring) const;
  void wake(std::atomic<std::uint32_t>& sleeps_for, std::uint64_t there);

  UniqueFd socket_;
  Mapping memory_;
  Ring out_;
  Ring in_;
  std::uint64_t written_ = 0;  // copies of this side's own counters, which the peer could overwrite
  std::uint64_t taken_ = 0;
  bool is_writing_ = false;  // True if bytes were written since the last flush()
  bool has_ended_ = false;   // True if the peer's end of the socket is closed
};

}  // namespace hoplite::worlds

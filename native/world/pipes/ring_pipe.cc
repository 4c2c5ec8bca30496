// SPDX-License-Identifier: Apache-2.0
#include "world/pipes/ring_pipe.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <new>
#include <utility>

#include "base/copy.h"
#include "io/sockets/system_error.h"
#include "world/pipes/socket_pipe.h"

namespace hoplite::worlds {
namespace {

// Bytes that one side copies before it shows them to the other, so that both copy at the same time.
constexpr std::uint64_t kStepBytes = 256_KiB;
// A side never sleeps for more bytes, or room, than half a ring. Less means a wake-up for each
// step; more lets the other side run out of room or bytes. Design decision 22g.
constexpr std::uint32_t kEnoughBytesMax = kRingBytes / 2;
constexpr int kKnocksMax = 64;  // reads of the socket in one turn: a peer may knock without end

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

// A range of a ring lies in one or two runs, because it may wrap around the end.
void copy_in(std::byte* ring, std::uint64_t at, const std::byte* from, std::uint64_t size) {
  const std::uint64_t first = std::min(size, kRingBytes - at % kRingBytes);
  copy_bytes(ring + at % kRingBytes, from, first);
  copy_bytes(ring, from + first, size - first);
}

void copy_out(const std::byte* ring, std::uint64_t at, std::byte* to, std::uint64_t size) {
  const std::uint64_t first = std::min(size, kRingBytes - at % kRingBytes);
  copy_bytes(to, ring + at % kRingBytes, first);
  copy_bytes(to + first, ring, size - first);
}

}  // namespace

Result<std::unique_ptr<RingPipe>> RingPipe::open(UniqueFd socket, UniqueFd memory, RingSide side) {
  if (auto prepared = SocketPipe::prepare(socket.value()); !prepared) return prepared.error();
  struct stat status{};
  if (::fstat(memory.value(), &status) != 0) return system_error("fstat of a world's memory");
  const int seals = ::fcntl(memory.value(), F_GET_SEALS);
  if (static_cast<std::uint64_t>(status.st_size) != kRingsBytes || seals < 0 ||
      (seals & kSeals) != kSeals) {
    return Error{Code::kBadFrame, "a world's memory has another size, or is not sealed"};
  }
  auto mapping = Mapping::open(memory.value(), 0, kRingsBytes, PROT_READ | PROT_WRITE, MAP_SHARED);
  if (!mapping) return mapping.error();
  return std::unique_ptr<RingPipe>(new RingPipe(std::move(socket), std::move(*mapping), side));
}

RingPipe::RingPipe(UniqueFd socket, Mapping memory, RingSide side)
    : socket_(std::move(socket)), memory_(std::move(memory)) {
  const auto ring = [&](std::uint64_t offset) {
    std::byte* const at = memory_.bytes().data() + offset;
    return Ring{std::launder(reinterpret_cast<RingHead*>(at)), at + kRingHeadBytes};
  };
  out_ = ring(0);
  in_ = ring(kRingHeadBytes + kRingBytes);
  if (side == RingSide::kSecond) std::swap(out_, in_);
}

Result<std::uint64_t> RingPipe::used_bytes(const Ring& ring) const {
  const bool is_out = ring.head == out_.head;
  const std::uint64_t written = is_out ? written_ : ring.head->written.load();
  const std::uint64_t taken = is_out ? ring.head->taken.load() : taken_;
  const std::uint64_t size = written - taken;
  if (size > kRingBytes) return Error{Code::kBadFrame, "a peer has written nonsense into a ring"};
  return size;
}

// Wakes the other side if it sleeps for at most `there`. REQUIRES: the counter that shows `there`
// is stored.
void RingPipe::wake(std::atomic<std::uint32_t>& sleeps_for, std::uint64_t there) {
  // Pairs with await(): the other side stores how much it sleeps for before its last look at the
  // counters. All accesses are seq_cst instead of fenced, because TSan does not know fences.
  const std::uint32_t wanted = sleeps_for.load();
  if (wanted == 0 || wanted > there || sleeps_for.exchange(0) == 0) return;
  const char knock = 1;  // may fail on a full socket, which is readable all the same
  [[maybe_unused]] const auto sent =
      ::send(socket_.value(), &knock, sizeof knock, MSG_NOSIGNAL | MSG_DONTWAIT);
}

Result<std::size_t> RingPipe::write(std::span<iovec> parts) {
  std::size_t total = 0;
  std::uint64_t unannounced = 0;
  const auto announce = [&] {
    out_.head->written.store(written_);
    unannounced = 0;
    wake(out_.head->reader_sleeps_for, written_ - out_.head->taken.load());
  };
  if (!std::exchange(is_writing_, true)) out_.head->is_writing.store(1);
  for (const iovec& part : parts) {
    for (std::size_t done = 0; done < part.iov_len;) {
      auto size = used_bytes(out_);
      if (!size) return size.error();
      const std::uint64_t step = std::min<std::uint64_t>(
          {kRingBytes - *size, part.iov_len - done, kStepBytes - unannounced});
      if (step == 0) {
        if (unannounced > 0) announce();
        return total;
      }
      copy_in(out_.bytes, written_, static_cast<const std::byte*>(part.iov_base) + done, step);
      written_ += step;
      unannounced += step;
      done += step;
      total += step;
      if (unannounced == kStepBytes) announce();
    }
  }
  if (unannounced > 0) announce();
  if (total == 0 && has_ended_) return Error{Code::kPeerLost, "the peer's process has ended"};
  return total;
}

void RingPipe::flush() {
  if (!std::exchange(is_writing_, false)) return;
  out_.head->is_writing.store(0);
  // Wakes the reader for any amount, because more bytes may never come.
  if (written_ != out_.head->taken.load()) wake(out_.head->reader_sleeps_for, kRingBytes);
}

Result<std::size_t> RingPipe::read(std::span<iovec> parts) {
  std::size_t total = 0;
  for (const iovec& part : parts) {
    for (std::size_t done = 0; done < part.iov_len;) {
      auto size = used_bytes(in_);
      if (!size) return size.error();
      const std::uint64_t step = std::min<std::uint64_t>({*size, part.iov_len - done, kStepBytes});
      if (step == 0) {
        if (total == 0 && has_ended_) return Error{Code::kPeerLost, "the peer's process has ended"};
        return total;
      }
      copy_out(in_.bytes, taken_, static_cast<std::byte*>(part.iov_base) + done, step);
      taken_ += step;
      done += step;
      total += step;
      in_.head->taken.store(taken_);
      wake(in_.head->writer_sleeps_for, kRingBytes - (*size - step));
    }
  }
  return total;
}

bool RingPipe::await(Interest interest, std::uint64_t enough) {
  const auto bits = static_cast<unsigned>(interest);
  const bool reads = (bits & static_cast<unsigned>(Interest::kRead)) != 0;
  const bool writes = (bits & static_cast<unsigned>(Interest::kWrite)) != 0;
  const auto wanted = static_cast<std::uint32_t>(std::min<std::uint64_t>(enough, kEnoughBytesMax));
  in_.head->reader_sleeps_for.store(reads ? wanted : 0);
  out_.head->writer_sleeps_for.store(writes ? kEnoughBytesMax : 0);
  const auto came = used_bytes(in_);
  const auto went = used_bytes(out_);
  // Too few bytes are not enough while the writer writes, because its flush() wakes us.
  const bool is_enough = came && *came > 0 && (*came >= wanted || in_.head->is_writing.load() == 0);
  const bool has_come = !came || is_enough || has_ended_;
  const bool has_room = !went || kRingBytes - *went >= kEnoughBytesMax || has_ended_;
  return (reads && has_come) || (writes && has_room);
}

void RingPipe::handle_ready() {
  std::array<char, 256> knocks;
  for (int turn = 0; turn < kKnocksMax && !has_ended_; ++turn) {
    const ssize_t got = ::recv(socket_.value(), knocks.data(), knocks.size(), MSG_DONTWAIT);
    if (got > 0) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
    has_ended_ = true;
  }
}

bool RingPipe::has_delivered_all() const {
  const auto size = used_bytes(out_);
  return has_ended_ && size && *size == 0;
}

void RingPipe::finish() { ::shutdown(socket_.value(), SHUT_WR); }

}  // namespace hoplite::worlds

// SPDX-License-Identifier: Apache-2.0
#include "client/range_writer.h"

#include <sys/mman.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <thread>

#include "io/memory/mapping.h"
#include "io/sockets/system_error.h"

namespace hoplite {
namespace {

// Sizes of the parts of a large put. Parts of 4 MiB cost the least CPU (1 MiB: 6 % more, 256 KiB:
// 12 % more) and the fewest messages to the node. Receivers stream behind the writer, so a part is
// at most a sixteenth of the object, but never below the minimum.
constexpr std::uint64_t kPartBytesMax = 4_MiB;
constexpr std::uint64_t kPartBytesMin = 256_KiB;
constexpr std::uint64_t kParts = 16;
constexpr std::size_t kBuffersPerWrite = 64;  // of a state_dict's many small leaves, per pwritev(2)
// 4 threads. Two threads on two cores reach 0.6 of a memcpy, one 0.4; memory is the limit soon
// after.
constexpr std::size_t kThreadsMax = 4;
constexpr std::uint64_t kBytesPerThread = 8_MiB;  // starting one costs as much as 0.3 MiB

std::size_t threads_for(std::uint64_t size_bytes) {
  const std::size_t cores = std::max(1U, std::thread::hardware_concurrency());
  return std::clamp<std::size_t>(size_bytes / kBytesPerThread, 1, std::min(cores, kThreadsMax));
}

}  // namespace

std::uint64_t total_bytes(Buffers data) {
  std::uint64_t total = 0;
  for (const auto& each : data) total += each.size();
  return total;
}

RangeWriter::RangeWriter(int fd, Extent extent, Buffers data)
    : fd_(fd),
      extent_(extent),
      data_(data),
      part_bytes_(std::clamp(extent.size_bytes / kParts, kPartBytesMin, kPartBytesMax)),
      thread_count_(threads_for(extent.size_bytes)) {
  skip(next_, 0);
}

void RangeWriter::work(const Progress& progress) {
  while (const auto part = take()) {
    auto written = copy(*part);
    if (written) written = progress(finish(*part));
    if (!written) return fail(written.error());
  }
}

Result<void> RangeWriter::result() const {
  if (error_) return *error_;
  return {};
}

std::optional<RangeWriter::Part> RangeWriter::take() {
  const std::lock_guard guard(mutex_);
  if (error_ || taken_bytes_ == extent_.size_bytes) return std::nullopt;
  const Part part{taken_bytes_, std::min(part_bytes_, extent_.size_bytes - taken_bytes_), next_};
  taken_bytes_ += part.size_bytes;
  skip(next_, part.size_bytes);
  return part;
}

std::uint64_t RangeWriter::finish(const Part& part) {
  const std::lock_guard guard(mutex_);
  beyond_.insert(part.offset);
  while (!beyond_.empty() && *beyond_.begin() == whole_bytes_) {
    beyond_.erase(beyond_.begin());
    whole_bytes_ = std::min(whole_bytes_ + part_bytes_, extent_.size_bytes);
  }
  return whole_bytes_;
}

void RangeWriter::fail(const Error& why) {
  const std::lock_guard guard(mutex_);
  if (!error_) error_ = why;
}

// ---- one part ----

void RangeWriter::skip(Cursor& cursor, std::uint64_t bytes) const {
  cursor.at += bytes;
  while (cursor.buffer < data_.size() && cursor.at >= data_[cursor.buffer].size()) {
    cursor.at -= data_[cursor.buffer++].size();
  }
}

Result<void> RangeWriter::copy(const Part& part) {
  std::unique_lock writes(writes_, std::try_to_lock);
  if (!writes && copy_mapped(part)) return {};
  return write(part);
}

Result<void> RangeWriter::write(Part part) {
  while (part.size_bytes > 0) {
    std::array<iovec, kBuffersPerWrite> from{};
    std::size_t count = 0;
    std::uint64_t gathered = 0;
    for (Cursor at = part.from; count < from.size() && gathered < part.size_bytes; ++count) {
      const auto here = data_[at.buffer].subspan(at.at);
      const auto size = std::min<std::uint64_t>(here.size(), part.size_bytes - gathered);
      from[count] = {const_cast<std::byte*>(here.data()), size};
      gathered += size;
      skip(at, size);
    }
    const ssize_t written = ::pwritev(fd_, from.data(), static_cast<int>(count),
                                      static_cast<off_t>(extent_.offset + part.offset));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return system_error("writing into the arena");
    const auto bytes = static_cast<std::uint64_t>(written);
    skip(part.from, bytes);
    part.offset += bytes;
    part.size_bytes -= bytes;
  }
  return {};
}

// Returns false if the pages can't be had at once: the kernel is old, or there is no memory.
// pwrite(2) then reports an error, where a mapping would raise SIGBUS. Read faults map 16 pages at
// a time, and writable, because the kernel need not see the first write to such a file.
bool RangeWriter::copy_mapped(const Part& part) {
  auto window = Mapping::open(fd_, extent_.offset + part.offset, part.size_bytes,
                              PROT_READ | PROT_WRITE, MAP_SHARED);
  if (!window) return false;
  const auto into = window->bytes();
  if (::madvise(into.data(), into.size(), MADV_DONTFORK) != 0 ||
      ::madvise(into.data(), into.size(), MADV_POPULATE_READ) != 0) {
    return false;
  }
  Cursor at = part.from;
  for (std::uint64_t done = 0; done < part.size_bytes;) {
    const auto here = data_[at.buffer].subspan(at.at);
    const auto size = std::min<std::uint64_t>(here.size(), part.size_bytes - done);
    std::memcpy(into.data() + done, here.data(), size);
    done += size;
    skip(at, size);
  }
  return true;
}

}  // namespace hoplite

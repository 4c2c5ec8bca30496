// SPDX-License-Identifier: Apache-2.0
#include "client/range_writer.h"

#include <sys/mman.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <thread>

#include "io/sockets/system_error.h"
#include "wire/crc32c.h"

namespace hoplite {
namespace {

// Sizes of the parts of a large put, which are whole blocks. Parts of 4 MiB cost the least CPU (1
// MiB: 6 % more, 256 KiB: 12 % more) and the fewest messages to the node. Receivers stream behind
// the writer, so a part is at most a sixteenth of the object, but never below the minimum.
constexpr std::uint64_t kPartBytesMax = 4_MiB;
constexpr std::uint64_t kPartBytesMin = 256_KiB;
constexpr std::uint64_t kParts = 16;
// A checksum reads the bytes that are copied next. A step of both fits into a core's own cache
// (decision 29). Smaller steps cost system calls.
constexpr std::uint64_t kStepBytes = 256_KiB;
constexpr std::size_t kBuffersPerWrite = 64;  // of a state_dict's many small leaves, per pwritev(2)
// 4 threads. Two threads on two cores reach 0.6 of a memcpy, one 0.4; memory is the limit soon
// after.
constexpr std::size_t kThreadsMax = 4;
constexpr std::uint64_t kBytesPerThread = 8_MiB;  // starting one costs as much as 0.3 MiB

std::uint64_t part_bytes_for(std::uint64_t size_bytes, std::uint32_t block_bytes) {
  const std::uint64_t part = std::clamp(size_bytes / kParts, kPartBytesMin, kPartBytesMax);
  const std::uint64_t block = std::max<std::uint64_t>(block_bytes, 1);
  return (part + block - 1) / block * block;
}

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

RangeWriter::RangeWriter(int fd, Extent extent, std::uint32_t block_bytes, Buffers data)
    : fd_(fd),
      extent_(extent),
      block_bytes_(block_bytes),
      data_(data),
      part_bytes_(part_bytes_for(extent.size_bytes, block_bytes)),
      thread_count_(threads_for(extent.size_bytes)) {
  skip(next_, 0);
  // More than a report has room for: a node whose blocks are very small makes them itself.
  if (block_bytes > 0 && part_bytes_ / block_bytes > kSumsPerWriteMax) block_bytes_ = 0;
}

void RangeWriter::work(const Progress& progress) {
  while (const auto part = take()) {
    auto sums = copy(*part);
    if (!sums) return fail(sums.error());
    const Written written = finish(*part, std::move(*sums));
    if (written.upto_bytes == extent_.size_bytes) return;
    if (auto done = progress(written); !done) return fail(done.error());
  }
}

Result<RangeWriter::Written> RangeWriter::result() const {
  if (error_) return *error_;
  return last_;
}

std::optional<RangeWriter::Part> RangeWriter::take() {
  const std::lock_guard guard(mutex_);
  if (error_ || taken_bytes_ == extent_.size_bytes) return std::nullopt;
  const Part part{taken_bytes_, std::min(part_bytes_, extent_.size_bytes - taken_bytes_), next_};
  taken_bytes_ += part.size_bytes;
  skip(next_, part.size_bytes);
  return part;
}

RangeWriter::Written RangeWriter::finish(const Part& part, std::vector<std::uint32_t> sums) {
  Written written;
  written.sums = std::move(sums);
  if (!written.sums.empty()) {
    written.first_block = BlockIndex{static_cast<std::uint32_t>(part.offset / block_bytes_)};
  }
  const std::lock_guard guard(mutex_);
  beyond_.insert(part.offset);
  while (!beyond_.empty() && *beyond_.begin() == whole_bytes_) {
    beyond_.erase(beyond_.begin());
    whole_bytes_ = std::min(whole_bytes_ + part_bytes_, extent_.size_bytes);
  }
  written.upto_bytes = whole_bytes_;
  if (whole_bytes_ == extent_.size_bytes) last_ = written;
  return written;
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

Result<std::vector<std::uint32_t>> RangeWriter::copy(const Part& part) {
  std::unique_lock writes(writes_, std::try_to_lock);
  std::optional<Mapping> window;
  if (!writes) window = map_pages(part);
  std::vector<std::uint32_t> sums;
  if (block_bytes_ > 0) sums.resize((part.size_bytes + block_bytes_ - 1) / block_bytes_);
  Cursor at = part.from;
  for (std::uint64_t done = 0; done < part.size_bytes;) {
    const auto size = std::min(kStepBytes, part.size_bytes - done);
    const Part step{part.offset + done, size, at};
    if (block_bytes_ > 0) add_sums(step, done, sums);
    if (window) {
      copy_mapped(step, window->bytes().subspan(done, size));
    } else if (auto written = write(step); !written) {
      return written.error();
    }
    done += size;
    skip(at, size);
  }
  return sums;
}

void RangeWriter::add_sums(Part step, std::uint64_t done, std::vector<std::uint32_t>& sums) const {
  for (const std::uint64_t end = done + step.size_bytes; done < end;) {
    const std::uint64_t block = done / block_bytes_;
    const auto here = data_[step.from.buffer].subspan(step.from.at);
    const auto size =
        std::min<std::uint64_t>({here.size(), end - done, (block + 1) * block_bytes_ - done});
    sums[block] = crc32c(here.first(size), sums[block]);
    done += size;
    skip(step.from, size);
  }
}

Result<void> RangeWriter::write(Part step) {
  while (step.size_bytes > 0) {
    std::array<iovec, kBuffersPerWrite> from{};
    std::size_t count = 0;
    std::uint64_t gathered = 0;
    for (Cursor at = step.from; count < from.size() && gathered < step.size_bytes; ++count) {
      const auto here = data_[at.buffer].subspan(at.at);
      const auto size = std::min<std::uint64_t>(here.size(), step.size_bytes - gathered);
      from[count] = {const_cast<std::byte*>(here.data()), size};
      gathered += size;
      skip(at, size);
    }
    const ssize_t written = ::pwritev(fd_, from.data(), static_cast<int>(count),
                                      static_cast<off_t>(extent_.offset + step.offset));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return system_error("writing into the arena");
    const auto bytes = static_cast<std::uint64_t>(written);
    skip(step.from, bytes);
    step.offset += bytes;
    step.size_bytes -= bytes;
  }
  return {};
}

// Returns nothing if the pages can't be had at once: the kernel is old, or there is no memory.
// pwrite(2) then reports an error, where a mapping would raise SIGBUS. Read faults map 16 pages at
// a time, and writable, because the kernel need not see the first write to such a file.
std::optional<Mapping> RangeWriter::map_pages(const Part& part) const {
  auto window = Mapping::open(fd_, extent_.offset + part.offset, part.size_bytes,
                              PROT_READ | PROT_WRITE, MAP_SHARED);
  if (!window) return std::nullopt;
  const auto into = window->bytes();
  if (::madvise(into.data(), into.size(), MADV_DONTFORK) != 0 ||
      ::madvise(into.data(), into.size(), MADV_POPULATE_READ) != 0) {
    return std::nullopt;
  }
  return std::move(*window);
}

void RangeWriter::copy_mapped(Part step, std::span<std::byte> into) const {
  while (!into.empty()) {
    const auto here = data_[step.from.buffer].subspan(step.from.at);
    const auto size = std::min(here.size(), into.size());
    std::memcpy(into.data(), here.data(), size);
    into = into.subspan(size);
    skip(step.from, size);
  }
}

}  // namespace hoplite

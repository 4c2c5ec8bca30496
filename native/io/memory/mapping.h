// SPDX-License-Identifier: Apache-2.0
// Owns one mapping of a file. Leaf header of io/.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "base/result.h"
#include "io/sockets/system_error.h"

namespace hoplite {

class Mapping {
 public:
  Mapping() = default;
  // Maps bytes [offset, offset + size_bytes) of `fd`.  REQUIRES: offset is a multiple of the page.
  [[nodiscard]] static Result<Mapping> open(int fd, std::uint64_t offset, std::uint64_t size_bytes,
                                            int protection, int flags) {
    void* at = ::mmap(nullptr, size_bytes, protection, flags, fd, static_cast<off_t>(offset));
    if (at == MAP_FAILED) return system_error("mmap");
    return Mapping(static_cast<std::byte*>(at), size_bytes);
  }
  // The same at an address that is a multiple of `alignment`, a power of two and of the page.
  [[nodiscard]] static Result<Mapping> open_aligned(int fd, std::uint64_t size_bytes,
                                                    std::uint64_t alignment, int protection,
                                                    int flags) {
    // A reservation that is longer by `alignment` has such an address; the rest goes back.
    auto reserved =
        open(-1, 0, size_bytes + alignment, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE);
    if (!reserved) return reserved.error();
    std::byte* const begin = reserved->data_;
    const auto address = reinterpret_cast<std::uintptr_t>(begin);
    const std::uint64_t before = (alignment - address % alignment) % alignment;
    Mapping aligned(begin + before, size_bytes);
    reserved->data_ = nullptr;
    if (before > 0) ::munmap(begin, before);
    if (alignment > before) ::munmap(begin + before + size_bytes, alignment - before);
    if (auto placed = aligned.replace(fd, 0, protection, flags); !placed) return placed.error();
    return aligned;
  }
  Mapping(Mapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        size_bytes_(std::exchange(other.size_bytes_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept {
    if (this != &other) {
      reset();
      data_ = std::exchange(other.data_, nullptr);
      size_bytes_ = std::exchange(other.size_bytes_, 0);
    }
    return *this;
  }
  ~Mapping() { reset(); }

  // Puts another mapping of the same length in its place at once: no thread sees a hole. Errors are
  // like those of open().
  [[nodiscard]] Result<void> replace(int fd, std::uint64_t offset, int protection, int flags) {
    if (::mmap(data_, size_bytes_, protection, flags | MAP_FIXED, fd, static_cast<off_t>(offset)) ==
        MAP_FAILED) {
      return system_error("mmap");
    }
    return {};
  }

  [[nodiscard]] std::span<std::byte> bytes() const { return {data_, size_bytes_}; }
  void reset() {
    if (data_ != nullptr) ::munmap(data_, size_bytes_);
    data_ = nullptr;
    size_bytes_ = 0;
  }

 private:
  Mapping(std::byte* data, std::size_t size_bytes) : data_(data), size_bytes_(size_bytes) {}
  std::byte* data_ = nullptr;
  std::size_t size_bytes_ = 0;
};

}  // namespace hoplite

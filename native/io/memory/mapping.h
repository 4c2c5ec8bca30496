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

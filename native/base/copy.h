// SPDX-License-Identifier: Apache-2.0
// memcpy without its slow case. Leaf header.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace hoplite {

// `rep movsb`, with which glibc copies large blocks, is nine times slower where the destination is
// 1 to 31 bytes ahead of the source modulo a page (docs/internals/gotchas.md). Large numpy arrays
// begin 16 bytes into one. glibc copies steps of this size without it.
inline constexpr std::size_t kCopyStepBytes = 1024;

// REQUIRES: the two do not overlap.
inline void copy_bytes(std::byte* to, const std::byte* from, std::size_t size) {
  const auto ahead =
      (reinterpret_cast<std::uintptr_t>(to) - reinterpret_cast<std::uintptr_t>(from)) % 4096;
  if (ahead > 0 && ahead < 32) {
    for (; size > kCopyStepBytes; size -= kCopyStepBytes) {
      std::memcpy(to, from, kCopyStepBytes);
      to += kCopyStepBytes;
      from += kCopyStepBytes;
    }
  }
  if (size > 0) std::memcpy(to, from, size);
}

}  // namespace hoplite

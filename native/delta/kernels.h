// SPDX-License-Identifier: Apache-2.0
// Compares two runs of elements bit by bit. Leaf functions without state; spans may start at any
// byte. Every kernel gives the same masks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace hoplite {

// In the order of their speed. kPlain is 64-bit arithmetic, and runs on every processor.
enum class DeltaKernels : std::uint8_t { kPlain, kAvx2, kAvx512 };
inline constexpr const char* kDeltaKernelNames[] = {"plain", "avx2", "avx512"};
inline constexpr int kDeltaKernelCount = 3;

// True if this processor has the instructions.
[[nodiscard]] bool can_run(DeltaKernels kernels);
// The fastest that this processor can run.
[[nodiscard]] DeltaKernels choose_kernels();

// Bit i % 64 of masks[i / 64] becomes 1 if element i differs, and 0 if it is equal or absent.
// REQUIRES: can_run(kernels); width is 1, 2, 4 or 8; `base` and `bytes` have the same size, a
// multiple of width; a mask for each 64 elements, rounded up.
void compare_elements(DeltaKernels kernels, std::uint32_t width, std::span<const std::byte> base,
                      std::span<const std::byte> bytes, std::span<std::uint64_t> masks);

}  // namespace hoplite

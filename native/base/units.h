// SPDX-License-Identifier: Apache-2.0
// Sizes and durations as literals, so that no number appears without its unit. Leaf header.
#pragma once

#include <cstdint>

namespace hoplite {
inline namespace literals {

constexpr std::uint64_t operator""_B(unsigned long long n) { return n; }
constexpr std::uint64_t operator""_KiB(unsigned long long n) { return n * 1024; }
constexpr std::uint64_t operator""_MiB(unsigned long long n) { return n * 1024 * 1024; }
constexpr std::uint64_t operator""_GiB(unsigned long long n) { return n * 1024 * 1024 * 1024; }

}  // namespace literals
}  // namespace hoplite

// SPDX-License-Identifier: Apache-2.0
// Points in time and lengths of time as integers of nanoseconds. No clock is read here: time enters
// every machine as an argument, and the threads that own a machine read it by io/read_clock.h. Leaf
// header.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>

namespace hoplite {

struct Duration {
  std::int64_t ns = 0;
  auto operator<=>(const Duration&) const = default;
  constexpr Duration operator+(Duration other) const { return {ns + other.ns}; }
  constexpr Duration operator*(std::int64_t factor) const { return {ns * factor}; }
};

struct Instant {
  std::int64_t ns = 0;  // since an arbitrary origin; never compared between processes
  auto operator<=>(const Instant&) const = default;
  constexpr Instant operator+(Duration d) const { return {ns + d.ns}; }
  constexpr Duration operator-(Instant other) const { return {ns - other.ns}; }
};

// The earlier of two deadlines, of which either may be none.
constexpr std::optional<Instant> earlier(const std::optional<Instant>& a,
                                         const std::optional<Instant>& b) {
  return !a ? b : !b || *a < *b ? a : b;
}

inline namespace literals {
constexpr Duration operator""_us(unsigned long long n) {
  return {static_cast<std::int64_t>(n) * 1000};
}
constexpr Duration operator""_ms(unsigned long long n) {
  return {static_cast<std::int64_t>(n) * 1000 * 1000};
}
constexpr Duration operator""_s(unsigned long long n) {
  return {static_cast<std::int64_t>(n) * 1000 * 1000 * 1000};
}
}  // namespace literals
}  // namespace hoplite

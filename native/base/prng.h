// SPDX-License-Identifier: Apache-2.0
// A small deterministic generator (xoshiro256**, Blackman and Vigna 2018), seeded by splitmix64.
// The only source of randomness in plan/ and sim/: the seed is an argument, so every run can be
// replayed.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

namespace hoplite {

constexpr std::uint64_t mix64(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

class Prng {
 public:
  explicit Prng(std::uint64_t seed) {
    for (auto& word : state_) word = seed = mix64(seed);
  }

  std::uint64_t next() {
    const std::uint64_t result = std::rotl(state_[1] * 5, 7) * 9;
    const std::uint64_t t = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= t;
    state_[3] = std::rotl(state_[3], 45);
    return result;
  }

  // Returns a number in [0, limit). REQUIRES: limit > 0. The bias is below limit / 2^64.
  std::uint64_t below(std::uint64_t limit) { return next() % limit; }
  bool chance(std::uint32_t percent) { return below(100) < percent; }

 private:
  std::array<std::uint64_t, 4> state_{};
};

}  // namespace hoplite

// SPDX-License-Identifier: Apache-2.0
#include "wire/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace hoplite {
namespace {

constexpr std::uint32_t kPolynomial = 0x82f63b78;  // Castagnoli's, bits reversed

// kTables[n][b]: the CRC of byte b followed by n zero bytes, so that eight bytes take one step.
constexpr auto kTables = [] {
  std::array<std::array<std::uint32_t, 256>, 8> tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    tables[0][byte] = crc;
  }
  for (std::size_t n = 1; n < 8; ++n) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::uint32_t before = tables[n - 1][byte];
      tables[n][byte] = (before >> 8) ^ tables[0][before & 0xff];
    }
  }
  return tables;
}();

std::uint64_t load64(const std::byte* at) {
  std::uint64_t word = 0;
  std::memcpy(&word, at, sizeof word);
  return word;
}

#if defined(__x86_64__)
// One instruction takes 8 bytes with a latency of 3 cycles, so three lanes run side by side: 27
// GB/s instead of 10. Fifteen lanes of this length are most of a block of 8 KiB.
constexpr std::size_t kLaneBytes = 512;

// kShifts[n][b]: the state whose byte n is b, followed by a lane of zero bytes. States are linear.
constexpr auto kShifts = [] {
  std::array<std::array<std::uint32_t, 256>, 4> shifts{};
  for (std::size_t bit = 0; bit < 32; ++bit) {
    std::uint32_t state = 1U << bit;
    for (std::size_t i = 0; i < kLaneBytes; ++i) {
      state = (state >> 8) ^ kTables[0][state & 0xff];
    }
    auto& shift = shifts[bit / 8];
    for (std::size_t byte = 0; byte < 256; ++byte) {
      if ((byte >> (bit % 8) & 1) != 0) shift[byte] ^= state;
    }
  }
  return shifts;
}();

std::uint64_t over_a_lane(std::uint64_t state) {
  return kShifts[0][state & 0xff] ^ kShifts[1][state >> 8 & 0xff] ^ kShifts[2][state >> 16 & 0xff] ^
         kShifts[3][state >> 24 & 0xff];
}

__attribute__((target("sse4.2"))) std::uint32_t crc32c_instruction(std::span<const std::byte> bytes,
                                                                   std::uint32_t crc) {
  std::uint64_t state = ~crc;
  const std::byte* at = bytes.data();
  std::size_t left = bytes.size();
  for (; left >= 3 * kLaneBytes; left -= 3 * kLaneBytes, at += 3 * kLaneBytes) {
    std::uint64_t second = 0;
    std::uint64_t third = 0;
    for (std::size_t i = 0; i < kLaneBytes; i += 8) {
      state = _mm_crc32_u64(state, load64(at + i));
      second = _mm_crc32_u64(second, load64(at + kLaneBytes + i));
      third = _mm_crc32_u64(third, load64(at + 2 * kLaneBytes + i));
    }
    state = over_a_lane(over_a_lane(state) ^ second) ^ third;
  }
  for (; left >= 8; left -= 8, at += 8) state = _mm_crc32_u64(state, load64(at));
  auto tail = static_cast<std::uint32_t>(state);
  for (; left > 0; --left, ++at) tail = _mm_crc32_u8(tail, std::to_integer<std::uint8_t>(*at));
  return ~tail;
}

// ---- folding: a register of bytes is multiplied by the power of x that moves it to where the next
// bytes are, modulo the polynomial, and added to them (Gopal et al., Intel, 2009)

constexpr std::size_t kLineBytes = 64;              // of a register
constexpr std::size_t kFoldBytes = 4 * kLineBytes;  // four registers, to hide the latency

// x to the power of `n`, modulo the polynomial, bits reversed.
constexpr std::uint32_t power_of_x(std::size_t n) {
  std::uint32_t power = 1U << 31;
  for (; n > 0; --n) power = (power >> 1) ^ ((power & 1) != 0 ? kPolynomial : 0);
  return power;
}

// The factors that move the first and the last 8 of 16 bytes on by so many bytes. A product of two
// reversed words is one bit short, and a factor stands in the lower half of its word: 33 in all.
struct Factors {
  std::uint64_t first, last;
};
constexpr Factors factors_for(std::size_t bytes) {
  return {power_of_x(8 * bytes + 64 - 33), power_of_x(8 * bytes - 33)};
}
constexpr Factors kByFold = factors_for(kFoldBytes);
constexpr Factors kByLine = factors_for(kLineBytes);

#define HOPLITE_WIDE __attribute__((target("avx512f,vpclmulqdq,sse4.2")))

HOPLITE_WIDE inline __m512i in_each_lane(const Factors& factors) {
  const auto first = static_cast<std::int64_t>(factors.first);
  const auto last = static_cast<std::int64_t>(factors.last);
  return _mm512_set4_epi64(last, first, last, first);
}

HOPLITE_WIDE inline __m512i fold(__m512i bytes, __m512i factors, __m512i next) {
  constexpr int kSumOfThree = 0x96;
  return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(bytes, factors, 0x00),
                                   _mm512_clmulepi64_epi128(bytes, factors, 0x11), next,
                                   kSumOfThree);
}

HOPLITE_WIDE std::uint32_t crc32c_wide(std::span<const std::byte> bytes, std::uint32_t crc) {
  const std::byte* at = bytes.data();
  std::size_t left = bytes.size();
  if (left < 2 * kFoldBytes) return crc32c_instruction(bytes, crc);
  __m512i sums[4];
  for (std::size_t i = 0; i < 4; ++i) sums[i] = _mm512_loadu_si512(at + i * kLineBytes);
  sums[0] = _mm512_xor_si512(
      sums[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<std::int32_t>(~crc))));
  const __m512i by_fold = in_each_lane(kByFold);
  for (at += kFoldBytes, left -= kFoldBytes; left >= kFoldBytes;
       at += kFoldBytes, left -= kFoldBytes) {
    for (std::size_t i = 0; i < 4; ++i) {
      sums[i] = fold(sums[i], by_fold, _mm512_loadu_si512(at + i * kLineBytes));
    }
  }
  const __m512i by_line = in_each_lane(kByLine);
  __m512i sum = sums[0];
  for (std::size_t i = 1; i < 4; ++i) sum = fold(sum, by_line, sums[i]);
  alignas(kLineBytes) std::array<std::byte, kLineBytes> line;
  _mm512_store_si512(line.data(), sum);
  std::uint64_t state = 0;
  for (std::size_t i = 0; i < kLineBytes; i += 8) {
    state = _mm_crc32_u64(state, load64(line.data() + i));
  }
  return crc32c_instruction({at, left}, ~static_cast<std::uint32_t>(state));
}
#endif

// Product of two polynomials modulo kPolynomial, bits reversed: the highest bit is x to the 0.
constexpr std::uint32_t multiply(std::uint32_t a, std::uint32_t b) {
  std::uint32_t product = 0;
  for (; b != 0; b <<= 1) {
    if ((b >> 31) != 0) product ^= a;
    a = (a >> 1) ^ ((a & 1) != 0 ? kPolynomial : 0);
  }
  return product;
}

// kSquares[n]: x to the power of 8 * 2^n, which moves a CRC on by 2^n bytes.
constexpr auto kSquares = [] {
  std::array<std::uint32_t, 64> squares{};
  squares[0] = 1U << (31 - 8);
  for (std::size_t n = 1; n < squares.size(); ++n) {
    squares[n] = multiply(squares[n - 1], squares[n - 1]);
  }
  return squares;
}();

}  // namespace

std::uint32_t crc32c_table(std::span<const std::byte> bytes, std::uint32_t crc) {
  std::uint32_t state = ~crc;
  const std::byte* at = bytes.data();
  std::size_t left = bytes.size();
  for (; left >= 8; left -= 8, at += 8) {
    const std::uint64_t word = load64(at) ^ state;
    state = 0;
    for (std::size_t i = 0; i < 8; ++i) state ^= kTables[7 - i][(word >> (8 * i)) & 0xff];
  }
  for (; left > 0; --left, ++at) {
    state = (state >> 8) ^ kTables[0][(state ^ std::to_integer<std::uint32_t>(*at)) & 0xff];
  }
  return ~state;
}

std::uint32_t combine_crc32c(std::uint32_t first, std::uint32_t second,
                             std::uint64_t second_bytes) {
  for (std::size_t n = 0; second_bytes != 0; ++n, second_bytes >>= 1) {
    if ((second_bytes & 1) != 0) first = multiply(first, kSquares[n]);
  }
  return first ^ second;
}

std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t crc) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("vpclmulqdq") != 0) {
    return crc32c_wide(bytes, crc);
  }
  if (__builtin_cpu_supports("sse4.2") != 0) return crc32c_instruction(bytes, crc);
#endif
  return crc32c_table(bytes, crc);
}

}  // namespace hoplite

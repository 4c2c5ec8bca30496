// SPDX-License-Identifier: Apache-2.0
#include "delta/kernels.h"

#include <bit>
#include <cstring>

#include "base/check.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#define HOPLITE_INLINE [[gnu::always_inline]] inline

namespace hoplite {
namespace {

static_assert(std::endian::native == std::endian::little, "element 0 is the lowest of a word");

constexpr std::size_t kMaskElements = 64;

// ---- plain: eight bytes at a time

std::uint64_t load_word(const std::byte* from) {
  std::uint64_t word = 0;
  std::memcpy(&word, from, sizeof word);
  return word;
}

// Returns the elements of a word that are not 0: element i as bit i. An addition carries into the
// top bit of each element that has another bit set. A product moves the top bits side by side.
template <std::uint32_t kWidth>
HOPLITE_INLINE std::uint64_t mark_elements(std::uint64_t word) {
  if constexpr (kWidth == 8) {
    return word != 0 ? 1 : 0;
  } else if constexpr (kWidth == 4) {
    return (static_cast<std::uint32_t>(word) != 0 ? 1U : 0U) | (word >> 32 != 0 ? 2U : 0U);
  } else {
    constexpr bool kIsByte = kWidth == 1;
    constexpr std::uint64_t kLow = kIsByte ? 0x7f7f7f7f7f7f7f7f : 0x7fff7fff7fff7fff;
    constexpr std::uint64_t kGather = kIsByte ? 0x0102040810204080 : 0x1000200040008000;
    constexpr int kTop = 8 * static_cast<int>(kWidth) - 1;
    constexpr int kFrom = kIsByte ? 56 : 60;
    const std::uint64_t tops = (((word & kLow) + kLow) | word) & ~kLow;
    return (tops >> kTop) * kGather >> kFrom;
  }
}

template <std::uint32_t kWidth>
void compare_plain(const std::byte* base, const std::byte* bytes, std::uint64_t* masks,
                   std::size_t mask_count) {
  constexpr std::size_t kWords = kMaskElements * kWidth / 8;
  for (std::size_t m = 0; m < mask_count; ++m) {
    std::uint64_t mask = 0;
    for (std::size_t i = 0; i < kWords; ++i, base += 8, bytes += 8) {
      mask |= mark_elements<kWidth>(load_word(base) ^ load_word(bytes)) << (i * 8 / kWidth);
    }
    masks[m] = mask;
  }
}

#if defined(__x86_64__)

// ---- AVX2: 32 bytes at a time

#define HOPLITE_AVX2 __attribute__((target("avx2")))

HOPLITE_INLINE HOPLITE_AVX2 __m256i load_256(const std::byte* from, std::size_t index) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from) + index);
}

// Returns 32 bytes whose elements are all ones where the two are equal.
template <std::uint32_t kWidth>
HOPLITE_INLINE HOPLITE_AVX2 __m256i equal_256(const std::byte* base, const std::byte* bytes,
                                              std::size_t index) {
  const __m256i a = load_256(base, index);
  const __m256i b = load_256(bytes, index);
  if constexpr (kWidth == 1) return _mm256_cmpeq_epi8(a, b);
  if constexpr (kWidth == 2) return _mm256_cmpeq_epi16(a, b);
  if constexpr (kWidth == 4) return _mm256_cmpeq_epi32(a, b);
  return _mm256_cmpeq_epi64(a, b);
}

template <std::uint32_t kWidth>
HOPLITE_AVX2 void compare_avx2(const std::byte* base, const std::byte* bytes, std::uint64_t* masks,
                               std::size_t mask_count) {
  constexpr std::size_t kVectors = kMaskElements * kWidth / 32;
  for (std::size_t m = 0; m < mask_count; ++m) {
    std::uint64_t equal = 0;
    if constexpr (kWidth == 2) {
      for (std::size_t i = 0; i < kVectors; i += 2) {
        constexpr int kInOrder = 0xd8;  // packing interleaves the halves of its arguments
        const __m256i packed = _mm256_permute4x64_epi64(
            _mm256_packs_epi16(equal_256<2>(base, bytes, i), equal_256<2>(base, bytes, i + 1)),
            kInOrder);
        equal |= std::uint64_t{static_cast<std::uint32_t>(_mm256_movemask_epi8(packed))}
                 << (i * 16);
      }
    } else {
      for (std::size_t i = 0; i < kVectors; ++i) {
        const __m256i same = equal_256<kWidth>(base, bytes, i);
        int bits = 0;
        if constexpr (kWidth == 1) bits = _mm256_movemask_epi8(same);
        if constexpr (kWidth == 4) bits = _mm256_movemask_ps(_mm256_castsi256_ps(same));
        if constexpr (kWidth == 8) bits = _mm256_movemask_pd(_mm256_castsi256_pd(same));
        equal |= std::uint64_t{static_cast<std::uint32_t>(bits)} << (i * 32 / kWidth);
      }
    }
    masks[m] = ~equal;
    base += kMaskElements * kWidth;
    bytes += kMaskElements * kWidth;
  }
}

// ---- AVX-512: 64 bytes at a time

#define HOPLITE_AVX512 __attribute__((target("avx512f,avx512bw")))

template <std::uint32_t kWidth>
HOPLITE_AVX512 void compare_avx512(const std::byte* base, const std::byte* bytes,
                                   std::uint64_t* masks, std::size_t mask_count) {
  for (std::size_t m = 0; m < mask_count; ++m) {
    std::uint64_t mask = 0;
    for (std::size_t i = 0; i < kWidth; ++i, base += 64, bytes += 64) {
      const __m512i a = _mm512_loadu_si512(base);
      const __m512i b = _mm512_loadu_si512(bytes);
      std::uint64_t changed = 0;
      if constexpr (kWidth == 1) changed = _mm512_cmpneq_epi8_mask(a, b);
      if constexpr (kWidth == 2) changed = _mm512_cmpneq_epi16_mask(a, b);
      if constexpr (kWidth == 4) changed = _mm512_cmpneq_epi32_mask(a, b);
      if constexpr (kWidth == 8) changed = _mm512_cmpneq_epi64_mask(a, b);
      mask |= changed << (i * 64 / kWidth);
    }
    masks[m] = mask;
  }
}

#endif

// ---- choosing

using Compare = void (*)(const std::byte*, const std::byte*, std::uint64_t*, std::size_t);

template <std::uint32_t kWidth>
Compare choose(DeltaKernels kernels) {
#if defined(__x86_64__)
  if (kernels == DeltaKernels::kAvx512) return compare_avx512<kWidth>;
  if (kernels == DeltaKernels::kAvx2) return compare_avx2<kWidth>;
#endif
  HOPLITE_CHECK(kernels == DeltaKernels::kPlain);
  return compare_plain<kWidth>;
}

Compare choose(DeltaKernels kernels, std::uint32_t width) {
  if (width == 1) return choose<1>(kernels);
  if (width == 2) return choose<2>(kernels);
  if (width == 4) return choose<4>(kernels);
  HOPLITE_CHECK(width == 8);
  return choose<8>(kernels);
}

}  // namespace

bool can_run(DeltaKernels kernels) {
#if defined(__x86_64__)
  if (kernels == DeltaKernels::kAvx512) {
    return __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0;
  }
  if (kernels == DeltaKernels::kAvx2) return __builtin_cpu_supports("avx2") != 0;
#endif
  return kernels == DeltaKernels::kPlain;
}

DeltaKernels choose_kernels() {
  if (can_run(DeltaKernels::kAvx512)) return DeltaKernels::kAvx512;
  return can_run(DeltaKernels::kAvx2) ? DeltaKernels::kAvx2 : DeltaKernels::kPlain;
}

void compare_elements(DeltaKernels kernels, std::uint32_t width, std::span<const std::byte> base,
                      std::span<const std::byte> bytes, std::span<std::uint64_t> masks) {
  const Compare compare = choose(kernels, width);
  HOPLITE_CHECK(base.size() == bytes.size());
  HOPLITE_CHECK(bytes.size() % width == 0);
  const std::size_t count = bytes.size() / width;
  const std::size_t whole = count / kMaskElements;
  HOPLITE_CHECK(masks.size() == whole + (count % kMaskElements != 0 ? 1 : 0));
  compare(base.data(), bytes.data(), masks.data(), whole);
  if (whole == masks.size()) return;
  std::uint64_t mask = 0;
  for (std::size_t i = whole * kMaskElements; i < count; ++i) {
    const bool differs = std::memcmp(base.data() + i * width, bytes.data() + i * width, width) != 0;
    mask |= std::uint64_t{differs ? 1U : 0U} << (i % kMaskElements);
  }
  masks[whole] = mask;
}

}  // namespace hoplite

// SPDX-License-Identifier: Apache-2.0
// What a delta's bytes are, written in the obvious way: element by element, by the table's CRC.
// Versions whose elements differ here and there. For the tests of this folder.
#pragma once

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "base/prng.h"
#include "delta/delta.h"
#include "wire/crc32c.h"

namespace hoplite::delta_model {

using ByteVector = std::vector<std::byte>;
using Ranges = std::vector<DeltaRange>;

inline std::size_t count_bytes(const Ranges& ranges) {
  std::size_t bytes = 0;
  for (const DeltaRange& range : ranges) bytes += range.size_bytes;
  return bytes;
}

inline ByteVector draw_bytes(std::size_t size, Prng& prng) {
  ByteVector bytes(size);
  for (auto& byte : bytes) byte = static_cast<std::byte>(prng.next());
  return bytes;
}

// Returns a version in which about `per_mille` of the elements differ, in runs of up to `run_max`.
inline ByteVector change_some(ByteVector bytes, const Ranges& ranges, std::uint64_t per_mille,
                              std::uint64_t run_max, Prng& prng) {
  std::size_t at = 0;
  for (const DeltaRange& range : ranges) {
    const std::size_t end = at + range.size_bytes;
    for (; at < end; at += range.width) {
      if (prng.below(1000 * (run_max + 1)) >= 2 * per_mille) continue;
      for (std::uint64_t run = 1 + prng.below(run_max); run > 0 && at < end; --run) {
        bytes[at + prng.below(range.width)] ^= static_cast<std::byte>(1 + prng.below(255));
        if (run > 1) at += range.width;
      }
    }
    at = end;
  }
  return bytes;
}

template <typename T>
void append(ByteVector& bytes, const T& value) {
  const auto* from = reinterpret_cast<const std::byte*>(&value);
  bytes.insert(bytes.end(), from, from + sizeof value);
}

inline ByteVector encode(const ByteVector& base, const ByteVector& whole, const Ranges& ranges,
                         std::uint32_t section_bytes) {
  DeltaHeader header{.range_count = static_cast<std::uint16_t>(ranges.size()),
                     .size_bytes = whole.size(),
                     .base_crc = crc32c_table(base),
                     .new_crc = crc32c_table(whole),
                     .section_bytes = section_bytes};
  ByteVector rows, payload;
  std::size_t at = 0;
  for (const DeltaRange& range : ranges) {
    for (const std::size_t range_end = at + range.size_bytes; at < range_end;) {
      const std::size_t begin = at;
      const std::size_t end = std::min<std::size_t>(range_end, begin + section_bytes);
      ByteVector gaps, values;
      std::size_t gap = 0;
      for (; at < end; at += range.width) {
        if (std::memcmp(&base[at], &whole[at], range.width) == 0) {
          ++gap;
          continue;
        }
        gaps.resize(gaps.size() + gap / 255, std::byte{255});
        gaps.push_back(static_cast<std::byte>(gap % 255));
        gap = 0;
        values.insert(values.end(), &whole[at], &whole[at] + range.width);
      }
      const DeltaSection row{static_cast<std::uint32_t>(gaps.size()),
                             static_cast<std::uint32_t>(values.size() / range.width),
                             crc32c_table(std::span(base).subspan(begin, end - begin)),
                             crc32c_table(std::span(whole).subspan(begin, end - begin))};
      append(rows, row);
      payload.insert(payload.end(), gaps.begin(), gaps.end());
      payload.insert(payload.end(), values.begin(), values.end());
      header.changed += row.changed;
      ++header.section_count;
    }
  }
  header.payload_bytes = payload.size();
  ByteVector delta;
  append(delta, header);
  for (const DeltaRange& range : ranges) append(delta, range);
  delta.insert(delta.end(), rows.begin(), rows.end());
  delta.insert(delta.end(), payload.begin(), payload.end());
  return delta;
}

// One to four ranges of any widths; few of them end at the end of a section.
inline Ranges draw_ranges(Prng& prng) {
  Ranges ranges(1 + prng.below(4));
  for (DeltaRange& range : ranges) {
    range.width = std::uint64_t{1} << prng.below(4);
    range.size_bytes = range.width * (1 + prng.below(700));
  }
  return ranges;
}

}  // namespace hoplite::delta_model

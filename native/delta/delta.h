// SPDX-License-Identifier: Apache-2.0
// The bytes of a delta: how one version of a whole differs from the version before it, which has
// as many bytes. Pure: no clock, no thread, no I/O. Total on hostile bytes. Decision 41.
//
// A delta is little-endian, and has four parts without gaps between them:
//  1. DeltaHeader.
//  2. One DeltaRange for each run of elements of one width. The ranges cover the whole.
//  3. One DeltaSection for each `section_bytes` of a range, or less at the range's end.
//  4. The payload: for each section its gaps, and then its values.
// A gap is the number of equal elements in front of a changed one. It is one byte; 255 adds 255 and
// goes on in the next byte. The first gap of a section counts from the section's start.
// A value is the bytes of the new element. Elements are equal if their bits are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "base/units.h"

namespace hoplite {

inline constexpr std::uint32_t kDeltaMagic = 0x544c4448;  // "HDLT"
inline constexpr std::uint16_t kDeltaVersion = 1;
// Ranges of one delta: twice what an object has of parts (kPartsMax).
inline constexpr std::size_t kDeltaRangesMax = 32;
// A section and its base lie in the cache of one core, and its row is 1/65,536 of its bytes.
inline constexpr std::uint32_t kDeltaSectionBytes = 1_MiB;
inline constexpr std::uint32_t kDeltaSectionBytesMin = 64;  // tests have small ones
inline constexpr std::uint32_t kDeltaSectionBytesMax = 16_MiB;

struct DeltaHeader {
  std::uint32_t magic = kDeltaMagic;
  std::uint16_t version = kDeltaVersion;
  std::uint16_t range_count = 0;
  std::uint64_t size_bytes = 0;  // of the base, and of the new whole
  std::uint64_t changed = 0;     // elements
  std::uint64_t payload_bytes = 0;
  std::uint32_t base_crc = 0;                        // CRC-32C of the base
  std::uint32_t new_crc = 0;                         // CRC-32C of the new whole
  std::uint32_t section_bytes = kDeltaSectionBytes;  // a multiple of 8
  std::uint32_t section_count = 0;
  friend bool operator==(const DeltaHeader&, const DeltaHeader&) = default;
};
static_assert(sizeof(DeltaHeader) == 48);

struct DeltaRange {
  std::uint64_t size_bytes = 0;  // a multiple of `width`, and not 0
  std::uint64_t width = 1;       // bytes of an element: 1, 2, 4 or 8
  friend bool operator==(const DeltaRange&, const DeltaRange&) = default;
};
static_assert(sizeof(DeltaRange) == 16);

struct DeltaSection {
  std::uint32_t gap_bytes = 0;
  std::uint32_t changed = 0;   // elements
  std::uint32_t base_crc = 0;  // CRC-32C of the section in the base
  std::uint32_t new_crc = 0;   // CRC-32C of the section in the new whole
};
static_assert(sizeof(DeltaSection) == 16);

// Returns how the ranges are cut, a place for each section, or an error that names a bad range.
// REQUIRES: section_bytes is within the bounds above and a multiple of 8. Cost: O(sections).
struct DeltaPlace {
  std::uint64_t offset = 0;  // in the whole
  std::uint32_t size_bytes = 0;
  std::uint32_t width = 1;
  friend bool operator==(const DeltaPlace&, const DeltaPlace&) = default;
};
[[nodiscard]] Result<std::vector<DeltaPlace>> cut_into_sections(std::span<const DeltaRange> ranges,
                                                                std::uint32_t section_bytes);

// A delta whose header, rows and sizes agree. It borrows the bytes, which must outlive it.
// Gaps are not read yet: DeltaApplier checks each of them.
class Delta {
 public:
  struct Section {
    DeltaPlace place;
    DeltaSection row;
    std::span<const std::byte> gaps;
    std::span<const std::byte> values;
  };

  // Returns kInvalidArgument with the first contradiction. Cost: O(sections).
  [[nodiscard]] static Result<Delta> open(std::span<const std::byte> bytes);

  [[nodiscard]] const DeltaHeader& header() const { return header_; }
  [[nodiscard]] std::span<const DeltaRange> ranges() const { return ranges_; }
  [[nodiscard]] std::span<const Section> sections() const { return sections_; }

 private:
  DeltaHeader header_;
  std::vector<DeltaRange> ranges_;
  std::vector<Section> sections_;
};

}  // namespace hoplite

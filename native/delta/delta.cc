// SPDX-License-Identifier: Apache-2.0
#include "delta/delta.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <string>

#include "base/check.h"
#include "base/limits.h"
#include "wire/crc32c.h"

namespace hoplite {
namespace {

static_assert(std::endian::native == std::endian::little, "a delta is copied as it lies in memory");
static_assert(kDeltaRangesMax == 2 * kPartsMax);
static_assert(kDeltaSectionBytesMin % 8 == 0 && kDeltaSectionBytesMax % 8 == 0);

bool is_section_size(std::uint32_t section_bytes) {
  return section_bytes >= kDeltaSectionBytesMin && section_bytes <= kDeltaSectionBytesMax &&
         section_bytes % 8 == 0;
}

Error corrupt(const std::string& why) {
  return {Code::kInvalidArgument, "a delta is corrupt: " + why + "; fetch the whole version"};
}

std::optional<Error> find_fault(std::span<const DeltaRange> ranges) {
  if (ranges.size() > kDeltaRangesMax) {
    return Error{Code::kInvalidArgument,
                 "a delta has " + std::to_string(ranges.size()) + " ranges, and at most " +
                     std::to_string(kDeltaRangesMax) + "; join neighbours of one width"};
  }
  std::uint64_t left = kObjectBytesMax;
  for (const DeltaRange& range : ranges) {
    const bool is_width = range.width <= 8 && std::has_single_bit(range.width);
    if (!is_width || range.size_bytes == 0 || range.size_bytes % range.width != 0 ||
        range.size_bytes > left) {
      return Error{Code::kInvalidArgument,
                   "a delta can't have a range of " + std::to_string(range.size_bytes) +
                       " bytes and elements of " + std::to_string(range.width) +
                       "; elements have 1, 2, 4 or 8 bytes, and a range has whole ones"};
    }
    left -= range.size_bytes;
  }
  return std::nullopt;
}

std::uint64_t count_sections(std::span<const DeltaRange> ranges, std::uint32_t section_bytes) {
  std::uint64_t count = 0;
  for (const DeltaRange& range : ranges) {
    count += (range.size_bytes + section_bytes - 1) / section_bytes;
  }
  return count;
}

template <typename T>
T read(std::span<const std::byte> bytes, std::size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

}  // namespace

Result<std::vector<DeltaPlace>> cut_into_sections(std::span<const DeltaRange> ranges,
                                                  std::uint32_t section_bytes) {
  HOPLITE_CHECK(is_section_size(section_bytes));
  if (auto fault = find_fault(ranges)) return *fault;
  std::vector<DeltaPlace> places;
  places.reserve(count_sections(ranges, section_bytes));
  std::uint64_t offset = 0;
  for (const DeltaRange& range : ranges) {
    for (std::uint64_t left = range.size_bytes; left > 0;) {
      const std::uint64_t size = std::min<std::uint64_t>(left, section_bytes);
      places.push_back(
          {offset, static_cast<std::uint32_t>(size), static_cast<std::uint32_t>(range.width)});
      offset += size;
      left -= size;
    }
  }
  return places;
}

Result<Delta> Delta::open(std::span<const std::byte> bytes) {
  if (bytes.size() < sizeof(DeltaHeader)) return corrupt("it ends inside its header");
  Delta delta;
  const auto header = delta.header_ = read<DeltaHeader>(bytes, 0);
  if (header.magic != kDeltaMagic) return corrupt("these bytes are no delta");
  if (header.version != kDeltaVersion) {
    return Error{Code::kInvalidArgument, "a delta has format " + std::to_string(header.version) +
                                             ", and this process reads " +
                                             std::to_string(kDeltaVersion) +
                                             "; fetch the whole version"};
  }
  if (!is_section_size(header.section_bytes)) return corrupt("its sections have no valid size");
  const std::uint64_t rows_at = sizeof header + header.range_count * sizeof(DeltaRange);
  const std::uint64_t payload_at =
      rows_at + std::uint64_t{header.section_count} * sizeof(DeltaSection);
  if (bytes.size() < payload_at || bytes.size() - payload_at != header.payload_bytes) {
    return corrupt("its size is not the one that its header names");
  }

  for (std::size_t at = sizeof header; at < rows_at; at += sizeof(DeltaRange)) {
    delta.ranges_.push_back(read<DeltaRange>(bytes, at));
  }
  if (auto fault = find_fault(delta.ranges_)) return corrupt(fault->text);
  if (count_sections(delta.ranges_, header.section_bytes) != header.section_count) {
    return corrupt("its ranges have another number of sections");
  }
  auto places = cut_into_sections(delta.ranges_, header.section_bytes);
  std::uint64_t size_bytes = 0;
  std::uint64_t changed = 0;
  std::uint32_t base_crc = 0;
  std::uint32_t new_crc = 0;
  auto payload = bytes.subspan(payload_at);
  delta.sections_.reserve(places->size());
  for (std::size_t i = 0; i < places->size(); ++i) {
    const DeltaPlace& place = (*places)[i];
    const auto row = read<DeltaSection>(bytes, rows_at + i * sizeof(DeltaSection));
    const std::uint64_t value_bytes = std::uint64_t{row.changed} * place.width;
    if (row.gap_bytes + value_bytes > payload.size()) {
      return corrupt("section " + std::to_string(i) + " has more gaps and values than the payload");
    }
    delta.sections_.push_back(
        {place, row, payload.first(row.gap_bytes), payload.subspan(row.gap_bytes, value_bytes)});
    payload = payload.subspan(row.gap_bytes + value_bytes);
    size_bytes += place.size_bytes;
    changed += row.changed;
    base_crc = combine_crc32c(base_crc, row.base_crc, place.size_bytes);
    new_crc = combine_crc32c(new_crc, row.new_crc, place.size_bytes);
  }
  if (!payload.empty() || size_bytes != header.size_bytes || changed != header.changed ||
      base_crc != header.base_crc || new_crc != header.new_crc) {
    return corrupt("its header is not the sum of its sections");
  }
  return delta;
}

}  // namespace hoplite

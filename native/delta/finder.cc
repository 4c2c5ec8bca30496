// SPDX-License-Identifier: Apache-2.0
#include "delta/finder.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/copy.h"
#include "wire/crc32c.h"

namespace hoplite {
namespace {

// Bytes of the new whole that are checked, compared and copied while they lie in the first cache,
// with as many of the base.
constexpr std::size_t kStepBytes = 16_KiB;
static_assert(kDeltaSectionBytesMax + kDeltaSectionBytesMax / 255 < (1ULL << 32));

// Gaps of a section: one for each changed element, and one for each 255 equal ones.
std::uint64_t count_gap_bytes_max(std::uint32_t elements) { return elements + elements / 255 + 1; }

struct Changes {  // of a section; the open end of its gaps and values
  std::byte* gap;
  std::byte* value;
  std::uint32_t next_element;  // the one behind the last changed one
};

// Appends the changed elements of one step, whose first element has number `first`.
template <std::size_t kWidth>
void append_changes(std::span<const std::uint64_t> masks, std::uint32_t first,
                    const std::byte* bytes, Changes& open) {
  auto [gap_at, value_at, next] = open;
  for (const std::uint64_t mask : masks) {
    for (std::uint64_t left = mask; left != 0; left &= left - 1) {
      const auto bit = static_cast<std::uint32_t>(std::countr_zero(left));
      std::uint32_t gap = first + bit - next;
      for (; gap >= 255; gap -= 255) *gap_at++ = std::byte{255};
      *gap_at++ = static_cast<std::byte>(gap);
      next = first + bit + 1;
      std::memcpy(value_at, bytes + bit * kWidth, kWidth);
      value_at += kWidth;
    }
    first += 64;
    bytes += 64 * kWidth;
  }
  open = {gap_at, value_at, next};
}

void append_changes(std::uint32_t width, std::span<const std::uint64_t> masks, std::uint32_t first,
                    const std::byte* bytes, Changes& open) {
  if (width == 1) return append_changes<1>(masks, first, bytes, open);
  if (width == 2) return append_changes<2>(masks, first, bytes, open);
  if (width == 4) return append_changes<4>(masks, first, bytes, open);
  append_changes<8>(masks, first, bytes, open);
}

template <typename T>
void write(std::vector<std::byte>& bytes, std::size_t at, const T& value) {
  std::memcpy(bytes.data() + at, &value, sizeof value);
}

}  // namespace

Result<DeltaFinder> DeltaFinder::start(std::span<const DeltaRange> ranges,
                                       std::span<const std::byte> base, std::span<std::byte> copy,
                                       const DeltaOptions& options, std::vector<std::byte> buffer) {
  HOPLITE_CHECK(can_run(options.kernels));
  if (options.section_bytes < kDeltaSectionBytesMin ||
      options.section_bytes > kDeltaSectionBytesMax || options.section_bytes % 8 != 0) {
    return Error{Code::kInvalidArgument, "a delta can't have sections of " +
                                             std::to_string(options.section_bytes) +
                                             " bytes; use kDeltaSectionBytes"};
  }
  auto places = cut_into_sections(ranges, options.section_bytes);
  if (!places) return places.error();
  const std::uint64_t covered =
      places->empty() ? 0 : places->back().offset + places->back().size_bytes;
  if (covered != base.size() || (!copy.empty() && copy.size() != base.size())) {
    return Error{Code::kInvalidArgument, "a delta's ranges have " + std::to_string(covered) +
                                             " bytes, its base " + std::to_string(base.size()) +
                                             " and its copy " + std::to_string(copy.size()) +
                                             "; a delta needs two versions of one size"};
  }
  DeltaFinder finder;
  finder.header_.range_count = static_cast<std::uint16_t>(ranges.size());
  finder.header_.size_bytes = base.size();
  finder.header_.section_bytes = options.section_bytes;
  finder.header_.section_count = static_cast<std::uint32_t>(places->size());
  finder.options_ = options;
  finder.base_ = base;
  finder.copy_ = copy;
  finder.rows_at_ = sizeof(DeltaHeader) + ranges.size_bytes();
  const std::size_t payload_at = finder.rows_at_ + places->size() * sizeof(DeltaSection);
  finder.places_ = std::move(*places);
  finder.delta_ = std::move(buffer);
  if (payload_at > options.limit_bytes) {
    finder.cancel();
    return finder;
  }
  // Room for a usual delta: pages that are never used cost nothing.
  finder.delta_.reserve(std::min(options.limit_bytes, payload_at + base.size() / 32));
  finder.delta_.resize(payload_at);
  if (!ranges.empty()) {
    std::memcpy(finder.delta_.data() + sizeof(DeltaHeader), ranges.data(), ranges.size_bytes());
  }
  std::uint64_t gap_bytes_max = 0;
  std::uint32_t value_bytes_max = 0;
  for (const DeltaPlace& place : finder.places_) {
    gap_bytes_max = std::max(gap_bytes_max, count_gap_bytes_max(place.size_bytes / place.width));
    value_bytes_max = std::max(value_bytes_max, place.size_bytes);
  }
  finder.gaps_.resize(gap_bytes_max);
  finder.values_.resize(value_bytes_max);
  return finder;
}

Result<void> DeltaFinder::add(std::span<const std::byte> bytes) {
  if (bytes.size() > base_.size() - added_bytes_) {
    return Error{Code::kInvalidArgument,
                 "a new version has more than the " + std::to_string(base_.size()) +
                     " bytes of its base; a delta needs two versions of one size"};
  }
  while (!bytes.empty() && !has_given_up_) {
    const DeltaPlace& place = places_[section_];
    const std::size_t step =
        std::min({bytes.size(), kStepBytes, std::size_t{place.size_bytes - seen_bytes_}});
    if (step % place.width != 0) {
      return Error{Code::kInvalidArgument,
                   "bytes of a new version end at offset " + std::to_string(added_bytes_ + step) +
                       ", inside an element of " + std::to_string(place.width) +
                       " bytes; add whole elements"};
    }
    compare_next(bytes.first(step));
    bytes = bytes.subspan(step);
  }
  if (!copy_.empty()) copy_bytes(copy_.data() + added_bytes_, bytes.data(), bytes.size());
  added_bytes_ += bytes.size();
  return {};
}

void DeltaFinder::compare_next(std::span<const std::byte> bytes) {
  // The caller's bytes may change meanwhile. The delta is that of the bytes which are kept.
  if (!copy_.empty()) {
    const auto kept = copy_.subspan(added_bytes_, bytes.size());
    copy_bytes(kept.data(), bytes.data(), bytes.size());
    bytes = kept;
  }
  const DeltaPlace& place = places_[section_];
  const auto base = base_.subspan(added_bytes_, bytes.size());
  std::array<std::uint64_t, kStepBytes / 64> room;
  const std::size_t elements = bytes.size() / place.width;
  const auto masks = std::span(room).first((elements + 63) / 64);
  row_.base_crc = crc32c(base, row_.base_crc);
  row_.new_crc = crc32c(bytes, row_.new_crc);
  compare_elements(options_.kernels, place.width, base, bytes, masks);
  Changes open{gaps_.data() + row_.gap_bytes,
               values_.data() + std::size_t{row_.changed} * place.width, next_element_};
  append_changes(place.width, masks, seen_bytes_ / place.width, bytes.data(), open);
  row_.gap_bytes = static_cast<std::uint32_t>(open.gap - gaps_.data());
  row_.changed = static_cast<std::uint32_t>(open.value - values_.data()) / place.width;
  next_element_ = open.next_element;
  added_bytes_ += bytes.size();
  seen_bytes_ += static_cast<std::uint32_t>(bytes.size());
  if (seen_bytes_ == place.size_bytes) close_section();
}

void DeltaFinder::close_section() {
  const DeltaPlace& place = places_[section_];
  const std::size_t value_bytes = std::size_t{row_.changed} * place.width;
  if (delta_.size() + row_.gap_bytes + value_bytes > options_.limit_bytes) return cancel();
  delta_.insert(delta_.end(), gaps_.begin(), gaps_.begin() + row_.gap_bytes);
  delta_.insert(delta_.end(), values_.begin(),
                values_.begin() + static_cast<std::ptrdiff_t>(value_bytes));
  write(delta_, rows_at_ + section_ * sizeof row_, row_);
  header_.changed += row_.changed;
  header_.payload_bytes += row_.gap_bytes + value_bytes;
  header_.base_crc = combine_crc32c(header_.base_crc, row_.base_crc, place.size_bytes);
  header_.new_crc = combine_crc32c(header_.new_crc, row_.new_crc, place.size_bytes);
  ++section_;
  row_ = {};
  next_element_ = 0;
  seen_bytes_ = 0;
}

void DeltaFinder::cancel() {
  has_given_up_ = true;
  delta_ = {};
}

std::optional<std::vector<std::byte>> DeltaFinder::finish() {
  if (has_given_up_) return std::nullopt;
  HOPLITE_CHECK(section_ == places_.size());
  write(delta_, 0, header_);
  return std::move(delta_);
}

}  // namespace hoplite

// SPDX-License-Identifier: Apache-2.0
#include "delta/applier.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "base/check.h"
#include "base/copy.h"
#include "wire/crc32c.h"

namespace hoplite {
namespace {

// Bytes of the target that are copied, patched by each delta and checked while they lie in the
// second cache.
constexpr std::size_t kStepBytes = 64_KiB;

// Reads the changes of one section of one delta, in order.
struct Cursor {
  const std::byte* gap = nullptr;
  const std::byte* gaps_end = nullptr;
  const std::byte* value = nullptr;
  std::uint32_t left = 0;      // changed elements that are not applied
  std::uint64_t position = 0;  // the next one of them; REQUIRES: left > 0
};

// Reads the next gap. Returns false if the gaps end.
[[gnu::always_inline]] inline bool advance(Cursor& cursor) {
  std::byte gap;
  do {
    if (cursor.gap == cursor.gaps_end) return false;
    gap = *cursor.gap++;
    cursor.position += std::to_integer<std::uint64_t>(gap);
  } while (gap == std::byte{255});
  return true;
}

// Applies the changes in front of element `end` of the section, and no others, however far the gaps
// lead. Returns false if the gaps end too early.
template <std::size_t kWidth>
bool patch(Cursor& cursor, std::byte* section, std::uint64_t end) {
  Cursor at = cursor;
  while (at.left > 0 && at.position < end) {
    std::memcpy(section + at.position * kWidth, at.value, kWidth);
    at.value += kWidth;
    ++at.position;
    if (--at.left > 0 && !advance(at)) return false;
  }
  cursor = at;
  return true;
}

bool patch(std::uint32_t width, Cursor& cursor, std::byte* section, std::uint64_t end) {
  if (width == 1) return patch<1>(cursor, section, end);
  if (width == 2) return patch<2>(cursor, section, end);
  if (width == 4) return patch<4>(cursor, section, end);
  return patch<8>(cursor, section, end);
}

Error refuse(std::size_t section, const DeltaPlace& place, const char* why) {
  return {Code::kInvalidArgument, "section " + std::to_string(section) + " of a version, " +
                                      std::to_string(place.size_bytes) + " bytes at offset " +
                                      std::to_string(place.offset) + ", can't be rebuilt: " + why +
                                      "; fetch the whole version"};
}
constexpr const char* kOtherBase = "the base is not the one that the delta was made for";
constexpr const char* kCorrupt = "the delta is corrupt";

bool is_successor(const Delta& before, const Delta& after) {
  return std::ranges::equal(before.sections(), after.sections(),
                            [](const Delta::Section& a, const Delta::Section& b) {
                              return a.place == b.place && a.row.new_crc == b.row.base_crc;
                            });
}

}  // namespace

Result<DeltaApplier> DeltaApplier::open(std::span<const std::span<const std::byte>> deltas) {
  if (deltas.empty() || deltas.size() > kDeltasPerPassMax) {
    return Error{Code::kInvalidArgument, std::to_string(deltas.size()) +
                                             " deltas can't be applied in one pass; pass 1 to " +
                                             std::to_string(kDeltasPerPassMax)};
  }
  std::vector<Delta> opened;
  opened.reserve(deltas.size());
  for (const auto bytes : deltas) {
    auto delta = Delta::open(bytes);
    if (!delta) return delta.error();
    if (!opened.empty() && !is_successor(opened.back(), *delta)) {
      return Error{Code::kInvalidArgument,
                   "delta " + std::to_string(opened.size()) +
                       " is not made for the version that the delta before it gives; pass deltas "
                       "of consecutive versions, the oldest first"};
    }
    opened.push_back(std::move(*delta));
  }
  return DeltaApplier(std::move(opened));
}

Result<void> DeltaApplier::apply(std::size_t first, std::size_t count,
                                 std::span<const std::byte> base,
                                 std::span<std::byte> target) const {
  HOPLITE_CHECK(first <= section_count());
  HOPLITE_CHECK(count <= section_count() - first);
  if (base.size() != size_bytes() || target.size() != size_bytes()) {
    return Error{Code::kInvalidArgument, "a delta of versions of " + std::to_string(size_bytes()) +
                                             " bytes doesn't fit a base of " +
                                             std::to_string(base.size()) + " and a target of " +
                                             std::to_string(target.size()) +
                                             "; pass a base and a target of that size"};
  }
  for (std::size_t i = first; i < first + count; ++i) {
    if (auto done = rebuild(i, base, target); !done) return done;
  }
  return {};
}

Result<void> DeltaApplier::step(std::span<const std::byte> base, std::span<std::byte> target,
                                std::uint64_t budget_bytes) {
  HOPLITE_CHECK(!is_done());
  const auto sections = deltas_.front().sections();
  std::size_t end = next_ + 1;
  for (std::uint64_t bytes = sections[next_].place.size_bytes; end < sections.size(); ++end) {
    bytes += sections[end].place.size_bytes;
    if (bytes > budget_bytes) break;
  }
  auto done = apply(next_, end - next_, base, target);
  if (done) next_ = end;
  return done;
}

Result<void> DeltaApplier::rebuild(std::size_t section, std::span<const std::byte> base,
                                   std::span<std::byte> target) const {
  const Delta::Section& oldest = deltas_.front().sections()[section];
  const DeltaPlace& place = oldest.place;
  const auto from = base.subspan(place.offset, place.size_bytes);
  const auto into = target.subspan(place.offset, place.size_bytes);
  const bool is_in_place = from.data() == into.data();
  if (is_in_place && crc32c(from) != oldest.row.base_crc) {
    return refuse(section, place, kOtherBase);
  }

  std::array<Cursor, kDeltasPerPassMax> room;
  const auto cursors = std::span(room).first(deltas_.size());
  for (std::size_t i = 0; i < cursors.size(); ++i) {
    const Delta::Section& each = deltas_[i].sections()[section];
    cursors[i] = {.gap = each.gaps.data(),
                  .gaps_end = each.gaps.data() + each.gaps.size(),
                  .value = each.values.data(),
                  .left = each.row.changed};
    if (cursors[i].left > 0 && !advance(cursors[i])) {
      return refuse(section, place, kCorrupt);
    }
  }

  std::uint32_t crc = 0;
  for (std::size_t at = 0; at < into.size();) {
    const auto step = into.subspan(at, std::min(kStepBytes, into.size() - at));
    if (!is_in_place) copy_bytes(step.data(), from.data() + at, step.size());
    at += step.size();
    for (Cursor& cursor : cursors) {
      if (!patch(place.width, cursor, into.data(), at / place.width)) {
        return refuse(section, place, kCorrupt);
      }
    }
    crc = crc32c(step, crc);
  }
  const bool is_read_whole = std::ranges::all_of(cursors, [](const Cursor& cursor) {
    return cursor.left == 0 && cursor.gap == cursor.gaps_end;
  });
  if (crc == deltas_.back().sections()[section].row.new_crc && is_read_whole) return {};
  const bool is_other_base = !is_in_place && crc32c(from) != oldest.row.base_crc;
  return refuse(section, place, is_other_base ? kOtherBase : kCorrupt);
}

}  // namespace hoplite

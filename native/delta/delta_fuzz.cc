// SPDX-License-Identifier: Apache-2.0
// libFuzzer: whatever a delta holds, it is refused, or it rebuilds bytes inside the target that
// have the CRC that it names. Random bytes seldom get past the sums of the header, so the second
// input is a delta whose header and rows agree and whose payload is the fuzzer's.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "base/check.h"
#include "base/fuzz_input.h"
#include "delta/applier.h"
#include "wire/crc32c.h"

namespace hoplite {
namespace {

using ByteVector = std::vector<std::byte>;
constexpr std::size_t kWholeBytesMax = 4096;

void apply(std::span<const std::byte> delta) {
  const std::array<std::span<const std::byte>, 2> twice{delta, delta};
  for (std::size_t count = 1; count <= twice.size(); ++count) {
    auto applier = DeltaApplier::open(std::span(twice).first(count));
    if (!applier || applier->size_bytes() > kWholeBytesMax) continue;
    const ByteVector base(applier->size_bytes());
    ByteVector target(base.size());
    const auto beside = applier->apply(0, applier->section_count(), base, target);
    HOPLITE_CHECK(!beside || crc32c(target) == applier->new_crc());
    ByteVector place = base;
    bool is_rebuilt = true;
    while (is_rebuilt && !applier->is_done()) {
      is_rebuilt = applier->step(place, place, 256).has_value();
    }
    HOPLITE_CHECK(!is_rebuilt || crc32c(place) == applier->new_crc());
  }
}

template <typename T>
void append(ByteVector& bytes, const T& value) {
  const auto* from = reinterpret_cast<const std::byte*>(&value);
  bytes.insert(bytes.end(), from, from + sizeof value);
}

// A delta of a base of zeros in one section.
ByteVector forge(FuzzInput input) {
  const std::uint64_t width = std::uint64_t{1} << input.number() % 4;
  const DeltaRange range{width * (1 + input.number()), width};
  const auto gaps = input.take(input.number());
  DeltaSection row{.gap_bytes = static_cast<std::uint32_t>(gaps.size()),
                   .changed = input.number(),
                   .base_crc = crc32c(ByteVector(range.size_bytes)),
                   .new_crc = 0};
  const auto values = input.take(row.changed * width);
  row.new_crc = input.number() % 2 == 0 ? row.base_crc : crc32c(values);
  DeltaHeader header{.range_count = 1,
                     .size_bytes = range.size_bytes,
                     .changed = row.changed,
                     .payload_bytes = gaps.size() + values.size(),
                     .base_crc = row.base_crc,
                     .new_crc = row.new_crc,
                     .section_count = 1};
  ByteVector delta;
  append(delta, header);
  append(delta, range);
  append(delta, row);
  delta.insert(delta.end(), gaps.begin(), gaps.end());
  delta.insert(delta.end(), values.begin(), values.end());
  return delta;
}

}  // namespace
}  // namespace hoplite

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto input = std::as_bytes(std::span(data, size));
  hoplite::apply(input);
  hoplite::apply(hoplite::forge(hoplite::FuzzInput(input)));
  return 0;
}

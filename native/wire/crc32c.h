// SPDX-License-Identifier: Apache-2.0
// CRC-32C (Castagnoli) of a block's bytes, as every block header carries it. Pure; by the widest
// instructions that the processor has, or by a table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace hoplite {

// Returns the CRC of `bytes` behind those that gave `crc` (0: none), so that blocks may come in
// parts.
[[nodiscard]] std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t crc = 0);
// Returns the CRC of bytes with CRC `first` followed by `second_bytes` bytes with CRC `second`.
// Cost: O(log second_bytes).
[[nodiscard]] std::uint32_t combine_crc32c(std::uint32_t first, std::uint32_t second,
                                           std::uint64_t second_bytes);
// The same as crc32c without instructions; the test compares the two.
[[nodiscard]] std::uint32_t crc32c_table(std::span<const std::byte> bytes, std::uint32_t crc = 0);

}  // namespace hoplite

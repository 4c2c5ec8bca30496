// SPDX-License-Identifier: Apache-2.0
// The values that simulated clients put, and the simulator's own reduce. It shares no code with
// node/kernels, so that each checks the other. Floats have few significant bits, so that a fold is
// exact in every order and rounds its result once. Rough floats have all their bits.
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/prng.h"
#include "plan/messages.h"

namespace hoplite::sim {

inline ObjectId object_named(std::uint64_t number) {
  ObjectId id;
  std::memcpy(id.bytes.data(), &number, sizeof number);
  const std::uint64_t spread = mix64(number);
  std::memcpy(id.bytes.data() + 8, &spread, sizeof spread);
  return id;
}

// Returns the number of an object, or of the target of a branch: a branch's id begins as its
// target's does.
inline std::uint64_t number_of(const ObjectId& id) {
  std::uint64_t number = 0;
  std::memcpy(&number, id.bytes.data(), sizeof number);
  return number;
}

// A text that grows with the parts: of two and more it is long enough for tables of layouts.
std::string layout_of(const std::vector<Part>& parts);

// The bytes that attempt `incarnation` puts as `id`: no two attempts and no two objects agree.
Bytes content_of(const ObjectId& id, Incarnation incarnation, const std::vector<Part>& parts,
                 bool rough = false);

// The bytes that make `whole` of `base`: the checksums of both, and what differs in each byte.
// REQUIRES: they have as many bytes.
Bytes delta_between(std::span<const std::byte> base, std::span<const std::byte> whole);
inline constexpr std::size_t kDeltaChecksumBytes = 8;
// Applies bytes [from, upto) of deltas to those of `base`. Returns false if a delta has another
// size.
bool apply_deltas(std::span<const std::byte> base,
                  std::span<const std::span<const std::byte>> deltas, std::uint64_t from,
                  std::uint64_t upto, std::span<std::byte> target);
// True if the deltas are of consecutive versions from `base` to `whole`.
bool are_deltas_of(std::span<const std::byte> base, std::span<const std::byte> whole,
                   std::span<const std::span<const std::byte>> deltas);

// Writes bytes [from, upto) of an excerpt of `source`; those of no run are 0.
void gather_runs(std::span<const StridedRuns> runs, std::span<const std::byte> source,
                 std::uint64_t from, std::uint64_t upto, std::span<std::byte> excerpt);

// Performs the actions Fold and Finish of a node. REQUIRES: the sizes match.
void fold_into(std::span<std::byte> into, std::span<const std::byte> from, DType dtype, ReduceOp op,
               bool first);
void finish_into(std::span<std::byte> into, std::span<const std::byte> from, DType dtype,
                 ReduceOp op, std::uint32_t sources);

// The whole reduce. REQUIRES: sources of these parts, at least one.
Bytes reduce_all(const std::vector<Part>& parts, ReduceOp op,
                 const std::vector<std::span<const std::byte>>& sources);
// The same as the deterministic reduce has it: along a binary tree over the indices of sources.
Bytes reduce_pairwise(const std::vector<Part>& parts, ReduceOp op,
                      const std::map<std::uint32_t, std::span<const std::byte>>& sources);

}  // namespace hoplite::sim

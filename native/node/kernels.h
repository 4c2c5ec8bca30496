// SPDX-License-Identifier: Apache-2.0
// The arithmetic of reduces, element by element. Leaf functions without state. Spans may start at
// any byte and need not be whole vectors of the processor. The rules are numpy's: integers wrap
// around, max and min of floats are NaN if either is, a bool is a byte of 0 or 1. 16-bit floats are
// folded into an accumulator of float32, and finish() rounds once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "plan/messages.h"

namespace hoplite {

// into = first ? from : op(into, from), where `into` is an accumulator and `from` one source's
// elements; a mean is a sum so far.
// REQUIRES: can_reduce(dtype, op); as many accumulators (accumulator_bytes(dtype) each) as
// elements; the spans don't overlap.
void fold(ReduceOp op, DType dtype, bool first, std::span<std::byte> into,
          std::span<const std::byte> from);

// Elements from accumulators that hold `sources` of them: a mean is divided, a 16-bit float rounded
// to nearest, ties to even. REQUIRES: needs_finish(dtype, op); sizes as above with the roles
// changed; sources >= 1; 16-bit floats: the spans don't overlap; others: they are the same.
void finish(ReduceOp op, DType dtype, std::uint32_t sources, std::span<std::byte> into,
            std::span<const std::byte> from);

}  // namespace hoplite

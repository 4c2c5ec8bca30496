// The arithmetic of reduces: into = op(into, from), element by element. Leaf functions without
// state. Spans may start at any byte and need not be whole vectors of the processor. Sums of
// integers wrap around; max of floats gives NaN when either is NaN, as numpy.maximum does.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

#include "plan/messages.h"

namespace hoplite {

// REQUIRES: dtype != kOpaque; both spans have the same size, a multiple of element_bytes(dtype),
// and don't overlap.
void fold(ReduceOp op, DType dtype, std::span<std::byte> into, std::span<const std::byte> from);

}  // namespace hoplite

// SPDX-License-Identifier: Apache-2.0
// The kernels of reduces over buffers of Python, for values that no node has.
#pragma once

#include <nanobind/nanobind.h>

namespace hoplite {

void bind_kernels(nanobind::module_& m);

}  // namespace hoplite

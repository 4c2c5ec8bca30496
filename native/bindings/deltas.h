// SPDX-License-Identifier: Apache-2.0
// Deltas over buffers of Python, as functions of the extension module.
#pragma once

#include <nanobind/nanobind.h>

namespace hoplite {

void bind_deltas(nanobind::module_& m);

}  // namespace hoplite

// SPDX-License-Identifier: Apache-2.0
// Worlds for hoplite_ray/worlds: the port of a process, a world's edges, and pending operations.
// Used by module.cc only. Every function needs the GIL, and releases it where it may wait or copy.
#pragma once

#include <nanobind/nanobind.h>

namespace hoplite::worlds {

void bind_worlds(nanobind::module_& m);

}  // namespace hoplite::worlds

// SPDX-License-Identifier: Apache-2.0
// NCCL for worlds, as classes of the extension module.
#pragma once

#include <nanobind/nanobind.h>

namespace hoplite::worlds {

void bind_nccl(nanobind::module_& m);

}  // namespace hoplite::worlds

// SPDX-License-Identifier: Apache-2.0
// libFuzzer: what a lying member and a lying client say to one engine. See siege.h.
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/fuzz_input.h"
#include "sim/runs/siege.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace hoplite;
  FuzzInput input(std::as_bytes(std::span(data, size)));
  sim::Siege siege([&input] { return input.number(); });
  while (!input.is_empty()) siege.step();
  return 0;
}

// SPDX-License-Identifier: Apache-2.0
// Engine configurations that are accepted and refused.
#include "plan/messages/engine_config.h"

#include <gtest/gtest.h>

namespace hoplite {
namespace {

TEST(EngineConfigTest, TheDefaultsAreRight) { EXPECT_EQ(fault_of(EngineConfig{}), std::nullopt); }

TEST(EngineConfigTest, WhatCannotBeIsNamed) {
  const std::pair<void (*)(EngineConfig&), const char*> cases[] = {
      {[](EngineConfig& c) { c.block_bytes_max = 2_MiB; }, "block_bytes_max=2097152: must be 1 to"},
      {[](EngineConfig& c) { c.block_bytes_min = 100; },
       "block_bytes_min=100 is no multiple of 64"},
      {[](EngineConfig& c) { c.block_bytes_min = 1_MiB; }, "block_bytes_min=1048576: must be 1 to"},
      {[](EngineConfig& c) { c.inline_bytes_max = 1_MiB; }, "inline_bytes_max"},
      {[](EngineConfig& c) { c.carried_bytes_max = 1_MiB; }, "carried_bytes_max"},
      {[](EngineConfig& c) { c.forward_list_max = 0; }, "forward_list_max=0: must be 1 or more"},
      {[](EngineConfig& c) { c.credit_blocks_min = 0; }, "credit_blocks_min"},
      {[](EngineConfig& c) { c.fold_window_max = 0; }, "fold_window_max"},
      {[](EngineConfig& c) { c.rail_queue_bytes = 0; }, "rail_queue_bytes"},
      {[](EngineConfig& c) { c.fold_bytes_max = 0; }, "fold_bytes_max"},
      {[](EngineConfig& c) { c.combined_bytes_max = 400'000; }, "combined_bytes_max=400000"},
      {[](EngineConfig& c) { c.steps_per_turn_max = 0; }, "steps_per_turn_max"},
      {[](EngineConfig& c) { c.progress_per_window_max = 0; }, "progress_per_window_max"},
      {[](EngineConfig& c) { c.spill_step_bytes = 0; }, "spill_step_bytes"},
      {[](EngineConfig& c) { c.parked_messages_max = 0; }, "parked_messages_max"},
      {[](EngineConfig& c) { c.parked_bytes_max = 64_KiB; }, "parked_bytes_max=65536"},
      {[](EngineConfig& c) { c.deletes_max = 0; }, "deletes_max"},
      {[](EngineConfig& c) { c.recent_objects_max = 0; }, "recent_objects_max"},
  };
  for (const auto& [change, text] : cases) {
    EngineConfig config;
    change(config);
    const auto fault = fault_of(config);
    ASSERT_TRUE(fault) << text;
    EXPECT_TRUE(fault->starts_with(text)) << *fault;
  }
}

}  // namespace
}  // namespace hoplite

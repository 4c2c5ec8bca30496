// SPDX-License-Identifier: Apache-2.0
#include "plan/messages/engine_config.h"

namespace hoplite {

std::optional<std::string> fault_of(const EngineConfig& config) {
  struct Rule {
    const char* name;
    std::uint64_t value;
    std::uint64_t least;
    std::uint64_t most;
    const char* reason;
  };
  constexpr std::uint64_t kMost = ~std::uint64_t{0};
  const std::uint64_t block = config.block_bytes_max;
  const Rule rules[] = {
      {"block_bytes_max", block, 1, kBlockBytesMax, "a turn exceeds its share by less"},
      {"block_bytes_min", config.block_bytes_min, 1, block, "block_bytes_max is not less"},
      {"inline_bytes_max", config.inline_bytes_max, 0, kInlineBytesMax, "it fits into a frame"},
      {"carried_bytes_max", config.carried_bytes_max, 0, kInlineBytesMax, "it fits into a frame"},
      {"forward_list_max", config.forward_list_max, 1, kMost, "each push has a list"},
      {"credit_blocks_min", config.credit_blocks_min, 1, kMost, "a pull needs a block"},
      {"fold_window_max", config.fold_window_max, 1, kMost, "a pull needs a block"},
      {"rail_queue_bytes", config.rail_queue_bytes, 1, kMost, "an empty rail has room"},
      {"fold_bytes_max", config.fold_bytes_max, 1, kMost, "a turn folds something"},
      {"combined_bytes_max", config.combined_bytes_max, 2 * block, kMost, "it takes two blocks"},
      {"steps_per_turn_max", config.steps_per_turn_max, 1, kMost, "a turn makes a step"},
      {"progress_per_window_max", config.progress_per_window_max, 1, kMost, "each has its turn"},
      {"spill_step_bytes", config.spill_step_bytes, 1, kMost, "each step writes something"},
      {"parked_messages_max", config.parked_messages_max, 1, kMost, "a ResyncDone can wait"},
      {"parked_bytes_max", config.parked_bytes_max, config.inline_bytes_max + 1, kMost,
       "a message never exceeds it"},
      {"deletes_max", config.deletes_max, 1, kMost, "deletions go on one by one"},
      {"channels_max", config.channels_max, 1, kMost, "a publisher gets a term"},
      {"channel_requests_max", config.channel_requests_max, 1, kMost, "a client may ask"},
      {"recent_objects_max", config.recent_objects_max, 1, kMost, "the newest is remembered"},
  };
  for (const Rule& rule : rules) {
    if (rule.value >= rule.least && rule.value <= rule.most) continue;
    return std::string(rule.name) + "=" + std::to_string(rule.value) + ": must be " +
           std::to_string(rule.least) +
           (rule.most == kMost ? " or more" : " to " + std::to_string(rule.most)) + ", because " +
           rule.reason;
  }
  if (config.block_bytes_min % kPartAlignBytes == 0) return std::nullopt;
  return "block_bytes_min=" + std::to_string(config.block_bytes_min) + " is no multiple of " +
         std::to_string(kPartAlignBytes);
}

}  // namespace hoplite

// SPDX-License-Identifier: Apache-2.0
// The settings of an engine, and the limits of its queues, tables and turns. Each is a field, so
// that the simulator can draw it small. Plain data; reached through messages.h.
#pragma once

#include <optional>
#include <string>

#include "plan/messages/channel_messages.h"
#include "plan/messages/types.h"

namespace hoplite {

// Handling of a put that finds no room in the arena: it waits for room, fails at once, or waits
// while other objects are written to a file.
enum class WhenFull : std::uint8_t { kWait, kFail, kSpill };

struct EngineConfig {
  NodeId node;
  Incarnation incarnation{1};
  std::uint64_t arena_bytes = 64_MiB;
  std::uint64_t block_bytes_min = kBlockBytesMin;
  std::uint64_t block_bytes_max = kBlockBytesAimMax;
  std::uint64_t inline_bytes_max = kInlineBytesMax;
  std::uint64_t carried_bytes_max = kCarriedBytesMax;                   // of one source
  std::uint64_t carried_together_bytes_max = kCarriedTogetherBytesMax;  // of a reduce's sources
  std::size_t forward_list_max = kForwardListMax;  // pushes of one object by its sender
  std::uint16_t broadcast_stripes = 0;             // 0: by size and receivers; 1: Hoplite's chain
  std::uint16_t reduce_stripes = 0;  // owners per reduce; 0: one per node but the caller's
  std::uint16_t reduce_degree = 0;   // members per node of its tree; 0: by size and sources
  std::uint64_t link_bytes_per_s = kLinkBytesPerS;
  WhenFull when_full = WhenFull::kWait;
  std::uint32_t credit_blocks_min = kCreditBlocksMin;
  std::uint64_t credit_bytes = kCreditBytes;
  std::uint64_t rail_queue_bytes = kRailQueueBytes;
  std::uint64_t fold_slots_bytes_max = kFoldSlotsBytesMax;
  std::uint32_t fold_window_max = kFoldWindowMax;               // blocks of one member under way
  std::uint64_t fold_bytes_max = kBytesPerTurnMax;              // queued at a time
  std::uint64_t combined_bytes_max = kCombinedBytesMax;         // folded for one block that is sent
  std::size_t steps_per_turn_max = kStepsPerTurnMax;            // after one event
  std::size_t progress_per_window_max = kProgressPerWindowMax;  // objects reported
  std::uint64_t spill_step_bytes = kSpillStepBytes;
  std::size_t parked_messages_max = kParkedMessagesMax;    // of one peer
  std::uint64_t parked_bytes_max = kParkedBytesMax;        // of all peers
  std::size_t deletes_max = kDeletesMax;                   // in flight to one home
  std::size_t recent_objects_max = kRecentObjectsMax;      // remembered, of each kind of news
  std::size_t channels_max = kChannelsMax;                 // of the cluster
  std::size_t channel_requests_max = kChannelRequestsMax;  // of this node's clients
  Duration progress_window = kProgressWindow;
  Duration push_retry = kPushRetry;
  Duration regrant_delay = kRegrantDelay;
  Duration lost_grace = kLostGrace;
  Duration caller_grace = kCallerGrace;
  Duration admission_grace = kAdmissionGrace;
  Duration tombstone_life = kTombstoneLife;
};

// Returns the field with an impossible value, and the reason; nothing if the config is valid.
[[nodiscard]] std::optional<std::string> fault_of(const EngineConfig& config);

}  // namespace hoplite

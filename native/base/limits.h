// SPDX-License-Identifier: Apache-2.0
// Every limit of the product: value, unit, reason, and relation to the others.
// A limit of a queue, a table or a share of a turn is a field of EngineConfig or TurnLimits,
// because the simulator draws it small. Only its default stands here.
// A limit that decides whether a frame is refused is the same at all nodes and is no field: sizes
// of frames and layouts, kNeedlessBlocksMax, kPartsMax, kStripesMax, kReduceSourcesMax,
// kRebuildDeltasMax, kExcerptRunsMax, kViewMembersMax, kRailsMax.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/clock.h"
#include "base/units.h"

namespace hoplite {

inline constexpr std::uint16_t kWireVersion = 5;  // the only one: HELLO refuses any other

// Objects up to this size travel inside control frames and are copied out, never mapped (decision
// 18). One page-table operation costs more than copying 64 KiB.
inline constexpr std::uint64_t kInlineBytesMax = 64_KiB;
inline constexpr std::size_t kLayoutBytesMax = 256_KiB;  // a state_dict of thousands of leaves
// Layouts that each end of a connection remembers to have sent, in bytes (decision 2b).
inline constexpr std::size_t kLayoutTableBytesMax = 1_MiB;
inline constexpr std::uint64_t kControlFrameBytesMax = 512_KiB;
static_assert(kControlFrameBytesMax >= kInlineBytesMax + kLayoutBytesMax + 4_KiB,
              "an inline object, its layout and a forwarding list fit into one frame");

// Bounds of a block; `choose_block_bytes` chooses between them. An object has at most 1,024 blocks,
// if they can be as large. From 8 KiB on a block's bytes cost more than its handling. From 256 KiB
// on larger blocks save no CPU time. 1 MiB bounds a turn of the reactor.
inline constexpr std::uint64_t kBlocksPerObjectAim = 1024;
inline constexpr std::uint64_t kBlockBytesMin = 8_KiB;
inline constexpr std::uint64_t kBlockBytesAimMax = 256_KiB;
inline constexpr std::uint64_t kBlockBytesMax = 1_MiB;
inline constexpr std::uint64_t kObjectBytesMax = 1024_GiB;  // block indices stay below 2^21
static_assert(kObjectBytesMax / kBlockBytesMax <= (1ULL << 31), "a BlockIndex holds every block");
// A message is refused if it cuts an object into more blocks than this and than blocks of
// kBlockBytesAimMax would be. A turn may walk all blocks.
inline constexpr std::uint64_t kNeedlessBlocksMax = 65'536;
// Checksums in one report of a writer. Senders make those of blocks below 8 KiB.
inline constexpr std::size_t kSumsPerWriteMax = 1024;

// The answer to a question where a source of a reduce is carries the source itself up to this size,
// and up to the second size of all sources together (decision 5c). That saves two hops for each
// source and takes no longer than a tree of the sources.
inline constexpr std::uint64_t kCarriedBytesMax = 16_KiB;
inline constexpr std::uint64_t kCarriedTogetherBytesMax = 256_KiB;
static_assert(kCarriedBytesMax <= kInlineBytesMax, "the home has a copy of it");

// Runs of one dtype in an object (decision 5h): its leaves are ordered by dtype, and there are 14
// dtypes. Each run except the last fills whole cache lines: no element and no block straddles one.
inline constexpr std::size_t kPartsMax = 16;
inline constexpr std::uint64_t kPartAlignBytes = 64;

inline constexpr std::uint16_t kStripesMax = 64;  // of one operation; a bitmap of them is one word
inline constexpr std::uint32_t kReduceSourcesMax = 4096;
static_assert(kControlFrameBytesMax >=
                  kLayoutBytesMax + 46 * std::size_t{kReduceSourcesMax} + 4_KiB,
              "a reduce's result and all of its members fit into one frame");
inline constexpr std::size_t kRebuildDeltasMax = 32;  // applied in one pass (decision 42)
inline constexpr std::size_t kExcerptRunsMax = 4096;  // 160 KiB of a frame (decision 48)
inline constexpr std::size_t kViewMembersMax = 1024;
inline constexpr std::size_t kForwardListMax = 8;  // decision 18: pushes above it are forwarded
inline constexpr std::size_t kRailsMax = 8;

// Rate of a node's link where the option link_mbit is not given: 10 Gbit/s.
inline constexpr std::uint64_t kLinkBytesPerS = 1'250'000'000;
// Costs of the model for shapes: a hop without its bytes; a core at each end of a message.
inline constexpr std::int64_t kHopNs = 30'000;
inline constexpr std::int64_t kMessageNs = 5'000;

// Flow control: blocks in flight of one transfer, set by its receiver. Two blocks hide one round
// trip. The bandwidth-delay product of 10 Gbit/s x 1 ms is 1.2 MB.
inline constexpr std::uint32_t kCreditBlocksMin = 2;
inline constexpr std::uint64_t kCreditBytes = 2_MiB;
// Memory into which an owner of a reduce receives: two blocks of 1 MiB from each of 31 others.
inline constexpr std::uint64_t kFoldSlotsBytesMax = 64_MiB;
inline constexpr std::uint32_t kFoldWindowMax = 256;  // blocks of 8 KiB are kCreditBytes then
// Objects that one peer pulls from a node at once; the node looks at each once in a turn. The
// second limit holds for pulls of branches of a reduce that has not begun here yet. Beyond either,
// the node refuses a pull.
inline constexpr std::size_t kPulledObjectsMax = 16'384;
inline constexpr std::size_t kEarlyPullsMax = 1024;
// Bytes handed to one rail and not yet taken by the kernel, where a link has several rails: the
// queues show which rail is faster. A single rail gets only enough to stay busy.
inline constexpr std::uint64_t kRailQueueBytes = 2_MiB;

// A turn of the reactor: work that it may do until it looks at the sockets again.
inline constexpr std::size_t kCommandsPerTurnMax = 256;
inline constexpr std::size_t kActionsPerTurnMax = 256;
// Messages of a node to itself after one event; a node repeats fewer after a change of view. Two
// parts of a node that answer each other endlessly can't cut it off from its peers and clients.
inline constexpr std::size_t kStepsPerTurnMax = 65'536;
// A block each way (decision 26), because a small get waits for two turns of each busy node.
inline constexpr std::uint64_t kBytesPerTurnMax = 512_KiB;
static_assert(kBytesPerTurnMax >= 2 * kBlockBytesAimMax, "a turn can move more than one block");
// Bytes folded for one block of combined sources while all other actions wait: blocks of 1 MiB from
// each of a machine's eight GPUs (decision 5g). They take 2 ms of a kernel that folds 4 GB/s.
inline constexpr std::uint64_t kCombinedBytesMax = 8_MiB;
static_assert(kCombinedBytesMax >= 2 * kBlockBytesMax, "two blocks can be combined");

// Messages of one peer, and bytes of all peers' messages, that wait here for a newer view (decision
// 2a). Beyond either, the node drops all messages of one peer and asks that peer to repeat
// everything.
inline constexpr std::size_t kParkedMessagesMax = 4096;
inline constexpr std::uint64_t kParkedBytesMax = 64_MiB;
static_assert(kParkedBytesMax >= 2 * kControlFrameBytesMax, "one message never exceeds the bound");

// Times that a node repeats everything to one peer in one view; it ignores further requests
// (decision 2a). A live peer that lacks room asks twice, or three times where both ends have asked.
inline constexpr std::size_t kResyncsMax = 8;

// Bytes written to the file of spilled objects, read from it (decision 6c), or rebuilt (42) in one
// step: 1 ms of a fast disk and 100 ms of a slow one. Another object's step waits that long.
inline constexpr std::uint64_t kSpillStepBytes = 4_MiB;
inline constexpr std::uint64_t kSpillFileBytesMax = 1ULL << 62;  // the disk is full before

// Deletions in flight from a node to one home; the node holds further ones back (decision 24). The
// second limit counts the deletions, the evictions and the deaths of owners that a node remembers:
// the newest of each kind.
inline constexpr std::size_t kDeletesMax = 8192;
inline constexpr std::size_t kRecentObjectsMax = 65'536;

// Timers. A node remembers a deletion for longer than any message can be in flight.
inline constexpr Duration kTombstoneLife = 60_s;
// Interval of a receiver's reports of its progress (decision 4c): on 10 Gbit/s, 25 ms tells a slow
// node from a burst. One window reports at most the second number of objects; further ones take
// turns in later windows.
inline constexpr Duration kProgressWindow = 25_ms;
inline constexpr std::size_t kProgressPerWindowMax = 64;
// A home repeats the push of a small object directly if no acknowledgement comes in this time
// (decision 18).
inline constexpr Duration kPushRetry = 20_ms;
// The home waits this long until it grants a receiver a sender again that has just refused or
// dropped it, if there is no other sender.
inline constexpr Duration kRegrantDelay = 20_ms;
// An object that was put and that no node has claimed for this long is lost (decision 3). The put's
// claim travels on another link than the question and may arrive later.
inline constexpr Duration kLostGrace = 1_s;
// The result of a reduce becomes an orphan when its caller's node has been away for this long
// (decision 16a). A node that died alone is back much sooner: a steward of the nodes starts it
// again within about a second.
inline constexpr Duration kCallerGrace = 30_s;
// A reservation fails with kStoreFull if no memory could be freed for it in this time (decision
// 6a). Deletions follow the last reference asynchronously, so a full arena at first proves nothing.
inline constexpr Duration kAdmissionGrace = 2_s;

}  // namespace hoplite

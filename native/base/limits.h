// Every bound of the product, with its unit, its reason and its relation to the others. What bounds
// a queue, a table or a share of a turn is a field of EngineConfig or TurnLimits, which the
// simulator draws small, and only its default stands here. What decides whether a frame is refused
// is the same at all nodes, and no field: sizes of frames and layouts, kNeedlessBlocksMax,
// kPartsMax, kStripesMax, kReduceSourcesMax, kViewMembersMax, kRailsMax.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/clock.h"
#include "base/units.h"

namespace hoplite {

// Wire. One version; HELLO refuses any other.
inline constexpr std::uint16_t kWireVersion = 2;

// Objects up to this size travel inside control frames and are copied out, never mapped (design
// decision 18; one page-table operation costs more than copying 64 KiB).
inline constexpr std::uint64_t kInlineBytesMax = 64_KiB;
inline constexpr std::size_t kLayoutBytesMax = 256_KiB;  // a state_dict of thousands of leaves
// Of the layouts that each end of a connection remembers to have told the other one.
inline constexpr std::size_t kLayoutTableBytesMax = 1_MiB;
inline constexpr std::uint64_t kControlFrameBytesMax = 512_KiB;
static_assert(kControlFrameBytesMax >= kInlineBytesMax + kLayoutBytesMax + 4_KiB,
              "an inline object, its layout and a forwarding list fit into one frame");

// Blocks are about size/1024: pipelining over two hops then costs 1/1024 per hop, and each of a
// reduce's 63 owners has as many as the others, or one of 17 more; 8 KiB keeps the
// cost per block below that of its bytes, from 256 KiB on larger ones cost a core no less. 1 MiB
// bounds a turn of the reactor.
inline constexpr std::uint64_t kBlocksPerObjectAim = 1024;
inline constexpr std::uint64_t kBlockBytesMin = 8_KiB;
inline constexpr std::uint64_t kBlockBytesAimMax = 256_KiB;
inline constexpr std::uint64_t kBlockBytesMax = 1_MiB;
inline constexpr std::uint64_t kObjectBytesMax = 1024_GiB;  // block indices stay below 2^21
static_assert(kObjectBytesMax / kBlockBytesMax <= (1ULL << 31), "a BlockIndex holds every block");
// A message names at most so many blocks of an object that needs fewer: a turn may walk them all.
inline constexpr std::uint64_t kNeedlessBlocksMax = 65'536;

// Who asks where a source is, gets so many bytes of it with the answer, and of all sources of a
// reduce together so many: two hops less for each, and no longer than a tree of them would take.
inline constexpr std::uint64_t kCarriedBytesMax = 16_KiB;
inline constexpr std::uint64_t kCarriedTogetherBytesMax = 256_KiB;
static_assert(kCarriedBytesMax <= kInlineBytesMax, "the home has a copy of it");

// An object is at most this many runs of one dtype each: its leaves are ordered by dtype, and there
// are 14. Each run but the last fills whole cache lines, which no element and no block straddles.
inline constexpr std::size_t kPartsMax = 16;
inline constexpr std::uint64_t kPartAlignBytes = 64;

inline constexpr std::uint16_t kStripesMax = 64;  // stripes of one operation; one word of bitmap
inline constexpr std::uint32_t kReduceSourcesMax = 4096;
static_assert(kControlFrameBytesMax >=
                  kLayoutBytesMax + 46 * std::size_t{kReduceSourcesMax} + 4_KiB,
              "a reduce's result and all of its members fit into one frame");
inline constexpr std::size_t kViewMembersMax = 1024;
inline constexpr std::size_t kForwardListMax = 8;  // decision 18: pushes above it are forwarded
inline constexpr std::size_t kRailsMax = 8;

// What a node's link carries, if nobody says it (the option link_mbit).
inline constexpr std::uint64_t kLinkBytesPerS = 1'250'000'000;

// Flow control: blocks a receiver lets be under way per transfer. Two blocks hide one round trip on
// the links this is measured on; the bandwidth-delay product of 10 Gbit/s x 1 ms is 1.2 MB.
inline constexpr std::uint32_t kCreditBlocksMin = 2;
inline constexpr std::uint64_t kCreditBytes = 2_MiB;
// What an owner of a reduce receives into at most: with two blocks of 1 MiB from each of 31 others.
inline constexpr std::uint64_t kFoldSlotsBytesMax = 64_MiB;
inline constexpr std::uint32_t kFoldWindowMax = 256;  // blocks of 8 KiB are kCreditBytes then
// What one peer pulls from a node at once, in objects: each is looked at for every block that is
// sent. And how many of these pulls are of branches of reduces that have not begun here yet.
inline constexpr std::size_t kPulledObjectsMax = 16'384;
inline constexpr std::size_t kEarlyPullsMax = 1024;
// Bytes of blocks handed to one rail and not yet taken by the kernel, where a link has several: it
// shows which is the faster. A single rail gets no more than keeps it busy (plan/rails.cc).
inline constexpr std::uint64_t kRailQueueBytes = 2_MiB;

// A turn of the reactor: what it may do before it looks at the sockets again.
inline constexpr std::size_t kCommandsPerTurnMax = 256;
inline constexpr std::size_t kActionsPerTurnMax = 256;
// Messages to ourselves among them: more than all that a node says anew after a view. Should two
// parts of a node ever answer each other for ever, it still hears its peers and its clients.
inline constexpr std::size_t kStepsPerTurnMax = 65'536;
// A block each way: a small get waits for two turns of each busy node that it passes (design
// decision 26).
inline constexpr std::uint64_t kBytesPerTurnMax = 512_KiB;
static_assert(kBytesPerTurnMax >= 2 * kBlockBytesAimMax, "a turn can move more than one block");
// What is folded at most for one block of combined sources, while all other actions wait: blocks of
// 1 MiB from each of a machine's eight GPUs, 2 ms of a kernel that folds 4 GB/s.
inline constexpr std::uint64_t kCombinedBytesMax = 8_MiB;
static_assert(kCombinedBytesMax >= 2 * kBlockBytesMax, "two blocks can be combined");

// Messages of one peer, and bytes of all peers' messages, that wait here for a newer view. Beyond
// either, all messages of a peer are dropped, and the peer is asked to say everything again.
inline constexpr std::size_t kParkedMessagesMax = 4096;
inline constexpr std::uint64_t kParkedBytesMax = 64_MiB;
static_assert(kParkedBytesMax >= 2 * kControlFrameBytesMax, "one message never exceeds the bound");

// How often a node says everything to one peer that asks for it in one view: for want of room a
// peer that lives asks twice, and a third time where both have asked.
inline constexpr std::size_t kResyncsMax = 8;

// What is written to the file of spilled objects, or read from it, at a time: a millisecond of a
// fast disk and a tenth of a second of a slow one, which is how long another object's read waits.
inline constexpr std::uint64_t kSpillStepBytes = 4_MiB;
inline constexpr std::uint64_t kSpillFileBytesMax = 1ULL << 62;  // the disk is full before

// Deletions that a node asks of one home and that are not answered yet; it holds back more of them.
// And how many deletions, evictions and deaths of owners it remembers, of each the newest.
inline constexpr std::size_t kDeletesMax = 8192;
inline constexpr std::size_t kRecentObjectsMax = 65'536;

// Timers. A deletion is remembered for longer than any message can be under way.
inline constexpr Duration kTombstoneLife = 60_s;
// How often a receiver says how far it is (windows of 25 ms tell a slow node from a burst
// on 10 Gbit/s), and of how many objects at most in one window; with more each has its turn later.
inline constexpr Duration kProgressWindow = 25_ms;
inline constexpr std::size_t kProgressPerWindowMax = 64;
// A small object's push is repeated directly after this without an acknowledgement.
inline constexpr Duration kPushRetry = 20_ms;
// A receiver whose only possible sender has just refused or dropped it is granted it again after
// this.
inline constexpr Duration kRegrantDelay = 20_ms;
// An object that is known to exist and that nobody has claimed for this long is lost: its put's
// claim travels on another link than the question, and may come later.
inline constexpr Duration kLostGrace = 1_s;
// The result of a reduce becomes an orphan when its caller's node has been away for this long. A
// node that died alone is back much sooner, and those who have the result with it: whoever notices
// first, its Ray node's steward within a second, starts it again.
inline constexpr Duration kCallerGrace = 30_s;
// A reservation that nothing could be freed for during this time fails with kStoreFull: deletions
// follow the last reference asynchronously, so the first instant proves nothing.
inline constexpr Duration kAdmissionGrace = 2_s;

}  // namespace hoplite

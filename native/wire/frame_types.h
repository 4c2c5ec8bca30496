// SPDX-License-Identifier: Apache-2.0
// The number of the type of each frame's struct, as in frame.h. Used by frame.cc only.
#pragma once

#include "plan/messages.h"
#include "wire/frame.h"

namespace hoplite::wire {

constexpr FrameType type_of(const Claim&) { return FrameType::kClaim; }
constexpr FrameType type_of(const Delete&) { return FrameType::kDelete; }
constexpr FrameType type_of(const Locate&) { return FrameType::kLocate; }
constexpr FrameType type_of(const ReduceWant&) { return FrameType::kReduceWant; }
constexpr FrameType type_of(const ReduceReport&) { return FrameType::kReduceReport; }
constexpr FrameType type_of(const ResyncDone&) { return FrameType::kResyncDone; }
constexpr FrameType type_of(const Grant&) { return FrameType::kGrant; }
constexpr FrameType type_of(const Located&) { return FrameType::kLocated; }
constexpr FrameType type_of(const Push&) { return FrameType::kPush; }
constexpr FrameType type_of(const PushTo&) { return FrameType::kPushTo; }
constexpr FrameType type_of(const Lost&) { return FrameType::kLost; }
constexpr FrameType type_of(const Drop&) { return FrameType::kDrop; }
constexpr FrameType type_of(const ReduceOwn&) { return FrameType::kReduceOwn; }
constexpr FrameType type_of(const ReduceState&) { return FrameType::kReduceState; }
constexpr FrameType type_of(const PullStart&) { return FrameType::kPullStart; }
constexpr FrameType type_of(const Credit&) { return FrameType::kCredit; }
constexpr FrameType type_of(const PullStop&) { return FrameType::kPullStop; }
constexpr FrameType type_of(const PullRefused&) { return FrameType::kPullRefused; }
constexpr FrameType type_of(const Orphan&) { return FrameType::kOrphan; }
constexpr FrameType type_of(const Adopt&) { return FrameType::kAdopt; }
constexpr FrameType type_of(const Standing&) { return FrameType::kStanding; }
constexpr FrameType type_of(const Progress&) { return FrameType::kProgress; }
constexpr FrameType type_of(const ResyncWanted&) { return FrameType::kResyncWanted; }
constexpr FrameType type_of(const Deleted&) { return FrameType::kDeleted; }
inline FrameType type_of(const ChannelClaim&) { return FrameType::kChannelClaim; }
inline FrameType type_of(const ChannelQuestion&) { return FrameType::kChannelQuestion; }
inline FrameType type_of(const VersionOffer&) { return FrameType::kVersionOffer; }
inline FrameType type_of(const VersionNews&) { return FrameType::kVersionNews; }
inline FrameType type_of(const ChannelAnswer&) { return FrameType::kChannelAnswer; }
inline FrameType type_of(const MakeExcerpt&) { return FrameType::kMakeExcerpt; }
constexpr FrameType type_of(const VersionAck&) { return FrameType::kVersionAck; }
constexpr FrameType type_of(const Hello&) { return FrameType::kHello; }
constexpr FrameType type_of(const Welcome&) { return FrameType::kWelcome; }
constexpr FrameType type_of(const Proof&) { return FrameType::kProof; }
constexpr FrameType type_of(const CloseRail&) { return FrameType::kCloseRail; }
constexpr FrameType type_of(const Goodbye&) { return FrameType::kGoodbye; }
constexpr FrameType type_of(const Pulse&) { return FrameType::kPulse; }

}  // namespace hoplite::wire

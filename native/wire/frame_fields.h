// The fields of every frame between nodes, in the order of docs/wire.md, and the number of its
// type. A new field or message is one line here and one in docs/wire.md. Used by frame.cc only.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "wire/archive.h"
#include "wire/frame.h"

namespace hoplite::wire {

inline constexpr int kStripeStateCount = static_cast<int>(StripeState::kComplete) + 1;
inline constexpr int kReducePhaseCount = static_cast<int>(ReducePhase::kFailed) + 1;
inline constexpr int kConnectionKindCount = static_cast<int>(ConnectionKind::kBulk) + 1;

// The type of a frame's struct; the numbers stand in frame.h.
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
constexpr FrameType type_of(const Hello&) { return FrameType::kHello; }
constexpr FrameType type_of(const Welcome&) { return FrameType::kWelcome; }
constexpr FrameType type_of(const Proof&) { return FrameType::kProof; }
constexpr FrameType type_of(const CloseRail&) { return FrameType::kCloseRail; }
constexpr FrameType type_of(const Goodbye&) { return FrameType::kGoodbye; }

template <typename A>
void stripe_of(A& a, Of<A, std::uint16_t> stripe_count, Of<A, StripeIndex> stripe) {
  a.number(stripe_count);
  id(a, stripe);
  a.require(stripe_count >= 1 && stripe_count <= kStripesMax && stripe.value < stripe_count);
}
template <typename A>
void version_of(A& a, Of<A, std::uint16_t> wire_version, Of<A, std::uint64_t> features) {
  a.number(wire_version);
  a.number(features);
}

// ---- to the home of an object ----

inline constexpr std::size_t kStripeClaimBytes = 2 + 1 + 4 + 8 + 4;
template <typename A>
void fields(A& a, Of<A, StripeClaim> m) {
  id(a, m.stripe);
  a.enumeration(m.state, kStripeStateCount);
  id(a, m.lease);
  id(a, m.sender);
  a.number(m.ready);
  a.require(m.stripe.value < kStripesMax);
}
template <typename A>
void fields(A& a, Of<A, Claim> m) {
  fields(a, m.object);
  id(a, m.incarnation);
  id(a, m.target_epoch);
  fields(a, m.meta);
  a.flag(m.wants);
  a.flag(m.exists);
  a.flag(m.pinned);
  a.flag(m.committed);
  each(a, m.stripes, kStripesMax, kStripeClaimBytes, [&](auto& s) { fields(a, s); });
}
template <typename A>
void fields(A& a, Of<A, Delete> m) {
  fields(a, m.object);
  id(a, m.upto);
}
template <typename A>
void fields(A& a, Of<A, Locate> m) {
  fields(a, m.object);
  id(a, m.incarnation);
  id(a, m.failed);
  a.flag(m.exists);
}
template <typename A>
void fields(A& a, Of<A, ReduceWant> m) {
  fields(a, m.target);
  a.enumeration(m.op, kReduceOpCount);
  a.number(m.source_count);
  a.number(m.count);
  a.number(m.first);
  each(a, m.confirmed, kReduceSourcesMax, kReduceSourceBytes, [&](auto& s) { fields(a, s); });
  id(a, m.seen);
  a.flag(m.cancelled);
  a.require(m.source_count <= kReduceSourcesMax && m.count <= m.source_count);
  a.require(m.first <= kReduceSourcesMax);
}
template <typename A>
void fields(A& a, Of<A, ReduceReport> m) {
  fields(a, m.target);
  id(a, m.target_epoch);
  fields(a, m.meta);
  ids(a, m.folded, kStripesMax);
  numbers(a, m.lost, kReduceSourcesMax);
  numbers(a, m.committed, kReduceSourcesMax);
  a.enumeration(m.code, kCodeCount);
  a.text(m.text, kErrorTextBytesMax);
}
template <typename A>
void fields(A&, Of<A, ResyncDone>) {}

// ---- from the home ----

template <typename A>
void fields(A& a, Of<A, Grant> m) {
  fields(a, m.object);
  id(a, m.incarnation);
  id(a, m.target_epoch);
  fields(a, m.meta);
  stripe_of(a, m.stripe_count, m.stripe);
  id(a, m.sender);
  id(a, m.lease);
}
template <typename A>
void fields(A& a, Of<A, Located> m) {
  fields(a, m.object);
  id(a, m.incarnation);
  fields(a, m.meta);
  id(a, m.sender);
}
template <typename A>
void fields(A& a, Of<A, Push> m) {
  fields(a, m.object);
  id(a, m.incarnation);
  id(a, m.target_epoch);
  fields(a, m.meta);
  ids(a, m.forward, kViewMembersMax);
}
template <typename A>
void fields(A& a, Of<A, PushTo> m) {
  fields(a, m.object);
  id(a, m.incarnation);
  ids(a, m.receivers, kViewMembersMax);
}
template <typename A>
void fields(A& a, Of<A, Lost> m) {
  fields(a, m.object);
  a.enumeration(m.code, kCodeCount);
  a.text(m.text, kErrorTextBytesMax);
}
template <typename A>
void fields(A& a, Of<A, Drop> m) {
  fields(a, m.object);
  id(a, m.upto);
  a.flag(m.deleted);
}

// ---- reduce, from the target's home ----

template <typename A>
void fields(A& a, Of<A, ReduceOwn> m) {
  fields(a, m.target);
  id(a, m.target_epoch);
  a.enumeration(m.op, kReduceOpCount);
  fields(a, m.meta);
  a.number(m.stripe_count);
  ids(a, m.owned, kStripesMax);
  a.number(m.first);
  each(a, m.members, kReduceSourcesMax, kReduceSourceBytes, [&](auto& s) { fields(a, s); });
  a.flag(m.sealed);
  a.require(m.stripe_count >= 1 && m.stripe_count <= kStripesMax);
  for (const StripeIndex stripe : m.owned) a.require(stripe.value < m.stripe_count);
  a.require(m.first <= kReduceSourcesMax);
}
template <typename A>
void fields(A& a, Of<A, ReduceState> m) {
  fields(a, m.target);
  id(a, m.target_epoch);
  a.enumeration(m.phase, kReducePhaseCount);
  numbers(a, m.members, kReduceSourcesMax);
  numbers(a, m.lost, kReduceSourcesMax);
  a.enumeration(m.code, kCodeCount);
  a.text(m.text, kErrorTextBytesMax);
}

// ---- receiver and sender ----

template <typename A>
void fields(A& a, Of<A, PullStart> m) {
  fields(a, m.object);
  id(a, m.incarnation);
  id(a, m.target_epoch);
  stripe_of(a, m.stripe_count, m.stripe);
  a.number(m.from);
  a.number(m.credits);
}
template <typename A>
void fields(A& a, Of<A, Credit> m) {
  a.number(m.blocks);
}
template <typename A>
void fields(A&, Of<A, PullStop>) {}
template <typename A>
void fields(A& a, Of<A, PullRefused> m) {
  a.enumeration(m.code, kCodeCount);
}

// ---- how two nodes meet ----

template <typename A>
void fields(A& a, Of<A, Hello> m) {
  version_of(a, m.wire_version, m.features);
  id(a, m.from);
  id(a, m.from_incarnation);
  id(a, m.to);
  id(a, m.to_incarnation);
  a.enumeration(m.kind, kConnectionKindCount);
  id(a, m.rail);
  a.number(m.attempt);
  a.array(m.nonce);
  a.require(m.rail.value < kRailsMax);
}
template <typename A>
void fields(A& a, Of<A, Welcome> m) {
  version_of(a, m.wire_version, m.features);
  id(a, m.incarnation);
  a.array(m.nonce);
  a.array(m.proof);
}
template <typename A>
void fields(A& a, Of<A, Proof> m) {
  a.array(m.proof);
}
template <typename A>
void fields(A& a, Of<A, CloseRail> m) {
  id(a, m.rail);
  a.require(m.rail.value < kRailsMax);
}
template <typename A>
void fields(A&, Of<A, Goodbye>) {}

}  // namespace hoplite::wire

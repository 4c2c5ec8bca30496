// SPDX-License-Identifier: Apache-2.0
// The fields of the frames to and from an object's home, in the order of docs/internals/wire.md. A
// new field is one line here and one in docs/internals/wire.md. Used by frame.cc and
// sim/model/liar.cc.
#pragma once

#include "wire/frame.h"
#include "wire/shared_fields.h"

namespace hoplite::wire {

inline constexpr int kStripeStateCount = static_cast<int>(StripeState::kComplete) + 1;

template <typename A>
void stripe_of(A& a, Of<A, std::uint16_t> stripe_count, Of<A, StripeIndex> stripe) {
  a.number(stripe_count);
  id(a, stripe);
  a.require(stripe_count >= 1 && stripe_count <= kStripesMax && stripe.value < stripe_count);
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
  a.flag(m.orphaned);
  a.flag(m.elsewhere);
  a.flag(m.committed);
  a.flag(m.excerpt);
  id(a, m.owner);
  a.number(m.copies);
  a.require(m.copies <= kCopiesMax);
  a.flag(m.awaits_copies);
  each(a, m.stripes, kStripesMax, kStripeClaimBytes, [&](auto& s) { fields(a, s); });
}
inline constexpr std::size_t kStripeProgressBytes = 2 + 4 + 4;
template <typename A>
void fields(A& a, Of<A, StripeProgress> m) {
  id(a, m.stripe);
  id(a, m.lease);
  a.number(m.ready);
  a.require(m.stripe.value < kStripesMax);
}
template <typename A>
void fields(A& a, Of<A, Progress> m) {
  fields(a, m.object);
  id(a, m.incarnation);
  id(a, m.target_epoch);
  each(a, m.stripes, kStripesMax, kStripeProgressBytes, [&](auto& s) { fields(a, s); });
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
  a.number(m.bytes_max);
}
template <typename A>
void fields(A& a, Of<A, ResyncDone> m) {
  a.flag(m.draining);
  a.flag(m.is_asked);
}
template <typename A>
void fields(A&, Of<A, ResyncWanted>) {}

// ---- from the home ----

inline constexpr std::size_t kStripeLeaseBytes = 2 + 8 + 4;
template <typename A>
void fields(A& a, Of<A, Grant> m) {
  fields(a, m.object);
  id(a, m.incarnation);
  id(a, m.target_epoch);
  fields(a, m.meta);
  a.number(m.stripe_count);
  a.require(m.stripe_count >= 1 && m.stripe_count <= kStripesMax);
  each(a, m.leases, kStripesMax, kStripeLeaseBytes, [&](auto& lease) {
    id(a, lease.stripe);
    id(a, lease.sender);
    id(a, lease.lease);
    a.require(lease.stripe.value < m.stripe_count);
  });
  a.require(!m.leases.empty());
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
template <typename A>
void fields(A& a, Of<A, MakeExcerpt> m) {
  fields(a, m.excerpt);
}
template <typename A>
void fields(A& a, Of<A, Deleted> m) {
  fields(a, m.object);
  id(a, m.upto);
}

}  // namespace hoplite::wire

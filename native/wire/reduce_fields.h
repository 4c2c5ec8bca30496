// SPDX-License-Identifier: Apache-2.0
// The fields of the frames of a reduce, in the order of docs/internals/wire.md: from the caller and
// the owners to the home, and from the home to them and to all other nodes. Used by frame.cc and
// sim/model/liar.cc.
#pragma once

#include "wire/directory_fields.h"
#include "wire/keeping_fields.h"

namespace hoplite::wire {

inline constexpr int kReducePhaseCount = static_cast<int>(ReducePhase::kFailed) + 1;

template <typename A>
void fields(A& a, Of<A, ReduceWant> m) {
  fields(a, m.target);
  a.enumeration(m.op, kReduceOpCount);
  a.number(m.source_count);
  a.number(m.count);
  a.number(m.first);
  each(a, m.confirmed, kReduceSourcesMax, kReduceSourceBytes, [&](auto& s) { fields(a, s); });
  id(a, m.seen);
  a.flag(m.everywhere);
  a.flag(m.deterministic);
  a.flag(m.is_callers);
  fields(a, m.share);
  fields(a, m.meta);
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
  id(a, m.caller);
  a.enumeration(m.code, kCodeCount);
  a.text(m.text, kErrorTextBytesMax);
}
template <typename A>
void fields(A& a, Of<A, ReduceOwn> m) {
  fields(a, m.target);
  id(a, m.target_epoch);
  a.enumeration(m.op, kReduceOpCount);
  fields(a, m.meta);
  fields(a, m.share);
  a.number(m.stripe_count);
  ids(a, m.owned, kStripesMax);
  a.number(m.source_count);
  a.number(m.count);
  a.flag(m.deterministic);
  a.flag(m.everywhere);
  each(a, m.members, kReduceSourcesMax, kReduceSourceBytes, [&](auto& s) { fields(a, s); });
  a.flag(m.sealed);
  a.flag(m.is_branch);
  a.flag(m.is_unary);
  a.require(m.stripe_count >= 1 && m.stripe_count <= kStripesMax);
  for (const StripeIndex stripe : m.owned) a.require(stripe.value < m.stripe_count);
  a.require(m.source_count <= kReduceSourcesMax && m.count <= m.source_count);
  for (const ReduceSource& member : m.members) a.require(member.index < m.source_count);
}
template <typename A>
void fields(A& a, Of<A, ReduceState> m) {
  fields(a, m.target);
  id(a, m.target_epoch);
  a.enumeration(m.phase, kReducePhaseCount);
  numbers(a, m.members, kReduceSourcesMax);
  numbers(a, m.lost, kReduceSourcesMax);
  id(a, m.caller);
  a.enumeration(m.code, kCodeCount);
  a.text(m.text, kErrorTextBytesMax);
}

}  // namespace hoplite::wire

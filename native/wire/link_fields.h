// SPDX-License-Identifier: Apache-2.0
// The fields of the frames between receiver and sender, and of those by which two nodes meet, in
// the order of docs/internals/wire.md. Used by frame.cc and sim/model/liar.cc.
#pragma once

#include <algorithm>

#include "wire/channel_fields.h"
#include "wire/reduce_fields.h"

namespace hoplite::wire {

inline constexpr int kConnectionKindCount = static_cast<int>(ConnectionKind::kLiveness) + 1;

template <typename A>
void version_of(A& a, Of<A, std::uint16_t> wire_version, Of<A, std::uint64_t> features) {
  a.number(wire_version);
  a.number(features);
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
  a.flag(m.is_range);
  if (m.is_range) {
    a.number(m.range.offset);
    a.number(m.range.size_bytes);
    a.number(m.block_bytes);
    a.require(m.block_bytes >= 1 && m.block_bytes <= kBlockBytesMax);
    a.require(m.range.size_bytes <= kObjectBytesMax);
    a.require(are_blocks_few(m.range.size_bytes, std::max(m.block_bytes, 1U)));
  }
  each(a, m.beside, kReduceSourcesMax, kObjectIdBytes + 4, [&](auto& other) {
    fields(a, other.object);
    id(a, other.incarnation);
  });
  a.enumeration(m.op, kReduceOpCount);
  a.flag(m.of_branch);
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
template <typename A>
void fields(A&, Of<A, Pulse>) {}

}  // namespace hoplite::wire

// SPDX-License-Identifier: Apache-2.0
// The fields of every frame between a client and its node, in the order of docs/internals/wire.md,
// and the number of its type; those of commands are in command_fields.h. A new field is one line
// there or here, and one in docs/internals/wire.md; a new message also needs its number and its
// place in the variant.
#pragma once

#include "wire/frame.h"
#include "wire/local/command_fields.h"
#include "wire/local/local_channel_fields.h"
#include "wire/local/local_frame.h"
#include "wire/shared_fields.h"

namespace hoplite::wire {

template <typename A>
void fields(A& a, Of<A, Attach> m) {
  a.number(m.wire_version);
  a.number(m.pid);
}
template <typename A>
void fields(A& a, Of<A, Attached> m) {
  id(a, m.client);
  id(a, m.node);
  id(a, m.incarnation);
  a.number(m.arena_bytes);
}

// ---- replies ----

template <typename A>
void fields(A& a, Of<A, Extent> extent) {
  a.number(extent.offset);
  a.number(extent.size_bytes);
}
template <typename A>
void fields(A& a, Of<A, Reserved> m) {
  fields(a, m.extent);
  a.number(m.block_bytes);
}
template <typename A>
void fields(A& a, Of<A, Fetched> m) {
  id(a, m.incarnation);
  fields(a, m.meta);
  fields(a, m.extent);
  a.flag(m.mapped);
  a.number(m.ready_bytes);
}
template <typename A>
void fields(A& a, Of<A, Reduced> m) {
  numbers(a, m.members, kReduceSourcesMax);
}
template <typename A>
void fields(A&, Of<A, Done>) {}
template <typename A>
void fields(A& a, Of<A, Error> m) {
  a.enumeration(m.code, kCodeCount);
  a.text(m.text, kErrorTextBytesMax);
}
template <typename A>
void fields(A& a, Of<A, ReduceFailed> m) {
  numbers(a, m.lost, kReduceSourcesMax);
  a.text(m.text, kErrorTextBytesMax);
}

constexpr LocalType type_of(const Reserved&) { return LocalType::kReserved; }
constexpr LocalType type_of(const Fetched&) { return LocalType::kFetched; }
constexpr LocalType type_of(const Reduced&) { return LocalType::kReduced; }
constexpr LocalType type_of(const Done&) { return LocalType::kDone; }
inline LocalType type_of(const Error&) { return LocalType::kError; }
inline LocalType type_of(const ReduceFailed&) { return LocalType::kReduceFailed; }

}  // namespace hoplite::wire

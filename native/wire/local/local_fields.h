// SPDX-License-Identifier: Apache-2.0
// The fields of every frame between a client and its node, in the order of docs/internals/wire.md,
// and the number of its type. A new field is one line here and one in
// docs/internals/wire.md; a new message also needs its number and its place in the variant.
#pragma once

#include <type_traits>

#include "wire/frame.h"
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

// ---- commands ----

template <typename A>
void fields(A& a, Of<A, PutCommand> m) {  // the payload travels behind the body
  fields(a, m.object);
  id(a, m.incarnation);
  fields(a, m.meta);
}
template <typename A>
void fields(A& a, Of<A, WroteCommand> m) {
  fields(a, m.object);
  id(a, m.incarnation);
  a.number(m.upto_bytes);
  a.flag(m.pin);
  id(a, m.first_block);
  numbers(a, m.sums, kSumsPerWriteMax);
}
template <typename A>
void fields(A& a, Of<A, GetCommand> m) {
  fields(a, m.object);
  a.flag(m.exists);
}
template <typename A>
void fields(A& a, Of<A, ReleaseCommand> m) {
  fields(a, m.object);
  id(a, m.incarnation);
}
template <typename A>
void fields(A& a, Of<A, DeleteCommand> m) {
  fields(a, m.object);
  id(a, m.upto);
}
template <typename A>
void fields(A& a, Of<A, ReduceCommand> m) {
  fields(a, m.target);
  a.enumeration(m.op, kReduceOpCount);
  a.number(m.source_count);
  a.number(m.count);
  a.flag(m.everywhere);
  a.flag(m.deterministic);
  fields(a, m.share);
  fields(a, m.meta);
}
template <typename A>
void fields(A& a, Of<A, ReduceSourceCommand> m) {
  fields(a, m.target);
  fields(a, m.source);
  a.flag(m.confirmed);
}
template <typename A>
void fields(A& a, Of<A, CancelCommand> m) {
  fields(a, m.object);
}
template <typename A>
void fields(A& a, Of<A, OrphanCommand> m) {
  fields(a, m.object);
  id(a, m.upto);
}
template <typename A>
void fields(A&, Of<A, EchoCommand>) {}

constexpr LocalType type_of(const PutCommand&) { return LocalType::kPut; }
constexpr LocalType type_of(const WroteCommand&) { return LocalType::kWrote; }
constexpr LocalType type_of(const GetCommand&) { return LocalType::kGet; }
constexpr LocalType type_of(const ReleaseCommand&) { return LocalType::kRelease; }
constexpr LocalType type_of(const DeleteCommand&) { return LocalType::kDelete; }
constexpr LocalType type_of(const ReduceCommand&) { return LocalType::kReduce; }
constexpr LocalType type_of(const ReduceSourceCommand&) { return LocalType::kReduceSource; }
constexpr LocalType type_of(const CancelCommand&) { return LocalType::kCancel; }
constexpr LocalType type_of(const OrphanCommand&) { return LocalType::kOrphan; }
constexpr LocalType type_of(const EchoCommand&) { return LocalType::kEcho; }

// True for a command that the control plane or the node itself gives, but no client.
template <typename T>
constexpr bool is_inside =
    std::is_same_v<T, ClientLostCommand> || std::is_same_v<T, SetViewCommand> ||
    std::is_same_v<T, ListCommand> || std::is_same_v<T, DrainCommand>;

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

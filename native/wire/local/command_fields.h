// SPDX-License-Identifier: Apache-2.0
// The fields of the commands of a client to its node, and the number of each; see local_fields.h.
#pragma once

#include <cstddef>
#include <type_traits>

#include "wire/local/local_frame.h"
#include "wire/shared_fields.h"

namespace hoplite::wire {

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
  a.number(m.upto_bytes);
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
template <typename A>
void fields(A& a, Of<A, RebuildCommand> m) {
  fields(a, m.object);
  id(a, m.incarnation);
  fields(a, m.meta);
  a.number(m.crc32c);
  fields(a, m.base);
  each(a, m.deltas, kRebuildDeltasMax, kAttemptBytes, [&](auto& delta) { fields(a, delta); });
}
template <typename A>
void fields(A& a, Of<A, KeepCommand> m) {
  fields(a, m.object);
  id(a, m.incarnation);
  a.number(m.copies);
}

template <typename A>
void fields(A& a, Of<A, ExcerptCommand> m) {
  fields(a, m.excerpt);
  a.flag(m.exists);
}

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
constexpr LocalType type_of(const RebuildCommand&) { return LocalType::kRebuild; }
constexpr LocalType type_of(const KeepCommand&) { return LocalType::kKeep; }
constexpr LocalType type_of(const ExcerptCommand&) { return LocalType::kExcerpt; }

// True for a command that the control plane or the node itself gives, but no client.
template <typename T>
constexpr bool is_inside =
    std::is_same_v<T, ClientLostCommand> || std::is_same_v<T, SetViewCommand> ||
    std::is_same_v<T, ListCommand> || std::is_same_v<T, DrainCommand>;

}  // namespace hoplite::wire

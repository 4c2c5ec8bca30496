// SPDX-License-Identifier: Apache-2.0
// How ids, lists and the values that frames of both kinds share are walked; see archive.h. Used by
// frame.cc, local_frame.cc and sim/model/liar.cc only. Pure.
#pragma once

#include <algorithm>
#include <cstddef>

#include "wire/archive.h"

namespace hoplite::wire {

template <typename A, typename T>
using Of = typename A::template Ref<T>;

template <typename A, typename Value>
  requires requires(Value& v) { v.value; }
void id(A& a, Value& value) {
  a.number(value.value);
}

template <typename A, typename Vector, typename Walk>
void each(A& a, Vector& values, std::size_t limit, std::size_t bytes_min, Walk walk) {
  for (auto& value : a.counted(values, limit, bytes_min)) walk(value);
}
template <typename A, typename Vector>
void ids(A& a, Vector& values, std::size_t limit) {
  using Rep = decltype(std::declval<typename std::remove_cvref_t<Vector>::value_type>().value);
  each(a, values, limit, sizeof(Rep), [&](auto& value) { id(a, value); });
}
template <typename A, typename Vector>
void numbers(A& a, Vector& values, std::size_t limit) {
  using Rep = typename std::remove_cvref_t<Vector>::value_type;
  each(a, values, limit, sizeof(Rep), [&](auto& value) { a.number(value); });
}

// ---- fields that frames of both kinds share ----

// REQUIRES: block_bytes > 0.
constexpr bool are_blocks_few(std::uint64_t size_bytes, std::uint64_t block_bytes) {
  return size_bytes / block_bytes <= std::max(kNeedlessBlocksMax, size_bytes / kBlockBytesAimMax);
}

template <typename A>
void fields(A& a, Of<A, ObjectId> object) {
  a.array(object.bytes);
}
inline constexpr std::size_t kPartBytes = 1 + 8;
template <typename A>
void fields(A& a, Of<A, ObjectMeta> meta) {
  a.number(meta.size_bytes);
  a.number(meta.block_bytes);
  each(a, meta.parts, kPartsMax, kPartBytes, [&](auto& part) {
    a.enumeration(part.dtype, kDTypeCount);
    a.number(part.size_bytes);
  });
  a.layout(meta.layout);
  a.require(fault_of(meta) == nullptr);
  a.require(meta.block_bytes == 0 || are_blocks_few(meta.size_bytes, meta.block_bytes));
}
template <typename A>
void fields(A& a, Of<A, Share> share) {
  a.number(share.source_bytes);
  a.number(share.offset);
  a.number(share.reader);
}
inline constexpr std::size_t kReduceSourceBytes = 4 + kObjectIdBytes + 4 + 1 + 8 + 1;
template <typename A>
void fields(A& a, Of<A, ReduceSource> source) {
  a.number(source.index);
  fields(a, source.object);
  id(a, source.incarnation);
  a.flag(source.failed);
  id(a, source.holder);
  a.flag(source.is_branch);
  a.require(source.index < kReduceSourcesMax);
}
inline constexpr std::size_t kAttemptBytes = kObjectIdBytes + 4;
template <typename A>
void fields(A& a, Of<A, Attempt> attempt) {
  fields(a, attempt.object);
  id(a, attempt.incarnation);
}
inline constexpr std::size_t kStridedRunsBytes = 5 * 8;
template <typename A>
void fields(A& a, Of<A, Excerpt> excerpt) {
  fields(a, excerpt.object);
  fields(a, excerpt.meta);
  fields(a, excerpt.source);
  each(a, excerpt.runs, kExcerptRunsMax, kStridedRunsBytes, [&](auto& run) {
    a.number(run.into);
    a.number(run.from);
    a.number(run.run_bytes);
    a.number(run.stride_bytes);
    a.number(run.count);
  });
}

}  // namespace hoplite::wire

// SPDX-License-Identifier: Apache-2.0
// The state of a node, row by row, as dicts whose keys are the fields of control.proto. Used by
// module.cc only; every function needs the GIL.
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <cstddef>

#include "bindings/convert.h"
#include "plan/messages.h"

namespace hoplite {

inline nb::bytes to_bytes(const ObjectId& id) {
  return nb::bytes(id.bytes.data(), id.bytes.size());
}

inline nb::dict to_dict(const ObjectRow& row) {
  nb::dict one;
  one["object_id"] = to_bytes(row.object);
  one["incarnation"] = row.incarnation.value;
  one["size_bytes"] = row.size_bytes;
  one["state"] = row.state;
  one["pinned"] = row.pinned;
  one["orphaned"] = row.orphaned;
  one["sole"] = row.sole;
  one["mappings"] = row.mappings;
  one["waiters"] = row.waiters;
  return one;
}

inline nb::dict to_dict(const TransferRow& row) {
  nb::dict one;
  one["object_id"] = to_bytes(row.object);
  one["target_id"] = to_bytes(row.target);
  one["kind"] = row.kind;
  one["sender"] = row.sender.value;
  one["stripe"] = row.stripe.value;
  one["stripe_count"] = row.stripe_count;
  one["landed_bytes"] = row.landed_bytes;
  one["size_bytes"] = row.size_bytes;
  return one;
}

// The words of hoplite_ray/cli/tracing/trace.py, in the order of the enum.
inline constexpr std::array<const char*, kMomentKinds> kMomentWords = {
    "reserved",  "sealed", "got",      "failed",    "waits",     "wanted",   "granted",
    "receiving", "first",  "received", "serving",   "refused",   "pushing",  "pushed",
    "lost",      "delete", "dropped",  "orphaned",  "adopted",   "spilling", "reading",
    "spilled",   "reduce", "folding",  "committed", "link down", "dead"};
static_assert(kMomentWords.back() != nullptr, "every kind has a word");

inline nb::dict to_dict(const Moment& moment) {
  nb::dict one;
  one["object_id"] = to_bytes(moment.object);
  one["kind"] = kMomentWords.at(static_cast<std::size_t>(moment.kind));
  one["error"] =
      moment.code == Code::kOk ? "" : kErrorClasses.at(static_cast<std::size_t>(moment.code));
  one["stripe"] = moment.stripe.value;
  one["stripe_count"] = moment.stripe_count;
  one["process"] = moment.process;
  one["at_ns"] = moment.at.ns;
  one["since_ns"] = moment.since.ns;
  one["peer"] = moment.peer.value;
  one["other"] = moment.other.value;
  one["size_bytes"] = moment.bytes;
  return one;
}

// `id` whole, of which only the first hex digits count.
inline ObjectPrefix to_prefix(const nb::bytes& id, int digits) {
  const int most = static_cast<int>(2 * kObjectIdBytes);
  if (digits < 1 || digits > most) {
    raise_error(
        {Code::kInvalidArgument,
         std::to_string(digits) + " hex digits of an id: give 1 to " + std::to_string(most)});
  }
  return {to_object_id(id), static_cast<std::uint8_t>(digits)};
}

}  // namespace hoplite

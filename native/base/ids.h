// SPDX-License-Identifier: Apache-2.0
// Names of things. Every kind of number has its own type, so that a stripe is never passed for a
// block. All are values with a total order; none owns anything. Leaf header.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>

namespace hoplite {

// A number of one kind. `value` is public: these are names, not quantities with invariants.
template <typename Tag, typename Rep>
struct Id {
  Rep value{};
  constexpr Id() = default;
  constexpr explicit Id(Rep v) : value(v) {}
  auto operator<=>(const Id&) const = default;
};

using NodeId = Id<struct NodeTag, std::uint64_t>;  // a node, over all its incarnations
using Incarnation =
    Id<struct IncarnationTag, std::uint32_t>;      // one life of a node; one attempt's bytes
using Epoch = Id<struct EpochTag, std::uint64_t>;  // of the view (membership)
using TargetEpoch =
    Id<struct TargetEpochTag, std::uint32_t>;              // of a reduce's member set; 0: no reduce
using BlockIndex = Id<struct BlockTag, std::uint32_t>;     // within an object
using StripeIndex = Id<struct StripeTag, std::uint16_t>;   // blocks = stripe (mod stripe count)
using TransferId = Id<struct TransferTag, std::uint64_t>;  // chosen by the receiver; 0: none
using LeaseId = Id<struct LeaseTag, std::uint32_t>;  // per object, counted by its home; 0: none
using RailId = Id<struct RailTag, std::uint8_t>;     // index into a member's rails
using BlockTicket = Id<struct BlockTicketTag, std::uint64_t>;  // of a block until it has left
using TraceId = Id<struct TraceTag, std::uint64_t>;            // follows one object from put to get
using ClientId = Id<struct ClientTag, std::uint64_t>;    // an attached process; 0: the node itself
using RequestId = Id<struct RequestTag, std::uint64_t>;  // chosen by the client

inline constexpr NodeId kNoNode{0};  // no member may have this id

inline constexpr std::size_t kObjectIdBytes = 28;  // as Ray's, so that a ref's id is an object's id

struct ObjectId {
  std::array<std::uint8_t, kObjectIdBytes> bytes{};
  auto operator<=>(const ObjectId&) const = default;
};

// First and last four bytes in hex, as error texts name objects: "7f3a09c1..01000000". Ray counts a
// process's puts in the last four.
inline std::string short_name(const ObjectId& id) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string text;
  const auto append = [&](std::uint8_t byte) {
    text += kHex[byte >> 4];
    text += kHex[byte & 15];
  };
  for (std::size_t i = 0; i < 4; ++i) append(id.bytes[i]);
  text += "..";
  for (std::size_t i = kObjectIdBytes - 4; i < kObjectIdBytes; ++i) append(id.bytes[i]);
  return text;
}

}  // namespace hoplite

// SPDX-License-Identifier: Apache-2.0
#include "io/links/receive_table.h"

#include "base/check.h"

namespace hoplite {

void ReceiveTable::open(const OpenReceive& receive) {
  const ObjectMeta& meta = receive.meta;
  HOPLITE_CHECK(meta.block_bytes > 0);
  HOPLITE_CHECK(receive.stripe_count > 0);
  const std::uint64_t needed =
      receive.slots > 0 ? std::uint64_t{receive.slots} * meta.block_bytes : meta.size_bytes;
  HOPLITE_CHECK(receive.base.offset <= arena_bytes_);
  HOPLITE_CHECK(needed <= arena_bytes_ - receive.base.offset);
  if (!has_receive_from(receive.from)) ++senders_;
  receives_.insert_or_assign({receive.from, receive.transfer}, receive);
}

void ReceiveTable::close(NodeId from, TransferId transfer) {
  if (receives_.erase({from, transfer}) > 0 && !has_receive_from(from)) --senders_;
}

void ReceiveTable::close_all(NodeId from) {
  if (has_receive_from(from)) --senders_;
  const auto first = receives_.lower_bound({from, TransferId{0}});
  auto last = first;
  while (last != receives_.end() && last->first.first == from) ++last;
  receives_.erase(first, last);
}

bool ReceiveTable::has_receive_from(NodeId from) const {
  const auto first = receives_.lower_bound({from, TransferId{0}});
  return first != receives_.end() && first->first.first == from;
}

Placement ReceiveTable::place(NodeId from, const BlockHeader& header) const {
  const auto found = receives_.find({from, header.transfer});
  if (found == receives_.end()) return {};
  const OpenReceive& receive = found->second;
  if (header.object != receive.object || header.incarnation != receive.incarnation ||
      header.target_epoch != receive.target_epoch) {
    // bytes of another attempt under a transfer that is still open: discarded, not hostile
    return {};
  }
  const ObjectMeta& meta = receive.meta;
  const std::uint64_t index = header.offset / meta.block_bytes;
  if (header.offset % meta.block_bytes != 0 || index >= meta.block_count() ||
      index % receive.stripe_count != receive.stripe.value) {
    return {Arrival::kHostile, {}, {}};
  }
  const BlockIndex block{static_cast<std::uint32_t>(index)};
  const Extent inside = block_extent(meta, block);
  if (header.size_bytes != inside.size_bytes) return {Arrival::kHostile, {}, {}};
  const std::uint64_t offset = receive.slots > 0
                                   ? index / receive.stripe_count % receive.slots * meta.block_bytes
                                   : inside.offset;
  return {.arrival = Arrival::kLand,
          .block = block,
          .extent = {receive.base.offset + offset, inside.size_bytes}};
}

}  // namespace hoplite

// SPDX-License-Identifier: Apache-2.0
#include "plan/engine/overview.h"

#include <algorithm>
#include <array>
#include <map>
#include <tuple>

#include "plan/engine/owners.h"

namespace hoplite {
namespace {

constexpr std::size_t kHoldersNamed = 4;   // more make a text too long to read
constexpr Duration kHoldersLife = 100_ms;  // a look at 24,000 objects takes a millisecond

std::string count_of(std::uint64_t n, const char* one) {
  return std::to_string(n) + " " + one + (n == 1 ? "" : "s");
}

std::uint64_t clients_of(const std::map<ClientId, std::uint32_t>& pins) {
  return pins.size() - pins.count(kThisNode);
}

TransferRow row(const Pull& pull) {
  const PullGoal& goal = pull.goal();
  const ObjectMeta& meta = goal.meta;
  const std::uint32_t blocks = meta.block_count();
  const std::uint64_t block_bytes = meta.block_bytes;
  std::uint64_t size_bytes = block_bytes * stripe_blocks(blocks, goal.stripe_count, goal.stripe);
  if (blocks > 0 && (blocks - 1) % goal.stripe_count == goal.stripe.value) {
    size_bytes -= blocks * block_bytes - meta.size_bytes;  // its last block is a short one
  }
  const std::uint64_t landed_bytes = block_bytes * (pull.ready() + pull.beyond().size());
  return {goal.object,
          pull.fold ? pull.fold->target : goal.object,
          pull.fold ? "member" : "copy",
          goal.sender,
          goal.stripe,
          goal.stripe_count,
          std::min(landed_bytes, size_bytes),
          size_bytes};
}

ObjectRow row(const ObjectId& id, const LocalObject& object) {
  ObjectRow row;
  row.object = id;
  row.incarnation = object.incarnation;
  row.size_bytes = object.meta.size_bytes;
  row.state = object.is_writing()    ? "writing"
              : object.is_complete() ? "whole"
              : object.extent        ? "partial"
              : object.spilled       ? "spilled"
                                     : "wanted";
  row.pinned = object.is_pinned();
  row.orphaned = object.orphaned;
  row.sole = object.is_here() && !object.elsewhere && (object.is_pinned() || object.is_writing());
  for (const auto& [client, count] : object.pins) {
    if (client != kThisNode) row.mappings += count;
  }
  row.waiters = object.waiters.size();
  return row;
}

}  // namespace

void Overview::handle_list(RequestId request, const ListCommand& list) {
  Listing listing{list.named.empty() ? largest_objects(list.objects_max) : find_objects(list.named),
                  largest_transfers(list.transfers_max),
                  engine_.channels.list(list.channels_max, list.channels_after), Remembered{}};
  engine_.outgoing.act(TellListing{request, std::move(listing), list.traced});
}

std::vector<ObjectRow> Overview::find_objects(const std::vector<ObjectId>& named) const {
  std::vector<ObjectRow> rows;
  for (const ObjectId& id : named) {
    if (const LocalObject* object = engine_.objects.find(id)) rows.push_back(row(id, *object));
  }
  return rows;
}

std::vector<ObjectRow> Overview::largest_objects(std::uint64_t rows_max) const {
  if (rows_max == 0) return {};
  std::vector<std::pair<std::uint64_t, const LocalObjects::value_type*>> found;
  found.reserve(engine_.objects.all().size());
  for (const auto& entry : engine_.objects.all())
    found.emplace_back(entry.second.meta.size_bytes, &entry);
  const auto end =
      found.begin() + static_cast<std::ptrdiff_t>(std::min<std::uint64_t>(found.size(), rows_max));
  std::partial_sort(found.begin(), end, found.end(), [](const auto& a, const auto& b) {
    return std::tie(b.first, a.second->first) < std::tie(a.first, b.second->first);
  });
  std::vector<ObjectRow> rows;
  for (auto it = found.begin(); it != end; ++it) {
    rows.push_back(row(it->second->first, it->second->second));
  }
  return rows;
}

// Equal rows keep the order of objects and stripes. Only receivers list transfers, so each transfer
// appears once, at the node that outlives its sender.
std::vector<TransferRow> Overview::largest_transfers(std::uint64_t rows_max) const {
  std::vector<TransferRow> rows;
  if (rows_max == 0) return rows;
  rows.reserve(engine_.transfers.pulls().size());
  for (const auto& [transfer, pull] : engine_.transfers.pulls()) rows.push_back(hoplite::row(pull));
  const auto end =
      rows.begin() + static_cast<std::ptrdiff_t>(std::min<std::uint64_t>(rows.size(), rows_max));
  std::partial_sort(rows.begin(), end, rows.end(), [](const auto& a, const auto& b) {
    return std::tie(b.size_bytes, a.object, a.stripe, a.sender) <
           std::tie(a.size_bytes, b.object, b.stripe, b.sender);
  });
  rows.erase(end, rows.end());
  return rows;
}

// Returns why `id` gets no range, which clients hold the most, and the next step.
std::string Overview::full_text(const ObjectId& id, std::uint64_t size_bytes) const {
  const std::string asked =
      "store full: object " + short_name(id) + " needs " + std::to_string(size_bytes) + " bytes";
  const std::string arena = "the arena's " + std::to_string(engine_.inventory.capacity_bytes()) +
                            " bytes have " + std::to_string(engine_.inventory.common_bytes()) +
                            " for puts and gets (1/8 is kept for reduces)";
  if (!engine_.inventory.can_hold({size_bytes, 0}, Line::kPuts)) {
    return asked + " and can never fit: " + arena +
           "; put it in parts or start the nodes with a larger arena_bytes";
  }
  const char* fails = ", and when_full=fail lets no put wait: ";
  const char* waited = ", and nothing that runs frees them: ";
  LocalObject* const asking = engine_.objects.find(id);
  const bool is_put = asking != nullptr && asking->put_request;
  const bool is_at_once = is_put && engine_.config.when_full == WhenFull::kFail;
  std::string text =
      asked + (is_at_once ? fails : waited) + arena + ", and " +
      std::to_string(engine_.inventory.used_bytes() - engine_.inventory.evictable_bytes()) +
      " are held by " + holders_text();
  if (!engine_.spills.spill_error().empty())
    text += ". Spilling failed: " + engine_.spills.spill_error();
  return text + ". Delete objects, drop references, or start the nodes with a larger arena_bytes";
}

// Looks at all objects. Thousands of puts may be refused at once, so refusals within kHoldersLife
// share one text.
const std::string& Overview::holders_text() const {
  if (holders_ && engine_.now - holders_->first < kHoldersLife) return holders_->second;
  struct Holder {
    std::uint64_t size_bytes;
    ObjectId object;
    std::string reason;
    bool operator<(const Holder& other) const {
      return std::tie(other.size_bytes, object) < std::tie(size_bytes, other.object);
    }
  };
  std::vector<Holder> holders;
  for (const auto& [other, object] : engine_.objects.all()) {
    if (!object.extent || engine_.objects.is_evictable(other, object)) continue;
    holders.push_back({object.extent->size_bytes, other, ""});
  }
  for (const auto& [name, retired] : engine_.objects.retired_ranges()) {
    const auto clients = clients_of(retired.pins);
    holders.push_back({retired.extent.size_bytes, name.first,
                       clients > 0 ? "deleted, mapped by " + count_of(clients, "client")
                                   : "deleted, its last blocks are being sent or written"});
  }
  const std::size_t named = std::min(holders.size(), kHoldersNamed);
  std::partial_sort(holders.begin(), holders.begin() + static_cast<std::ptrdiff_t>(named),
                    holders.end());
  std::string text = count_of(holders.size(), "object");
  for (std::size_t i = 0; i < named; ++i) {
    const Holder& holder = holders[i];
    LocalObject* const live = engine_.objects.find(holder.object);
    text += (i == 0 ? ": " : "; ") + short_name(holder.object) + " " +
            std::to_string(holder.size_bytes) + " bytes (" +
            (holder.reason.empty() ? reason(holder.object, *live) : holder.reason) + ")";
  }
  if (holders.size() > named) text += "; ...";
  return holders_.emplace(engine_.now, std::move(text)).second;
}

// Returns what keeps the object in the arena. REQUIRES: extent, and it can't be evicted.
std::string Overview::reason(const ObjectId& id, const LocalObject& object) const {
  std::vector<std::string> reasons;
  if (object.is_writing()) {
    reasons.emplace_back("being written");
  } else if (engine_.folds.is_folding(id)) {
    reasons.emplace_back("being reduced");
  } else if (object.is_pinned()) {
    reasons.emplace_back(object.target_epoch.value > 0   ? "reduced here"
                         : object.keep == Keep::kAdopted ? "adopted here"
                                                         : "put here");
  } else if (!object.is_complete() && !object.orphaned) {
    reasons.emplace_back("being received");
  }
  if (object.spilling) reasons.emplace_back(object.spilled ? "being read back" : "being spilled");
  if (object.orphaned) reasons.emplace_back("orphaned");
  if (const auto clients = clients_of(object.pins); clients > 0) {
    reasons.push_back("mapped by " + count_of(clients, "client"));
  }
  const bool is_sent = object.pins.contains(kThisNode) && !object.spilling;
  if (is_sent || engine_.transfers.serves(id)) reasons.emplace_back("being sent");
  std::string text;
  for (const std::string& each : reasons) text += (text.empty() ? "" : ", ") + each;
  return text;
}

// Returns one wait for each object of an open transfer, and for each member of a fold that is
// fetched whole.
std::vector<Wait> Overview::waits() const {
  std::vector<Wait> waits;
  for (const auto& [transfer, pull] : engine_.transfers.pulls()) {
    const PullGoal& goal = pull.goal();
    const ObjectBytes needed{goal.object, name_of_bytes(goal)};
    Wait wait{needed,
              goal.stripe_count,
              goal.stripe,
              pull.ready(),
              goal.sender,
              needed,
              stripe_block(goal.stripe_count, goal.stripe, pull.ready())};
    if (pull.fold) {
      const LocalObject& target = engine_.objects.at(pull.fold->target);
      wait.name = {pull.fold->target, name_of_bytes(target)};
      wait.ready = target.stripes[goal.stripe.value].ready;
    }
    waits.push_back(wait);
    for (const Beside& other : goal.beside) {
      wait.needed = {other.object, {other.incarnation, TargetEpoch{0}}};
      waits.push_back(wait);
    }
  }
  for (const auto& [id, folding] : engine_.folds.folds()) {
    const ReduceOwn& own = folding.accumulator.own();
    const LocalObject& target = engine_.objects.at(id);
    for (const auto& [index, member] : folding.accumulator.members()) {
      if (!member.whole) continue;
      for (const StripeIndex stripe : own.owned) {
        const auto n = folding.accumulator.first_lacking(index, stripe);
        if (!n || stripe.value >= target.stripes.size()) continue;
        waits.push_back({{id, name_of_bytes(target)},
                         own.stripe_count,
                         stripe,
                         target.stripes[stripe.value].ready,
                         engine_.config.node,
                         {member.source.object, {member.source.incarnation, TargetEpoch{0}}},
                         stripe_block(own.stripe_count, stripe, *n)});
      }
    }
  }
  return waits;
}

}  // namespace hoplite

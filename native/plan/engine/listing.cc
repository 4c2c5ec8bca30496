// The objects and transfers of this node, and what keeps them, in words and rows for people.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>

#include "plan/engine/state.h"

namespace hoplite {
namespace {

constexpr std::size_t kHoldersNamed = 4;   // more make a text too long to read
constexpr Duration kHoldersLife = 100_ms;  // a look at 24,000 objects takes a millisecond

std::string count_of(std::uint64_t n, const char* one) {
  return std::to_string(n) + " " + one + (n == 1 ? "" : "s");
}

std::uint64_t clients_of(const std::map<ClientId, std::uint32_t>& pins) {
  return pins.size() - pins.count(ClientId{0});
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

}  // namespace

// Returns what keeps the object in the arena. REQUIRES: extent, and it can't be evicted.
std::string EngineTables::reason(const ObjectId& id, const LocalObject& object) const {
  std::vector<std::string> reasons;
  if (object.writing) {
    reasons.emplace_back("being written");
  } else if (folds_.contains(id)) {
    reasons.emplace_back("being reduced");
  } else if (object.pinned) {
    reasons.emplace_back(object.target_epoch.value > 0 ? "reduced here"
                         : object.adopted              ? "adopted here"
                                                       : "put here");
  } else if (!object.is_complete() && !object.orphaned) {
    reasons.emplace_back("being received");
  }
  if (object.spilling) reasons.emplace_back(object.spilled ? "being read back" : "being spilled");
  if (object.orphaned) reasons.emplace_back("orphaned");
  if (const auto clients = clients_of(object.pins); clients > 0) {
    reasons.push_back("mapped by " + count_of(clients, "client"));
  }
  const bool is_sent = object.pins.contains(ClientId{0}) && !object.spilling;
  if (is_sent || sender_.serves(id)) reasons.emplace_back("being sent");
  std::string text;
  for (const std::string& each : reasons) text += (text.empty() ? "" : ", ") + each;
  return text;
}

// Returns why `id` gets no range, which clients hold the most, and the next step.
std::string EngineTables::full_text(const ObjectId& id, std::uint64_t size_bytes) const {
  const std::string asked =
      "store full: object " + short_name(id) + " needs " + std::to_string(size_bytes) + " bytes";
  const std::string arena = "the arena's " + std::to_string(inventory_.capacity_bytes()) +
                            " bytes have " + std::to_string(inventory_.common_bytes()) +
                            " for puts and gets (1/8 is kept for reduces)";
  if (!inventory_.can_hold({size_bytes, 0}, Line::kPuts)) {
    return asked + " and can never fit: " + arena +
           "; put it in parts or start the nodes with a larger arena_bytes";
  }
  const char* fails = ", and when_full=fail lets no put wait: ";
  const char* waited = ", and nothing that runs frees them: ";
  const auto asking = objects_.find(id);
  const bool is_put = asking != objects_.end() && asking->second.put_request;
  const bool is_at_once = is_put && config_.when_full == WhenFull::kFail;
  std::string text = asked + (is_at_once ? fails : waited) + arena + ", and " +
                     std::to_string(inventory_.used_bytes() - inventory_.evictable_bytes()) +
                     " are held by " + holders_text();
  if (!spills_.error.empty()) text += ". Spilling failed: " + spills_.error;
  return text + ". Delete objects, drop references, or start the nodes with a larger arena_bytes";
}

// Looks at all objects. Thousands of puts may be refused at once, so refusals within kHoldersLife
// share one text.
const std::string& EngineTables::holders_text() const {
  if (holders_ && now_ - holders_->first < kHoldersLife) return holders_->second;
  struct Holder {
    std::uint64_t size_bytes;
    ObjectId object;
    std::string reason;
    bool operator<(const Holder& other) const {
      return std::tie(other.size_bytes, object) < std::tie(size_bytes, other.object);
    }
  };
  std::vector<Holder> holders;
  for (const auto& [other, object] : objects_) {
    if (!object.extent || is_free_to_go(other, object)) continue;
    holders.push_back({object.extent->size_bytes, other, ""});
  }
  for (const auto& [name, retired] : retired_) {
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
    const auto live = objects_.find(holder.object);
    text += (i == 0 ? ": " : "; ") + short_name(holder.object) + " " +
            std::to_string(holder.size_bytes) + " bytes (" +
            (holder.reason.empty() ? reason(holder.object, live->second) : holder.reason) + ")";
  }
  if (holders.size() > named) text += "; ...";
  return holders_.emplace(now_, std::move(text)).second;
}

ObjectRow EngineTables::row(const ObjectId& id, const LocalObject& object) const {
  ObjectRow row;
  row.object = id;
  row.incarnation = object.incarnation;
  row.size_bytes = object.meta.size_bytes;
  row.state = object.writing         ? "writing"
              : object.is_complete() ? "whole"
              : object.extent        ? "partial"
              : object.spilled       ? "spilled"
                                     : "wanted";
  row.pinned = object.pinned;
  row.orphaned = object.orphaned;
  row.sole = object.is_here() && !object.elsewhere && (object.pinned || object.writing);
  for (const auto& [client, count] : object.pins) {
    if (client != ClientId{0}) row.mappings += count;
  }
  row.waiters = object.waiters.size();
  return row;
}

std::vector<ObjectRow> EngineTables::largest_objects(std::uint64_t rows_max) const {
  if (rows_max == 0) return {};
  std::vector<std::pair<std::uint64_t, const LocalObjects::value_type*>> found;
  found.reserve(objects_.size());
  for (const auto& entry : objects_) found.emplace_back(entry.second.meta.size_bytes, &entry);
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
std::vector<TransferRow> EngineTables::largest_transfers(std::uint64_t rows_max) const {
  std::vector<TransferRow> rows;
  if (rows_max == 0) return rows;
  rows.reserve(pulls_.size());
  for (const auto& [transfer, pull] : pulls_) rows.push_back(hoplite::row(pull));
  const auto end =
      rows.begin() + static_cast<std::ptrdiff_t>(std::min<std::uint64_t>(rows.size(), rows_max));
  std::partial_sort(rows.begin(), end, rows.end(), [](const auto& a, const auto& b) {
    return std::tie(b.size_bytes, a.object, a.stripe, a.sender) <
           std::tie(a.size_bytes, b.object, b.stripe, b.sender);
  });
  rows.erase(end, rows.end());
  return rows;
}

void Engine::State::handle_list(RequestId request, const ListCommand& list) {
  Listing listing{largest_objects(list.objects_max), largest_transfers(list.transfers_max),
                  Remembered{}};
  actions_.emplace_back(TellListing{request, std::move(listing), list.traced});
}

}  // namespace hoplite

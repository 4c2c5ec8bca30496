// SPDX-License-Identifier: Apache-2.0
#include "sim/check/checker.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <set>
#include <span>

#include "sim/model/content.h"

namespace hoplite::sim {
namespace {

// The bytes of these parts, from `offset` on.
Bytes range_of(const Bytes& bytes, std::uint64_t offset, const std::vector<Part>& parts) {
  std::uint64_t size_bytes = 0;
  for (const Part& part : parts) size_bytes += part.size_bytes;
  const auto first = bytes.begin() + static_cast<std::ptrdiff_t>(offset);
  return {first, first + static_cast<std::ptrdiff_t>(size_bytes)};
}

// std::equal compares bytes one by one.
bool are_equal(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

// Returns what the answer to a get must hold: as many of the right bytes as it has, if those are
// at least what the get waited for; otherwise all of them.
std::span<const std::byte> leading_bytes(std::span<const std::byte> right, const Request& get) {
  const bool is_enough = get.bytes.size() >= get.upto_bytes && get.bytes.size() <= right.size();
  return is_enough ? right.first(get.bytes.size()) : right;
}

}  // namespace

std::string name_of(const Request& request) {
  static constexpr const char* kVerbs[] = {"put",  "get",       "delete",  "reduce", "orphan",
                                           "keep", "take term", "publish", "watch"};
  return std::string(kVerbs[static_cast<std::size_t>(request.verb)]) + " of " +
         short_name(request.object) + " on node " + std::to_string(request.node) + " (request " +
         std::to_string(request.id.value) + ")";
}

// ---- puts and copies ----

void Checker::note_put(const Request& put) {
  Known& known = objects_[put.object];
  known.puts.insert_or_assign(put.incarnation,
                              Value(put.parts, std::make_shared<const Bytes>(put.bytes)));
  ++puts_;
  // A newer attempt may replace the older attempts' bytes at any time.
  std::erase_if(known.copies, [&](const Copy& c) { return c.incarnation < put.incarnation; });
}

void Checker::note_seal(const Request& put, Instant now) {
  Known& known = objects_[put.object];
  const auto is_it = [&](const Copy& c) {
    return c.node == put.node && c.life == put.node_life && c.incarnation == put.incarnation;
  };
  if (std::any_of(known.copies.begin(), known.copies.end(), is_it) && !known.deleted) {
    judge(put.object, "sealed twice: " + name_of(put));
  }
  if (known.puts.rbegin()->first > put.incarnation) return;
  known.copies.push_back({put.node, put.node_life, put.incarnation, now});
}

// Deaths count from the question on: those that keep it may die before the answer is there.
void Checker::note_keep(const Request& keep, std::size_t members) {
  const std::size_t least = std::min<std::size_t>(keep.copies, members);
  objects_[keep.object].keepers = {least, count_losses(), 0, false};
}

// A node that drains keeps nothing, so it is no member here.
void Checker::note_kept(const Request& keep, std::size_t members) {
  Keepers& keepers = objects_[keep.object].keepers;
  const std::size_t stay = members - std::min(members, draining_.size());
  keepers.least = std::min(keepers.least, stay);
  keepers.are_there = true;
}

void Checker::note_delete_request(const ObjectId& object, Instant now) {
  auto& deleted = objects_[object].deleted;
  if (!deleted) deleted = now;
}

void Checker::note_node_loss(std::size_t node, Incarnation life, Instant now) {
  lost_.emplace(std::pair(node, life), now);
  for (auto& [object, known] : objects_) {
    std::erase_if(known.copies, [&](const Copy& c) {
      return (c.node == node && c.life == life) || draining_.contains({c.node, c.life});
    });
  }
}

void Checker::note_copy_loss(const ObjectId& object, std::size_t node, Incarnation life) {
  ++objects_[object].keepers.losses;
  std::erase_if(objects_[object].copies, [&](const Copy& c) {
    return (c.node == node && c.life == life) || draining_.contains({c.node, c.life});
  });
}

void Checker::note_delete(const Request& erase) {
  const Request*& newest = objects_[erase.object].erased[{erase.node, erase.node_life}];
  if (newest == nullptr || newest->incarnation < erase.incarnation) newest = &erase;
}

bool Checker::has_live_copy(const ObjectId& object) const {
  const auto at = objects_.find(object);
  return at != objects_.end() && !at->second.deleted && !at->second.orphaned &&
         (!at->second.copies.empty() || has_keeper(at->second));
}

bool Checker::is_deleted(const ObjectId& object) const {
  const auto at = objects_.find(object);
  return at != objects_.end() && at->second.deleted.has_value();
}

// ---- answers ----

void Checker::check_get(const Request& get, Instant) {
  Known& known = objects_[get.object];
  if (known.reduce != nullptr) {
    if (!is_a_fold(known, get.bytes)) {
      std::string where;
      const auto right = folds(*known.reduce, known.reduce->members);
      if (known.reduce->has_value() && !right.empty()) {
        const Bytes& bytes = *right.front().second;
        const auto differ =
            std::mismatch(bytes.begin(), bytes.end(), get.bytes.begin(), get.bytes.end());
        where = ", first difference at byte " + std::to_string(differ.first - bytes.begin());
      }
      judge(get.object, "the value is no fold of " + std::to_string(known.reduce->count) +
                            " confirmed sources: " + name_of(get) + where);
    }
    return;
  }
  // Check this node only: copies on other nodes go a round trip or two later.
  const auto erased = known.erased.find({get.node, get.node_life});
  if (erased != known.erased.end() && *erased->second->answered < get.asked &&
      get.fetched.incarnation <= erased->second->incarnation) {
    judge(get.object,
          "a value that was deleted on that node before it was asked for: " + name_of(get));
  }
  const auto put = known.puts.find(get.fetched.incarnation);
  if (put == known.puts.end()) {
    judge(get.object, "a value of an attempt that nobody put: " + name_of(get));
  } else if (!are_equal(leading_bytes(*put->second.second, get), get.bytes)) {
    const Bytes& right = *put->second.second;
    const auto differ =
        std::mismatch(right.begin(), right.end(), get.bytes.begin(), get.bytes.end());
    judge(get.object, "a wrong value: " + name_of(get) + ", " + std::to_string(get.bytes.size()) +
                          " of " + std::to_string(right.size()) + " bytes, first difference at " +
                          std::to_string(differ.first - right.begin()));
  } else if (get.fetched.meta.layout != layout_of(put->second.first) ||
             get.fetched.meta.parts != put->second.first) {
    judge(get.object, "a wrong layout or parts: " + name_of(get));
  }
}

void Checker::check_release(const Request& get, std::span<const std::byte> mapped) {
  if (!are_equal(mapped, get.bytes)) {
    judge(get.object, "the bytes changed while they were mapped: " + name_of(get));
  }
}

void Checker::check_rebuilt(const ObjectId& object, std::span<const std::byte> bytes,
                            std::size_t node) {
  const auto& puts = objects_[object].puts;
  const bool is_one = std::any_of(puts.begin(), puts.end(), [&](const auto& put) {
    return are_equal(*put.second.second, bytes);
  });
  if (is_one) return;
  judge(object, "node " + std::to_string(node) + " has rebuilt " + short_name(object) +
                    " with bytes that nobody put");
}

// True if the reduce's caller cancelled it or died. A get of the target then ends with kCancelled.
bool Checker::is_withdrawn(const Known& known) {
  return known.reduce != nullptr && (known.reduce->cancelled || known.reduce->abandoned);
}

void Checker::check_error(const Request& request, Instant) {
  const Known& known = objects_[request.object];
  const std::string what = name_of(request) + ": " + request.error->text;
  if (request.error->text.empty())
    judge(request.object, "an error without a text: " + name_of(request));
  switch (request.error->code) {
    case Code::kCancelled:
      // A reduce whose target is an orphan ends with the last copy of that.
      if (!request.cancelled && !known.deleted && !known.orphaned && !is_withdrawn(known)) {
        judge(request.object, "cancelled, but by nobody: " + what);
      }
      return;
    case Code::kStoreFull:
      if (!store_full_is_right_) judge(request.object, "the arena is large enough: " + what);
      return;
    case Code::kObjectLost: {
      // A lost object stays lost until its home hears of the next put.
      const Duration way = known.puts.size() > 1 ? kUnderWayMax : Duration{0};
      const auto is_older = [&](const Copy& copy) {
        const bool is_here = copy.node == request.node && copy.life == request.node_life;
        return copy.sealed + way < request.asked && (request.verb != Verb::kKeep || is_here);
      };
      const bool was_there = std::any_of(known.copies.begin(), known.copies.end(), is_older);
      if (was_there && !known.deleted && !known.orphaned) {
        judge(request.object, "lost, though a live node has all of it: " + what);
      } else if (has_keeper(known) && !known.deleted && !known.orphaned) {
        judge(request.object, "lost, though fewer nodes died than keep it: " + what);
      }
      return;
    }
    case Code::kReduceFailed:
      if (known.reduce == nullptr) judge(request.object, "no reduce: " + what);
      if (known.reduce != nullptr) check_reduce_failure(*known.reduce, what);
      return;
    case Code::kLayoutMismatch:
      if (known.reduce == nullptr || has_equal_sources(*known.reduce))
        judge(request.object, "no mismatch: " + what);
      return;
    case Code::kInvalidArgument:
      if (request.verb == Verb::kKeep && request.copies > kCopiesMax) return;
      if (known.reduce == nullptr || has_fit_sources(*known.reduce))
        judge(request.object, "no bad dtype: " + what);
      return;
    case Code::kDuplicateObject:
      if (request.verb != Verb::kPut && !known.deleted)
        judge(request.object, "only a put can be a duplicate: " + what);
      return;
    default:
      judge(request.object, "an error that nothing here explains: " + what);
  }
}

// ---- reduces ----

void Checker::note_reduce(const Request& reduce) {
  Known& target = objects_[reduce.object];
  target.reduce = &reduce;
  target.folds.reset();
}

// A reduce may fail only when too few of its sources can still come, and its answer names the
// others.
void Checker::check_reduce_failure(const Request& reduce, const std::string& what) {
  if (objects_[reduce.object].deleted) return;
  std::uint32_t gone = 0;
  for (const ReduceSource& source : reduce.sources) {
    const auto at = objects_.find(source.object);
    const bool is_there = !source.failed && at != objects_.end() && !at->second.copies.empty() &&
                          !at->second.deleted && !at->second.orphaned &&
                          at->second.puts.size() == 1;  // else a member's bytes were replaced
    if (!is_there) ++gone;
  }
  if (reduce.source_count - gone >= reduce.count) {
    return judge(reduce.object, "enough sources are left: " + what);
  }
  const bool has_failed = reduce.code() == Code::kReduceFailed;  // else only a get has an answer
  if (has_failed && reduce.source_count - reduce.lost.size() >= reduce.count) {
    judge(reduce.object, "lost sources are not named: " + what);
  }
}

bool Checker::has_equal_sources(const Request& reduce) const {
  std::optional<std::vector<Part>> parts;
  for (const ReduceSource& source : reduce.sources) {
    if (source.failed) continue;
    for (auto& [own, bytes] : values_of(source.object)) {
      if (parts && *parts != own) return false;
      parts = std::move(own);
    }
  }
  return true;
}

// True when no source has a dtype that the operation refuses.
bool Checker::has_fit_sources(const Request& reduce) const {
  return std::all_of(reduce.sources.begin(), reduce.sources.end(), [&](const ReduceSource& s) {
    if (s.failed) return true;
    const auto values = values_of(s.object);
    return std::all_of(values.begin(), values.end(),
                       [&](const Value& v) { return can_reduce_all(v.first, reduce.op); });
  });
}

// Returns the values that a source may have: the bytes of each attempt, or the folds of the reduce
// that made it. That reduce may report its members after other nodes have read its value.
std::vector<Checker::Value> Checker::values_of(const ObjectId& object) const {
  const auto known = objects_.find(object);
  if (known == objects_.end()) return {};
  const Request* reduce = known->second.reduce;
  if (reduce != nullptr) {
    return reduce->has_value() ? folds(*reduce, reduce->members) : all_folds(*reduce);
  }
  std::vector<Value> values;
  for (const auto& [attempt, value] : known->second.puts) values.push_back(value);
  return values;
}

void Checker::check_result(const Request& reduce) {
  std::set<std::uint32_t> members(reduce.members.begin(), reduce.members.end());
  if (members.size() != reduce.count || reduce.members.size() != reduce.count) {
    judge(reduce.object, "the members are not `count` different ones: " + name_of(reduce));
  }
  for (const std::uint32_t index : members) {
    const auto is_it = [&](const ReduceSource& s) { return s.index == index && !s.failed; };
    if (std::none_of(reduce.sources.begin(), reduce.sources.end(), is_it)) {
      judge(reduce.object, "a member that was never confirmed: " + name_of(reduce));
    }
  }
}

// Returns the values that these members fold to: one, except when a member was put again with other
// bytes.
std::vector<Checker::Value> Checker::folds(const Request& reduce,
                                           const std::vector<std::uint32_t>& members) const {
  using Chosen = std::vector<std::shared_ptr<const Bytes>>;
  std::vector<std::pair<std::vector<Part>, Chosen>> choices(1);
  for (const std::uint32_t index : members) {
    const auto source = std::find_if(reduce.sources.begin(), reduce.sources.end(),
                                     [&](const auto& s) { return s.index == index && !s.failed; });
    if (source == reduce.sources.end()) return {};
    const auto before = std::exchange(choices, {});
    for (const auto& [parts, bytes] : values_of(source->object)) {
      for (const auto& chosen : before) {
        if (!chosen.second.empty() && chosen.first != parts) continue;
        choices.emplace_back(parts, chosen.second).second.push_back(bytes);
      }
    }
  }
  std::vector<Value> all;
  for (const auto& [parts, bytes] : choices) {
    if (bytes.empty() || !can_reduce_all(parts, reduce.op)) continue;
    std::map<std::uint32_t, std::span<const std::byte>> by_index;
    std::vector<std::span<const std::byte>> in_order;
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      by_index[members[i]] = *bytes[i];
      in_order.emplace_back(*bytes[i]);
    }
    Bytes value = reduce.deterministic ? reduce_pairwise(parts, reduce.op, by_index)
                                       : reduce_all(parts, reduce.op, in_order);
    if (reduce.share.is_share()) value = range_of(value, reduce.share.offset, reduce.parts);
    all.emplace_back(reduce.share.is_share() ? reduce.parts : parts,
                     std::make_shared<const Bytes>(std::move(value)));
  }
  return all;
}

// Returns the folds of every `count` of the confirmed sources. Cost: all subsets, so few sources.
std::vector<Checker::Value> Checker::all_folds(const Request& reduce) const {
  std::vector<Value> all;
  std::vector<std::uint32_t> confirmed;
  for (const ReduceSource& source : reduce.sources) {
    if (!source.failed) confirmed.push_back(source.index);
  }
  std::vector<bool> chosen(confirmed.size(), false);
  if (confirmed.size() < reduce.count) return all;
  std::fill_n(chosen.begin(), reduce.count, true);
  do {
    std::vector<std::uint32_t> members;
    for (std::size_t i = 0; i < chosen.size(); ++i) {
      if (chosen[i]) members.push_back(confirmed[i]);
    }
    std::ranges::move(folds(reduce, members), std::back_inserter(all));
  } while (std::prev_permutation(chosen.begin(), chosen.end()));
  return all;
}

bool Checker::is_one_of(const std::vector<Value>& values, const Bytes& bytes) {
  return std::any_of(values.begin(), values.end(),
                     [&](const Value& v) { return are_equal(*v.second, bytes); });
}

// True if the confirmed sources of the reduce may fold to these bytes.
bool Checker::is_a_fold(Known& target, const Bytes& bytes) const {
  const Request& reduce = *target.reduce;
  const bool is_of_puts = std::ranges::all_of(reduce.sources, [&](const ReduceSource& source) {
    const auto at = objects_.find(source.object);
    return at == objects_.end() || at->second.reduce == nullptr;
  });
  if (!is_of_puts) return is_one_of(all_folds(reduce), bytes);
  auto& folds = target.folds;
  if (!folds || folds->puts != puts_ || folds->sources != reduce.sources.size()) {
    folds = Folds{puts_, reduce.sources.size(), all_folds(reduce)};
  }
  return is_one_of(folds->values, bytes);
}

void Checker::check_reduces(const std::deque<Request>& requests) {
  std::map<const Request*, std::vector<Value>> reported;
  for (const Request& get : requests) {
    if (get.verb != Verb::kGet || !get.has_value()) continue;
    const Request* reduce = objects_[get.object].reduce;
    if (reduce == nullptr || !reduce->has_value()) continue;
    const auto end = lost_.find({get.node, get.node_life});
    if (end != lost_.end() && end->second < *reduce->answered) continue;
    const auto [at, is_new] = reported.try_emplace(reduce);
    if (is_new) at->second = folds(*reduce, reduce->members);
    if (!is_one_of(at->second, get.bytes)) {
      judge(get.object,
            "the value is not the fold of the members that were reported: " + name_of(get));
    }
  }
}

}  // namespace hoplite::sim

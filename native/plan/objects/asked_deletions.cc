// SPDX-License-Identifier: Apache-2.0
#include "plan/objects/asked_deletions.h"

#include <algorithm>
#include <array>

#include "base/check.h"

namespace hoplite {
namespace {
constexpr std::size_t kHomesAtOnce = 8;
}  // namespace

bool AskedDeletions::has_room(NodeId home) const {
  if (noted_.size() / kHomesAtOnce >= each_max_) return false;
  const auto count = counts_.find(home);
  return count == counts_.end() || count->second < each_max_;
}

void AskedDeletions::hold(NodeId home, Held held) {
  lines_[home].push_back(held);
  ++held_;
}

std::optional<AskedDeletions::Held> AskedDeletions::poll_held() {
  const auto line =
      std::ranges::find_if(lines_, [this](const auto& each) { return has_room(each.first); });
  if (line == lines_.end()) return std::nullopt;
  const Held held = line->second.front();
  line->second.pop_front();
  if (line->second.empty()) lines_.erase(line);
  --held_;
  return held;
}

void AskedDeletions::note(NodeId home, const Delete& request, Incarnation here, Instant now) {
  const Kind kind = request.upto.value == 0 ? Kind::kUndated : Kind::kDated;
  const auto [it, is_new] = noted_.try_emplace({kind, request.object});
  Note& note = it->second;
  if (is_new) {
    note.home = home;
    ++counts_[home];
  } else {
    order_.erase({note.until, it->first});
  }
  note.upto = std::max(note.upto, here);
  note.until = now + life_;
  order_.emplace(note.until, it->first);
}

void AskedDeletions::handle_deleted(const Deleted& deleted) {
  const Kind kind = deleted.upto.value == 0 ? Kind::kUndated : Kind::kDated;
  const auto it = noted_.find({kind, deleted.object});
  if (it == noted_.end()) return;
  if (kind == Kind::kDated && it->second.upto > deleted.upto) return;
  remember(deleted.object, it->second);
  forget(it);
}

// asker, in an old view: Delete │ home of that view: Deleted │ the new home, in a newer view: a
// question of a node that the old home doesn't know. Only the asker can tell the new home.
// A deletion of all attempts is asked for again up to the one that was known, because a later one
// may have been put since.
void AskedDeletions::handle_view(const Membership& view, std::span<const NodeId> gone) {
  for (auto it = answered_.begin(); it != answered_.end();) {
    const auto at = it++;
    const auto& [object, answered] = *at;
    const bool is_same = view.home_of(object) == answered.home &&
                         std::ranges::find(gone, answered.home) == gone.end();
    if (is_same) continue;
    const auto [note, is_new] = noted_.try_emplace({Kind::kDated, object}, answered);
    if (is_new) order_.emplace(answered.until, note->first);
    note->second.upto = std::max(note->second.upto, answered.upto);
    forget_answered(at);
  }
  counts_.clear();
  for (auto& [key, note] : noted_) {
    note.home = view.home_of(key.second);
    ++counts_[note.home];
  }
  for (auto& [home, line] : std::exchange(lines_, {})) {
    for (const Held& held : line) lines_[view.home_of(held.command.object)].push_back(held);
  }
}

void AskedDeletions::handle_timeout(Instant now) {
  while (!order_.empty() && order_.begin()->first <= now) {
    forget(noted_.find(order_.begin()->second));
  }
  while (!answered_order_.empty() && answered_order_.begin()->first <= now) {
    forget_answered(answered_.find(answered_order_.begin()->second));
  }
}

bool AskedDeletions::covers(const ObjectId& object, Incarnation incarnation) const {
  return std::ranges::any_of(std::array{Kind::kDated, Kind::kUndated}, [&](Kind kind) {
    const auto it = noted_.find({kind, object});
    return it != noted_.end() && incarnation <= it->second.upto;
  });
}

std::optional<Instant> AskedDeletions::poll_timeout() const {
  std::optional<Instant> earliest;
  if (!order_.empty()) earliest = order_.begin()->first;
  if (!answered_order_.empty()) earliest = earlier(earliest, answered_order_.begin()->first);
  return earliest;
}

void AskedDeletions::check_invariants() const {
  HOPLITE_CHECK(order_.size() == noted_.size());
  HOPLITE_CHECK(answered_order_.size() == answered_.size() && answered_.size() <= each_max_);
  std::size_t counted = 0;
  for (const auto& [home, count] : counts_) counted += count;
  HOPLITE_CHECK(counted == noted_.size());
}

void AskedDeletions::forget(Notes::iterator it) {
  order_.erase({it->second.until, it->first});
  const auto count = counts_.find(it->second.home);
  if (--count->second == 0) counts_.erase(count);
  noted_.erase(it);
}

void AskedDeletions::remember(const ObjectId& object, const Note& answered) {
  const auto [it, is_new] = answered_.try_emplace(object, answered);
  Note& note = it->second;
  if (!is_new) answered_order_.erase({note.until, object});
  note = {std::max(note.upto, answered.upto), answered.home, std::max(note.until, answered.until)};
  answered_order_.emplace(note.until, object);
  if (answered_.size() > each_max_) {
    forget_answered(answered_.find(answered_order_.begin()->second));
  }
}

void AskedDeletions::forget_answered(std::map<ObjectId, Note>::iterator it) {
  answered_order_.erase({it->second.until, it->first});
  answered_.erase(it);
}

}  // namespace hoplite

// SPDX-License-Identifier: Apache-2.0
#include "plan/links/membership.h"

#include <algorithm>
#include <cstring>

#include "base/prng.h"

namespace hoplite {
namespace {

std::uint64_t hash_of(const ObjectId& object) {
  std::uint64_t hash = 0;
  for (std::size_t at = 0; at < kObjectIdBytes; at += 4) {
    std::uint32_t word = 0;
    std::memcpy(&word, object.bytes.data() + at, sizeof word);
    hash = mix64(hash ^ word);
  }
  return hash;
}
static_assert(kObjectIdBytes % 4 == 0);

}  // namespace

std::uint64_t weight_of(const ObjectId& object, NodeId node) {
  return mix64(hash_of(object) ^ mix64(node.value));
}

bool Membership::handle_view(Epoch epoch, const std::vector<Member>& members) {
  if (epoch <= epoch_ || members.size() > kViewMembersMax) return false;
  const bool listed =
      std::any_of(members.begin(), members.end(), [&](const Member& m) { return m.node == self_; });
  if (!listed) return false;
  epoch_ = epoch;
  members_ = members;
  return true;
}

void Membership::handle_dead(NodeId node, Incarnation incarnation, bool is_certain) {
  Death& death = dead_[node];
  death.newest = std::max(death.newest, incarnation);
  if (is_certain) death.certain = std::max(death.certain, incarnation);
}

void Membership::handle_draining(NodeId node, bool draining) {
  if (draining) {
    draining_.insert(node);
  } else {
    draining_.erase(node);
  }
}

const Member* Membership::find(NodeId node) const {
  const auto it = std::find_if(members_.begin(), members_.end(),
                               [&](const Member& m) { return m.node == node; });
  return it == members_.end() ? nullptr : &*it;
}

bool Membership::is_live(NodeId node) const {
  const auto dead = dead_.find(node);
  return node == self_ ||
         life_of(node) > (dead == dead_.end() ? Incarnation{} : dead->second.newest);
}

bool Membership::may_live(NodeId node) const {
  const auto dead = dead_.find(node);
  return node == self_ ||
         life_of(node) > (dead == dead_.end() ? Incarnation{} : dead->second.certain);
}

Incarnation Membership::life_of(NodeId node) const {
  const Member* const member = find(node);
  return member == nullptr ? Incarnation{} : member->incarnation;
}

NodeId Membership::home_of(const ObjectId& object) const {
  const std::uint64_t hash = hash_of(object);
  NodeId home = self_;
  std::uint64_t best = 0;
  for (const Member& member : members_) {
    const std::uint64_t weight = mix64(hash ^ mix64(member.node.value));
    if (weight >= best) {
      best = weight;
      home = member.node;
    }
  }
  return home;
}

bool Membership::is_home_of(const ObjectId& object) const {
  const std::uint64_t hash = hash_of(object);
  const std::uint64_t ours = mix64(hash ^ mix64(self_.value));
  const bool outweighed = std::any_of(members_.begin(), members_.end(), [&](const Member& member) {
    return mix64(hash ^ mix64(member.node.value)) > ours;
  });
  return !outweighed && home_of(object) == self_;
}

}  // namespace hoplite

// SPDX-License-Identifier: Apache-2.0
// A directory shard among invented nodes, and verbs for their messages to it.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/prng.h"
#include "plan/directory/directory.h"

namespace hoplite {

inline constexpr NodeId kHome{1}, kA{2}, kB{3}, kC{4}, kD{5};
// An object whose home is kHome in every view that has it.
inline const ObjectId kObject = [] {
  Membership view(kHome);
  const bool ok = view.handle_view(
      Epoch{1}, {{kHome, {}, {}}, {kA, {}, {}}, {kB, {}, {}}, {kC, {}, {}}, {kD, {}, {}}});
  ObjectId id;
  while (ok && view.home_of(id) != kHome) ++id.bytes[0];
  return id;
}();
inline const ObjectMeta kMeta{4096, 1024, {{DType::kFloat32, 4096}}, "float32"};

struct Granted {  // one stripe's worth of a grant
  ObjectId object;
  Incarnation incarnation;
  TargetEpoch target_epoch;
  ObjectMeta meta;
  std::uint16_t stripe_count = 0;
  StripeIndex stripe;
  NodeId sender;
  LeaseId lease;
};

inline std::optional<Granted> find_lease(const Parcel& parcel) {
  const auto* grant = std::get_if<Grant>(&parcel.body);
  if (grant == nullptr) return std::nullopt;
  const StripeLease& one = grant->leases.at(0);
  return Granted{grant->object,       grant->incarnation, grant->target_epoch, grant->meta,
                 grant->stripe_count, one.stripe,         one.sender,          one.lease};
}
inline Granted read_lease(const Parcel& parcel) { return find_lease(parcel).value(); }

class DirectoryTest : public ::testing::Test {
 protected:
  struct Said {  // one stripe's worth of a claim
    StripeState state = StripeState::kIdle;
    std::uint32_t lease = 0;
    NodeId sender = kNoNode;
    bool wants = false, exists = false;
    std::uint32_t incarnation = 1, target_epoch = 0;
    bool committed = true, pinned = false, orphaned = false;
    ObjectMeta meta = kMeta;
  };

  DirectoryTest() { reset(1); }

  void reset(std::uint16_t stripes) {
    config_ = EngineConfig{};
    config_.node = kHome;
    config_.inline_bytes_max = 256;
    config_.broadcast_stripes = stripes;
    directory_ = Directory(config_);
    view_ = Membership(kHome);
    epoch_ = Epoch{};
    change_view({kHome, kA, kB, kC, kD});
    for (const NodeId node : {kA, kB, kC, kD}) done(node);
    take();
  }

  // ---- verbs ----
  void claim(NodeId from, const Said& said) {
    Claim claim = claim_of(said);
    const bool has_something = said.state != StripeState::kIdle || said.sender != kNoNode;
    if (has_something) {
      claim.stripes = {{StripeIndex{0}, said.state, LeaseId{said.lease}, said.sender, 0}};
    }
    tell(from, claim);
  }
  void has(NodeId node) { claim(node, {.state = StripeState::kComplete, .pinned = node == kA}); }
  void writes(NodeId node) { claim(node, {.state = StripeState::kRoot, .pinned = true}); }
  void wants(NodeId node) { claim(node, {.wants = true, .incarnation = 0}); }
  void has_nothing(NodeId node) { claim(node, {.incarnation = 0}); }
  void remove(NodeId node, std::uint32_t upto) {
    directory_.handle_delete(node, Delete{kObject, Incarnation{upto}}, now_);
    check();
  }
  void receives(NodeId node, const Granted& grant) {
    claim(node, {.state = StripeState::kReceiving,
                 .lease = grant.lease.value,
                 .sender = grant.sender,
                 .wants = true});
  }
  void failed(NodeId node, const Granted& grant) {
    claim(node, {.lease = grant.lease.value, .sender = grant.sender, .wants = true});
  }
  // Reports a receiver's progress in the stripe that `grant` leases to it.
  void is_at(NodeId from, const Granted& grant, std::uint32_t ready) {
    const Progress progress{
        kObject, grant.incarnation, grant.target_epoch, {{grant.stripe, grant.lease, ready}}};
    directory_.handle_progress(from, progress, now_);
    check();
  }
  void is_busy_elsewhere(NodeId from) {
    directory_.handle_progress(from, {kObject, Incarnation{1}, {}, {}}, now_);
    check();
  }
  // Claims the outcome of the newest grant for every stripe.
  void claim_all(
      NodeId from, const std::vector<Granted>& grants, StripeState state,
      const std::function<bool(StripeIndex)>& complete = [](StripeIndex) { return false; }) {
    if (grants.empty()) return wants(from);
    Claim claim = claim_of({.wants = true});
    for (std::uint16_t i = 0; i < grants.back().stripe_count; ++i) {
      claim.stripes.push_back({StripeIndex{i}, StripeState::kIdle, {}, kNoNode, 0});
    }
    for (const Granted& grant : grants) {
      auto& stripe = claim.stripes[grant.stripe.value];
      stripe = {grant.stripe, state, grant.lease, grant.sender, 0};
      if (complete(grant.stripe)) stripe.state = StripeState::kComplete;
    }
    tell(from, claim);
  }
  void done(NodeId node) { directory_.handle_resync_done(node, now_), check(); }
  void die(NodeId node) { directory_.handle_node_dead(node, now_), check(); }
  void change_view(const std::vector<NodeId>& nodes) {
    std::vector<Member> members;
    for (const NodeId node : nodes) members.push_back({node, Incarnation{1}, {}});
    ++epoch_.value;
    ASSERT_TRUE(view_.handle_view(epoch_, members));
    directory_.handle_view(view_, now_);
    check();
  }
  // The reduce that makes the object, for a client of kD.
  void ends(ReducePhase phase) {
    ReduceState state;
    state.target = kObject;
    state.target_epoch = TargetEpoch{1};
    state.phase = phase;
    state.caller = kD;
    if (phase == ReducePhase::kFailed) state.code = Code::kReduceFailed;
    directory_.handle_reduce_state(state, now_);
    check();
  }
  void elapse(Duration duration) {
    const Instant end = now_ + duration;
    while (directory_.poll_timeout() && *directory_.poll_timeout() <= end) {
      now_ = std::max(now_, *directory_.poll_timeout());
      directory_.handle_timeout(now_);
      check();
    }
    now_ = end;
  }

  // ---- what it sent ----
  // A grant of several stripes counts as one of each.
  std::vector<Parcel> take() {
    std::vector<Parcel> sent;
    while (auto parcel = directory_.poll_parcel()) {
      const auto* grant = std::get_if<Grant>(&parcel->body);
      if (grant == nullptr) {
        sent.push_back(std::move(*parcel));
        continue;
      }
      for (const StripeLease& lease : grant->leases) {
        Grant one = *grant;
        one.leases = {lease};
        sent.push_back({parcel->to, std::move(one), false});
      }
    }
    return sent;
  }
  template <typename T>
  static std::vector<T> of(const std::vector<Parcel>& sent, NodeId to) {
    std::vector<T> found;
    for (const Parcel& parcel : sent) {
      if (parcel.to != to) continue;
      if constexpr (std::is_same_v<T, Granted>) {
        if (const auto one = find_lease(parcel)) found.push_back(*one);
      } else if (const auto* body = std::get_if<T>(&parcel.body)) {
        found.push_back(*body);
      }
    }
    return found;
  }
  // Returns the only message that it has sent since the last look.
  template <typename T>
  T only(NodeId to) {
    const auto sent = take();
    const auto found = of<T>(sent, to);
    EXPECT_EQ(sent.size(), 1U);
    EXPECT_EQ(found.size(), 1U);
    return found.empty() ? T{} : found[0];
  }
  void expect_silence() { EXPECT_TRUE(take().empty()); }

  // All receivers obey from here on: each stripe arrives once its sender has it.
  void settle_and_expect_fed(const std::vector<NodeId>& nodes,
                             std::map<NodeId, std::vector<Granted>> grants) {
    std::set<std::pair<NodeId, StripeIndex>> complete;
    const auto has_stripe = [&](NodeId node, StripeIndex stripe) {
      return node == kA || complete.contains({node, stripe});
    };
    for (int round = 0; round < 20; ++round) {
      for (const NodeId node : nodes) {
        for (const Granted& grant : grants[node]) {
          if (has_stripe(grant.sender, grant.stripe)) complete.insert({node, grant.stripe});
        }
        claim_all(node, grants[node], StripeState::kReceiving,
                  [&](StripeIndex stripe) { return has_stripe(node, stripe); });
      }
      elapse(kRegrantDelay);
      for (const Parcel& parcel : take()) {
        if (const auto grant = find_lease(parcel)) grants[parcel.to].push_back(*grant);
      }
    }
    for (const NodeId node : nodes) {
      for (std::uint16_t stripe = 0; stripe < config_.broadcast_stripes; ++stripe) {
        EXPECT_TRUE(has_stripe(node, StripeIndex{stripe})) << "node " << node.value;
      }
    }
  }

  EngineConfig config_;
  Directory directory_{EngineConfig{}};
  Instant now_{1'000'000};

  static Claim claim_of(const Said& said) {
    Claim claim;
    claim.object = kObject;
    claim.incarnation = Incarnation{said.incarnation};
    claim.target_epoch = TargetEpoch{said.target_epoch};
    if (said.incarnation > 0) claim.meta = said.meta;
    claim.wants = said.wants;
    claim.exists = said.exists;
    claim.committed = said.committed;
    claim.pinned = said.pinned;
    claim.orphaned = said.orphaned;
    return claim;
  }
  void tell(NodeId from, const Claim& claim) {
    directory_.handle_claim(from, claim, epoch_, now_);
    check();
  }

 private:
  void check() const { directory_.check_invariants(); }

  Membership view_{kHome};
  Epoch epoch_;
};

}  // namespace hoplite

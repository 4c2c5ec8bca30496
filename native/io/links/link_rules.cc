// SPDX-License-Identifier: Apache-2.0
#include "io/links/link_rules.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/check.h"

namespace hoplite {
namespace {

// A factor of link_down_max for a link that was never up. A peer dials late when a slower control
// plane tells it about this node.
constexpr std::int64_t kFirstLinkPatience = 10;

}  // namespace

Link* LinkRules::find_link(NodeId node) {
  const auto found = links_.find(node);
  return found == links_.end() ? nullptr : &found->second;
}

const Link* LinkRules::find(NodeId node) const {
  const auto found = links_.find(node);
  return found == links_.end() ? nullptr : &found->second;
}

void LinkRules::check_invariants() const {
  HOPLITE_CHECK(actions_.empty());
  std::set<std::uint64_t> tokens;
  for (const auto& [node, link] : links_) {
    HOPLITE_CHECK(node != self_);
    check_link(link);
    for (const Rail& rail : link.rails) {
      for (const Link::Slot& slot : {rail.control, rail.bulk, rail.liveness}) {
        HOPLITE_CHECK(slot.token == 0 || tokens.insert(slot.token).second);
      }
    }
  }
}

void LinkRules::check_link(const Link& link) {
  HOPLITE_CHECK(link.rails.size() <= kRailsMax);
  HOPLITE_CHECK(link.is_up() == (link.control != 0));
  const bool is_whole = std::ranges::any_of(link.rails, &Rail::is_whole);
  const bool is_of_member = link.incarnation == link.member.incarnation;
  HOPLITE_CHECK(link.is_up() == (is_whole && link.is_wanted() && is_of_member));
  const auto has_control = [&](const Rail& rail) {
    return rail.control.is_open && rail.control.token == link.control;
  };
  HOPLITE_CHECK(!link.is_up() || std::ranges::any_of(link.rails, has_control));
  const bool is_dead = link.incarnation <= link.dead_incarnation;
  HOPLITE_CHECK(!is_dead || std::ranges::all_of(link.rails, &Rail::has_none));
  for (const Rail& rail : link.rails) {
    HOPLITE_CHECK(!rail.liveness.is_open);
    HOPLITE_CHECK(!rail.control.is_open || rail.control.token != 0);
    HOPLITE_CHECK(!rail.bulk.is_open || rail.bulk.token != 0);
  }
}

// ---- the engine's orders ----

void LinkRules::handle_connect(const Member& member, Instant now) {
  HOPLITE_CHECK(member.node != self_);
  HOPLITE_CHECK(member.node != kNoNode);
  Link& link = links_[member.node];
  // The engine has heard of this life's death, and a view that lists it again changes nothing.
  if (member.incarnation <= link.dead_incarnation) return;
  // A view may come later than the next life of its member has dialled.
  const bool is_overtaken = !link.is_wanted() && link.incarnation > member.incarnation;
  if (link.incarnation != member.incarnation && !is_overtaken) {
    end_life(member.node, link, now);
    stop_watching(member.node, link);
  }
  const bool is_new = !link.is_wanted() || link.member.incarnation != member.incarnation;
  link.member = member;
  link.rails.resize(std::max(link.rails.size(), std::min(member.rails.size(), kRailsMax)));
  if (!is_new) return;
  link.state = Link::State::kNeverUp;
  link.has_said_goodbye = false;
  link.down_since = now;
  if (is_overtaken) return declare_dead(member.node, link, DeathCause::kNextLifeDials, now);
  for (Rail& rail : link.rails) {
    rail.is_refused = false;
    rail.backoff = limits_.redial_first;
    // The listening side only probes, and gives the other time to dial first.
    rail.redial_at = dials(member.node) ? now : now + limits_.redial_max;
    set_timer(rail.redial_at);
  }
  report_if_up(member.node, link);
}

void LinkRules::handle_disconnect(NodeId node) {
  Link* const link = find_link(node);
  if (link == nullptr) return;
  // peer: dials as its next life │ us: its last life is dead │ engine: Disconnect (the last life)
  // │ engine: Connect (the next life).  Its connections wait for Connect, and hear no Goodbye.
  // Test: LinkRules.ADisconnectOfThePeersLastLifeKeepsTheConnectionsOfItsNextOne.
  const bool is_of_next_life = link->incarnation > link->member.incarnation;
  if (link->is_wanted() || !is_of_next_life) part_with(node, *link);
}

void LinkRules::handle_leaving() {
  for (auto& [node, link] : links_) part_with(node, link);
}

void LinkRules::handle_announced(NodeId node) {
  Link* const link = find_link(node);
  if (link != nullptr && link->is_up()) link->state = Link::State::kAnnounced;
}

// ---- what became of a connection ----

void LinkRules::handle_dialling(NodeId node, RailId rail, ConnectionKind kind,
                                std::uint64_t token) {
  links_.at(node).rails[rail.value].slot(kind) = {token, false};
}

void LinkRules::handle_taken(NodeId node, RailId rail) {
  Link* const link = find_link(node);
  if (link != nullptr && rail.value < link->rails.size())
    link->rails[rail.value].is_refused = false;
}

// No process listens at this address any more. If that holds on every rail of the member, its
// process is gone.
void LinkRules::handle_refused(NodeId node, RailId rail, Instant now) {
  Link* const link = find_link(node);
  if (link == nullptr || rail.value >= link->rails.size()) return;
  link->rails[rail.value].is_refused = true;
  const bool is_missing = link->is_wanted() && !link->is_up() && !link->has_said_goodbye;
  if (is_missing && link->is_refused()) declare_dead(node, *link, DeathCause::kRefused, now);
}

void LinkRules::handle_other_life(NodeId node, Incarnation answers, Instant now) {
  Link* const link = find_link(node);
  if (link == nullptr || answers <= link->member.incarnation) return;
  declare_dead(node, *link, DeathCause::kNextLifeAnswers, now);
}

LinkRules::Answer LinkRules::handle_hello(const Hello& hello, std::uint64_t token, Instant now) {
  if (links_.size() >= kViewMembersMax) {  // forgets nodes that are gone
    std::erase_if(links_, [](const auto& entry) {
      const Link& each = entry.second;
      return !each.is_wanted() && std::ranges::all_of(each.rails, &Rail::has_none);
    });
  }
  if (!links_.contains(hello.from) && links_.size() >= kViewMembersMax) {
    return Answer::kTooManyNodes;
  }
  Link& link = links_[hello.from];
  const Incarnation known =
      link.is_wanted() ? std::max(link.incarnation, link.member.incarnation) : link.incarnation;
  if (hello.from_incarnation <= link.dead_incarnation || hello.from_incarnation < known) {
    return Answer::kEarlierLife;
  }
  if (link.is_wanted() && hello.from_incarnation > link.member.incarnation) {
    declare_dead(hello.from, link, DeathCause::kNextLifeDials, now);
  }
  const bool is_of_a_life = hello.kind != ConnectionKind::kLiveness;
  const bool is_next_peer = hello.from_incarnation > link.incarnation;
  if (is_next_peer || (is_of_a_life && hello.attempt > link.attempt)) {
    end_life(hello.from, link, now);
    if (is_next_peer) stop_watching(hello.from, link);
    link.incarnation = hello.from_incarnation;
    link.attempt = hello.attempt;
    link.has_said_goodbye = false;
  } else if (is_of_a_life && hello.attempt < link.attempt) {
    return Answer::kEarlierAttempt;
  }
  link.rails.resize(std::max<std::size_t>(link.rails.size(), hello.rail.value + 1U));
  Link::Slot& slot = link.rails[hello.rail.value].slot(hello.kind);
  if (slot.token != 0) return Answer::kRailTaken;
  slot = {token, false};
  return Answer::kJoined;
}

void LinkRules::handle_open(NodeId node, RailId rail, ConnectionKind kind) {
  Link& link = links_.at(node);
  link.rails[rail.value].slot(kind).is_open = true;
  report_if_up(node, link);
}

void LinkRules::handle_handed_over(NodeId node, RailId rail) {
  Rail& each = links_.at(node).rails[rail.value];
  each.liveness = {};
  each.is_watched = true;
}

void LinkRules::handle_goodbye(NodeId node) {
  Link* const link = find_link(node);
  if (link != nullptr) link->has_said_goodbye = true;
}

// The connection has ended. If it was not open yet, that is a failed attempt of one rail. If it was
// open, the link's whole life ends.
void LinkRules::handle_end(NodeId node, RailId rail_id, std::uint64_t token, Instant now) {
  Link* const link = find_link(node);
  if (link == nullptr || rail_id.value >= link->rails.size()) return;
  Rail& rail = link->rails[rail_id.value];
  for (Link::Slot* const slot : {&rail.control, &rail.bulk, &rail.liveness}) {
    if (slot->token != token || token == 0) continue;
    const bool was_open = std::exchange(*slot, {}).is_open;
    if (was_open) {
      end_life(node, *link, now);
    } else {
      set_timer(std::max(now, rail.redial_at));
    }
    return;
  }
}

// ---- the rest ----

void LinkRules::handle_verdict(const LivenessEvent& event, Instant now) {
  Link* const link = find_link(event.node);
  if (link == nullptr || link->incarnation != event.incarnation) return;
  if (event.verdict == Verdict::kRailLost || event.verdict == Verdict::kRailCut) {
    if (event.rail.value >= link->rails.size()) return;
    actions_.emplace_back(ReportRail{event.node, event.rail, event.verdict});
    Rail& rail = link->rails[event.rail.value];
    rail.is_watched = false;
    set_timer(now);
    // The rail's other connections would wait for minutes; over another rail the link is up at
    // once.
    if (event.verdict == Verdict::kRailCut && rail.bulk.token != 0) {
      const std::uint64_t bulk = rail.bulk.token;
      actions_.emplace_back(CloseConnection{bulk});
      handle_end(event.node, event.rail, bulk, now);
    }
    return;
  }
  if (!is_final(event.verdict)) return;
  for (Rail& rail : link->rails) rail.is_watched = false;  // the thread has closed its connections
  if (event.verdict == Verdict::kLeft) {
    link->has_said_goodbye = true;
    return;
  }
  if (link->member.incarnation != event.incarnation) return;
  const DeathCause cause = event.verdict == Verdict::kDead          ? DeathCause::kEnded
                           : event.verdict == Verdict::kUnreachable ? DeathCause::kOutOfReach
                                                                    : DeathCause::kFrozen;
  declare_dead(event.node, *link, cause, now);
}

void LinkRules::handle_timeout(Instant now) {
  if (!timer_ || now < *timer_) return;
  timer_.reset();
  for (auto& [node, link] : links_) {
    if (!link.is_wanted() || link.has_said_goodbye) continue;
    const std::int64_t patience_factor =
        link.state == Link::State::kNeverUp ? kFirstLinkPatience : 1;
    const Duration patience = limits_.link_down_max * patience_factor;
    if (!link.is_up() && link.down_since + patience <= now) {
      declare_dead(node, link, DeathCause::kStaysDown, now);
      continue;
    }
    if (!link.is_up()) set_timer(link.down_since + patience);
    for (std::size_t rail = 0; rail < std::min(link.rails.size(), link.member.rails.size());
         ++rail) {
      redial(node, link, RailId{static_cast<std::uint8_t>(rail)}, now);
    }
  }
}

std::optional<LinkAction> LinkRules::poll_action() {
  while (!actions_.empty()) {
    const LinkAction action = actions_.front();
    actions_.pop_front();
    if (is_meant(action)) return action;
  }
  return std::nullopt;
}

// A dial that is refused at once may have shown that the peer is dead; its other dials are void.
bool LinkRules::is_meant(const LinkAction& action) const {
  const auto is_wanted = [this](NodeId node) {
    const Link* const link = find(node);
    return link != nullptr && link->is_wanted();
  };
  if (const auto* dial = std::get_if<DialRail>(&action)) return is_wanted(dial->node);
  if (const auto* probe = std::get_if<ProbeRail>(&action)) return is_wanted(probe->node);
  return true;
}

// ---- lives ----

void LinkRules::part_with(NodeId node, Link& link) {
  if (link.is_up()) actions_.emplace_back(SayGoodbye{node, link.control});
  link.state = Link::State::kUnwanted;  // asked for, so there is no LinkDown
  end_life(node, link, Instant{});
  stop_watching(node, link);
}

void LinkRules::close(Link::Slot& slot) {
  const std::uint64_t token = std::exchange(slot, {}).token;
  if (token != 0) actions_.emplace_back(CloseConnection{token});
}

void LinkRules::report_if_up(NodeId node, Link& link) {
  if (link.is_up() || !link.is_wanted() || link.incarnation != link.member.incarnation) return;
  const auto whole = std::ranges::find_if(link.rails, &Rail::is_whole);
  if (whole == link.rails.end()) return;
  link.state = Link::State::kUp;
  link.has_said_goodbye = false;
  link.control = whole->control.token;
  for (Rail& each : link.rails) each.backoff = limits_.redial_first;
  actions_.emplace_back(ReportUp{node, link.incarnation});
}

// Closes the control and bulk connections of the link's life; the dialler's next one is another
// attempt. Liveness connections belong to no life.
void LinkRules::end_life(NodeId node, Link& link, Instant now) {
  for (Rail& rail : link.rails) {
    close(rail.control);
    close(rail.bulk);
  }
  link.control = 0;
  if (dials(node)) ++link.attempt;
  set_timer(now);  // to dial again; each rail waits until its own redial_at
  if (!link.is_up()) return;
  link.state = Link::State::kDown;
  link.down_since = now;
  actions_.emplace_back(ReportDown{node});
  for (Rail& rail : link.rails) {
    rail.backoff = limits_.redial_first;
    rail.is_refused = false;
    rail.redial_at = now;
  }
}

void LinkRules::stop_watching(NodeId node, Link& link) {
  bool was_watched = false;
  for (Rail& rail : link.rails) {
    close(rail.liveness);
    was_watched |= std::exchange(rail.is_watched, false);
  }
  if (was_watched) actions_.emplace_back(ForgetPeer{node, link.incarnation});
}

// The only place that reports a death. Connections of a later life wait for its Connect.
void LinkRules::declare_dead(NodeId node, Link& link, DeathCause cause, Instant now) {
  if (!link.is_wanted()) return;
  if (link.incarnation <= link.member.incarnation) stop_watching(node, link);
  link.dead_incarnation = link.member.incarnation;
  if (link.incarnation == link.dead_incarnation) end_life(node, link, now);
  link.state = Link::State::kUnwanted;
  actions_.emplace_back(ReportDead{node, link.dead_incarnation, cause});
}

void LinkRules::redial(NodeId node, Link& link, RailId rail_id, Instant now) {
  Rail& rail = link.rails[rail_id.value];
  const bool is_complete = rail.control.token != 0 && rail.bulk.token != 0 && rail.has_liveness();
  if (is_complete || (link.is_up() && !dials(node))) return;
  if (rail.redial_at > now) {
    set_timer(rail.redial_at);
    return;
  }
  rail.redial_at = now + rail.backoff;
  rail.backoff = std::min(rail.backoff * 2, limits_.redial_max);
  set_timer(rail.redial_at);
  if (!dials(node)) {
    const bool is_silent = rail.control.token == 0 && rail.bulk.token == 0;
    if (is_silent) actions_.emplace_back(ProbeRail{node, rail_id});
    return;
  }
  link.incarnation = link.member.incarnation;
  const auto dial_missing = [&](ConnectionKind kind, bool is_missing) {
    if (is_missing) actions_.emplace_back(DialRail{node, rail_id, kind});
  };
  dial_missing(ConnectionKind::kControl, rail.control.token == 0);
  dial_missing(ConnectionKind::kBulk, rail.bulk.token == 0);
  dial_missing(ConnectionKind::kLiveness, !rail.has_liveness());
}

}  // namespace hoplite

// SPDX-License-Identifier: Apache-2.0
#include "plan/engine/channels/channel_home.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "plan/engine/owners.h"

namespace hoplite {

// ---- what members say ----

// A message of this node to itself may be of the view before.
bool ChannelHome::is_mine(NodeId from, const ObjectId& id) const {
  return from != engine_.config.node || engine_.peers.home_of(id) == engine_.config.node;
}

// True if a home may have given the term: one of an earlier view, or this one in this view.
bool ChannelHome::is_given(const Term& term) const {
  const Epoch epoch = engine_.peers.view().epoch();
  return term.epoch < epoch || (term.epoch == epoch && term.counter <= terms_given_);
}

void ChannelHome::handle_claim(NodeId from, const ChannelClaim& claim) {
  if (!is_mine(from, claim.channel)) return;
  const ObjectId& id = claim.channel;
  const bool is_true = is_given(claim.term) && claim.newest.number.term <= claim.term;
  if (!is_true) return;
  Entry& entry = entries_[id];
  entry.keepers[from] = {claim.term, claim.newest.number, claim.watches, claim.visible};
  const bool is_newer = claim.newest.exists() && claim.newest.number > entry.newest.number;
  const bool tells_more = is_newer || claim.term > entry.term;
  const bool lacks_some = claim.newest.number < entry.newest.number || claim.term < entry.term;
  if (is_newer) entry.newest = claim.newest;
  entry.term = std::max(entry.term, claim.term);
  if (is_ready_ && tells_more) {
    begin_round(id, entry);  // the open one could not end, because that member keeps more
  } else if (is_ready_ && lacks_some) {
    bring(id, entry, from);
  }
  send_news(id, entry, from);
  forget_if_empty(id);
}

// A repeated question has the ticket that it had.
void ChannelHome::handle_question(NodeId from, const ChannelQuestion& question) {
  if (!is_mine(from, question.channel)) return;
  Entry& entry = entries_[question.channel];
  const bool is_asked = std::ranges::any_of(entry.asked, [&](const Question& each) {
    return each.from == from && each.ticket == question.ticket;
  });
  if (is_asked) return;
  entry.waiting.insert_or_assign(from, question);
  serve(question.channel, entry);
  forget_if_empty(question.channel);
}

void ChannelHome::handle_ack(NodeId from, const VersionAck& ack) {
  const auto found = entries_.find(ack.channel);
  if (found == entries_.end() || found->second.round != ack.round || ack.round == 0) return;
  if (engine_.peers.view().find(from) == nullptr) return;
  Entry& entry = found->second;
  Keeper& keeper = entry.keepers[from];
  keeper.term = entry.term;
  keeper.kept = entry.newest.number;
  entry.confirmed.insert(from);
  if (entry.is_open && is_majority(entry)) end_round(ack.channel, entry);
  forget_if_empty(ack.channel);
}

// ---- rounds ----

// By the rule of views: more than half of the members, or half of them if all others are proven
// dead.
bool ChannelHome::is_majority(const Entry& entry) const {
  const std::vector<Member>& members = engine_.peers.view().members();
  const std::size_t confirmed = entry.confirmed.size();
  if (2 * confirmed > members.size()) return true;
  return 2 * confirmed == members.size() && std::ranges::all_of(members, [&](const auto& member) {
           return entry.confirmed.contains(member.node) ||
                  !engine_.peers.view().may_live(member.node);
         });
}

// Handles the questions that wait, all in one round.
void ChannelHome::serve(const ObjectId& id, Entry& entry) {
  if (!is_ready_ || entry.is_open || entry.waiting.empty()) return;
  const auto waiting = std::exchange(entry.waiting, {});
  for (const auto& [from, question] : waiting) admit(id, entry, from, question);
  if (!entry.asked.empty()) begin_round(id, entry);
}

void ChannelHome::admit(const ObjectId& id, Entry& entry, NodeId from,
                        const ChannelQuestion& question) {
  const bool begins = question.ask != ChannelAsk::kLatest && entry.is_blank();
  if (begins && engine_.channels.live_count() >= engine_.config.channels_max) {
    return answer(id, entry, {from, question.ticket, question.ask, {}, {}, {}},
                  ChannelOutcome::kFull);
  }
  switch (question.ask) {
    case ChannelAsk::kTakeTerm:
      return take_term(id, entry, from, question);
    case ChannelAsk::kPublish:
      return admit_version(id, entry, from, question);
    case ChannelAsk::kLatest:
      entry.asked.push_back({from, question.ticket, question.ask, {}, {}, {}});
  }
}

// A repeated question gets the same term again. Another one would end the term that its first
// answer has given, and a third publisher's term besides.
void ChannelHome::take_term(const ObjectId&, Entry& entry, NodeId from,
                            const ChannelQuestion& question) {
  Given& given = entry.given[from];
  if (given.ticket != question.ticket || given.term == Term{}) {
    given = {question.ticket, {engine_.peers.view().epoch(), ++terms_given_}, entry.term};
    entry.term = given.term;
  }
  entry.asked.push_back({from, question.ticket, question.ask, given.term, {}, given.before});
}

void ChannelHome::admit_version(const ObjectId& id, Entry& entry, NodeId from,
                                const ChannelQuestion& question) {
  const Version& version = question.version;
  const Question asked{from, question.ticket, question.ask, {}, version.number, {}};
  if (!version.exists() || !is_given(version.number.term)) {
    return answer(id, entry, asked, ChannelOutcome::kNotGiven);
  }
  if (version.number.term < entry.term) return answer(id, entry, asked, ChannelOutcome::kTaken);
  if (version.number < entry.newest.number) {
    return answer(id, entry, asked, ChannelOutcome::kNotNewer);
  }
  if (version.number == entry.newest.number && version != entry.newest) {
    return answer(id, entry, asked, ChannelOutcome::kOtherBytes);
  }
  entry.newest = version;
  entry.term = version.number.term;
  entry.asked.push_back(asked);
}

void ChannelHome::begin_round(const ObjectId& id, Entry& entry) {
  entry.round = ++last_round_;
  entry.is_open = true;
  entry.confirmed.clear();
  for (const Member& member : engine_.peers.view().members()) offer(id, entry, member.node);
}

void ChannelHome::offer(const ObjectId& id, const Entry& entry, NodeId to) {
  VersionOffer offer{id, entry.round, entry.term, entry.newest, false};
  const auto member = entry.keepers.find(to);
  const bool has_it = member != entry.keepers.end() && entry.newest.exists() &&
                      member->second.kept == entry.newest.number;
  if (has_it && to != engine_.config.node) {
    offer.newest.payload.clear();
    offer.is_bare = true;
  }
  engine_.outgoing.send(to, std::move(offer));
}

// Brings what this home keeps to a member that lacks some of it.
void ChannelHome::bring(const ObjectId& id, Entry& entry, NodeId to) {
  if (entry.round > 0) return offer(id, entry, to);
  begin_round(id, entry);
}

// The newest version is visible now, on all nodes that hear of it. Publications that a newer one
// has overtaken in the same round are refused, because no reader has seen them.
void ChannelHome::end_round(const ObjectId& id, Entry& entry) {
  entry.is_open = false;
  entry.visible = entry.newest;
  for (const Question& question : std::exchange(entry.asked, {})) {
    const bool is_overtaken =
        question.ask == ChannelAsk::kPublish && question.version != entry.newest.number;
    const bool is_taken = question.version.term < entry.newest.number.term;
    answer(id, entry, question,
           !is_overtaken ? ChannelOutcome::kDone
           : is_taken    ? ChannelOutcome::kTaken
                         : ChannelOutcome::kNotNewer);
  }
  for (const auto& [node, keeper] : entry.keepers) send_news(id, entry, node);
  serve(id, entry);
}

void ChannelHome::answer(const ObjectId& id, const Entry& entry, const Question& question,
                         ChannelOutcome outcome) {
  ChannelAnswer said{id, question.ticket, outcome, entry.term, entry.visible, {}};
  if (question.ask == ChannelAsk::kTakeTerm) {
    said.term = question.term;
    said.before = question.before;
  }
  if (outcome != ChannelOutcome::kDone) said.newest = entry.newest;
  if (question.ask != ChannelAsk::kLatest) said.newest.payload.clear();
  engine_.outgoing.send(question.from, std::move(said));
}

void ChannelHome::send_news(const ObjectId& id, Entry& entry, NodeId to) {
  Keeper& member = entry.keepers.at(to);
  if (!member.watches || member.sent >= entry.visible.number) return;
  member.sent = entry.visible.number;
  engine_.outgoing.send(to, VersionNews{id, entry.visible});
}

// ---- views and links ----

void ChannelHome::handle_view() {
  entries_.clear();
  is_ready_ = false;
  terms_given_ = 0;
}

bool ChannelHome::settle_one() {
  const bool may_begin =
      engine_.peers.view().epoch() > Epoch{} && !engine_.directory.is_recovering();
  if (is_ready_ || !may_begin) return false;
  is_ready_ = true;
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    const auto next = std::next(entry);
    recover(entry->first, entry->second);
    entry = next;
  }
  return true;
}

// The claims of all members are here. A version that all of them keep is visible without a round;
// any other one is completed by a round, which also brings it to the members that lack it.
void ChannelHome::recover(const ObjectId& id, Entry& entry) {
  const std::vector<Member>& members = engine_.peers.view().members();
  const bool is_kept = std::ranges::all_of(members, [&](const Member& member) {
    const auto known = entry.keepers.find(member.node);
    return known != entry.keepers.end() && known->second.kept == entry.newest.number &&
           known->second.term == entry.term;
  });
  if (entry.newest.exists() && is_kept) {
    entry.visible = entry.newest;
    for (const auto& [node, keeper] : entry.keepers) send_news(id, entry, node);
  }
  serve(id, entry);
  if (!entry.is_open && !entry.is_blank() && !entry.visible.exists()) begin_round(id, entry);
}

void ChannelHome::handle_death() {
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    const auto next = std::next(entry);
    if (entry->second.is_open && is_majority(entry->second)) {
      end_round(entry->first, entry->second);
    }
    entry = next;
  }
}

// The node has lost all that this home sent on its last link, or in an answer that it dropped. Its
// own claims and questions come again by themselves.
void ChannelHome::repeat_to(NodeId node) {
  if (!is_ready_) return;
  for (auto& [id, entry] : entries_) {
    if (entry.is_blank() && !entry.is_open) continue;
    const auto known = entry.keepers.find(node);
    if (known != entry.keepers.end()) {
      known->second.kept = {};
      known->second.sent = {};
      send_news(id, entry, node);
    }
    bring(id, entry, node);
  }
}

void ChannelHome::forget(const ObjectId& channel) {
  const auto found = entries_.find(channel);
  if (found == entries_.end()) return;
  const Entry& entry = found->second;
  if (!entry.is_open && entry.waiting.empty()) entries_.erase(found);
}

void ChannelHome::forget_if_empty(const ObjectId& id) {
  const auto found = entries_.find(id);
  if (found == entries_.end()) return;
  Entry& entry = found->second;
  if (!entry.is_blank() || entry.is_open || !entry.waiting.empty()) return;
  std::erase_if(entry.keepers, [](const auto& each) { return !each.second.watches; });
  if (entry.keepers.empty()) entries_.erase(found);
}

// ---- for people ----

void ChannelHome::check_invariants() const {
  for (const auto& [id, entry] : entries_) {
    HOPLITE_CHECK(entry.visible.number <= entry.newest.number);
    HOPLITE_CHECK(entry.newest.number.term <= entry.term);
    HOPLITE_CHECK(entry.is_open || entry.asked.empty());
    HOPLITE_CHECK(is_ready_ || !entry.is_open);
    HOPLITE_CHECK(!entry.is_open || !is_majority(entry));
    for (const NodeId node : entry.confirmed) {
      HOPLITE_CHECK(engine_.peers.view().find(node) != nullptr);
    }
  }
}

}  // namespace hoplite

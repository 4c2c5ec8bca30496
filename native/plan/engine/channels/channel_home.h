// SPDX-License-Identifier: Apache-2.0
// The home of version channels (decision 43): decides the order of their versions. Soft state of
// one view, rebuilt from the claims of all members; until each of them is heard nothing is decided.
// Every decision is a round: the home offers its newest version and term to all members, and a
// majority of the view confirms in the same epoch. The next home completes a version that some
// members keep, and no other one takes its number, as with a decree of Paxos whose ballot is the
// view's epoch (Lamport, "Paxos Made Simple", 2001).
// Invariants: a channel has one round at a time; a visible version is not newer than the newest
// one; only members of the view confirm, ask and watch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "plan/messages.h"

namespace hoplite {

struct Owners;

class ChannelHome {
 public:
  explicit ChannelHome(Owners& engine) : engine_(engine) {}

  void handle_claim(NodeId from, const ChannelClaim& claim);
  void handle_question(NodeId from, const ChannelQuestion& question);
  void handle_ack(NodeId from, const VersionAck& ack);
  void handle_view();   // forgets everything: the members say it again
  void handle_death();  // of a member, for certain
  void repeat_to(NodeId node);
  void forget(const ObjectId& channel);  // that this node does not keep any more
  // Begins to decide once every member is heard. Returns false if there is nothing to do.
  bool settle_one();

  void check_invariants() const;

 private:
  struct Keeper {  // a member that keeps or wants something
    Term term;     // the newest term and version that it is known to keep
    VersionNumber kept;
    bool watches = false;
    VersionNumber sent;  // the newest visible version that it knows or was sent
  };
  struct Question {  // of a member, in the round under way
    NodeId from;
    std::uint64_t ticket = 0;
    ChannelAsk ask = ChannelAsk::kTakeTerm;
    Term term;              // taken
    VersionNumber version;  // to publish
    Term before;            // the term before `term`
  };
  struct Given {  // the last term that a member has taken
    std::uint64_t ticket = 0;
    Term term;
    Term before;  // the newest one by then
  };
  struct Entry {
    Term term;
    Version newest;           // proposed, or visible
    Version visible;          // in this view
    std::uint64_t round = 0;  // the last one; 0: none yet
    bool is_open = false;     // True while a majority has not confirmed that round
    std::set<NodeId> confirmed;
    std::map<NodeId, Keeper> keepers;
    std::map<NodeId, ChannelQuestion> waiting;  // for the next round: the last one of each
    std::vector<Question> asked;                // in this round
    std::map<NodeId, Given> given;

    [[nodiscard]] bool is_blank() const { return term == Term{} && !newest.exists(); }
  };
  [[nodiscard]] bool is_mine(NodeId from, const ObjectId& id) const;
  [[nodiscard]] bool is_given(const Term& term) const;
  [[nodiscard]] bool is_majority(const Entry& entry) const;
  void serve(const ObjectId& id, Entry& entry);
  void admit(const ObjectId& id, Entry& entry, NodeId from, const ChannelQuestion& question);
  void admit_version(const ObjectId& id, Entry& entry, NodeId from,
                     const ChannelQuestion& question);
  void take_term(const ObjectId& id, Entry& entry, NodeId from, const ChannelQuestion& question);
  void begin_round(const ObjectId& id, Entry& entry);
  void offer(const ObjectId& id, const Entry& entry, NodeId to);
  void bring(const ObjectId& id, Entry& entry, NodeId to);
  void end_round(const ObjectId& id, Entry& entry);
  void answer(const ObjectId& id, const Entry& entry, const Question& question,
              ChannelOutcome outcome);
  void send_news(const ObjectId& id, Entry& entry, NodeId to);
  void recover(const ObjectId& id, Entry& entry);
  void forget_if_empty(const ObjectId& id);

  Owners& engine_;
  std::map<ObjectId, Entry> entries_;
  bool is_ready_ = false;          // True if every member of the view was heard
  std::uint64_t last_round_ = 0;   // of all channels and views: no old confirmation counts
  std::uint32_t terms_given_ = 0;  // in this view
};

}  // namespace hoplite

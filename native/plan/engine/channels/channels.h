// SPDX-License-Identifier: Apache-2.0
// This node's part in version channels (decision 43). It asks the homes for its clients. It keeps,
// as every member does, the newest version and the newest term of each channel that a home has
// offered to it. It says so again after each new view, and a new home so learns every version that
// was ever visible.
// Invariants: the number of requests is that of all waiting clients; of a channel's questions the
// first is under way; a visible version is not newer than the newest one that is kept; a channel
// without a live version, a request or a subscription is idle.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "plan/messages.h"
#include "plan/objects/local_object.h"

namespace hoplite {

struct EngineStats;
struct Owners;

class Channels {
 public:
  explicit Channels(Owners& engine) : engine_(engine) {}

  // ---- clients ----
  void handle_take_term(const Waiter& waiter, const TakeTermCommand& take);
  void handle_publish(const Waiter& waiter, const PublishCommand& publish);
  void handle_watch(const Waiter& waiter, const WatchCommand& watch);
  // Returns false if the client has no such request about a channel.
  bool cancel(const Waiter& waiter, const ObjectId& channel);
  void handle_client_lost(ClientId client);
  void handle_read(ClientId client, const ReadCommand& read);

  // ---- from the home ----
  void handle_offer(NodeId from, const VersionOffer& offer);
  void handle_news(NodeId from, const VersionNews& news);
  void handle_answer(NodeId from, const ChannelAnswer& answer);

  void repeat_claims(std::optional<NodeId> only_to);  // and questions
  // Channels that have a version and were not unpublished.
  [[nodiscard]] std::size_t live_count() const { return live_; }
  // The first of them after that id, `rows_max` and kChannelRowsMax at most.
  [[nodiscard]] std::vector<ChannelRow> list(std::size_t rows_max, const ObjectId& after) const;
  void add_stats(EngineStats& stats) const;
  void check_invariants() const;

 private:
  struct Watch {
    Waiter waiter;
    VersionNumber newer_than;
  };
  struct Question {  // of a client
    Waiter waiter;
    std::uint64_t ticket = 0;
    ChannelAsk ask = ChannelAsk::kTakeTerm;
    Version version;           // to publish
    VersionNumber newer_than;  // of kLatest
  };
  struct Channel {
    Term term;        // the newest one that a home has offered
    Version newest;   // likewise
    Version visible;  // the newest one that this node knows to be visible
    bool is_subscribed = false;
    std::uint32_t unneeded_news = 0;  // since a client waited for some
    std::vector<Watch> watches;
    std::deque<Question> questions;
    std::map<ClientId, ChannelReader> readers;  // of a live one: what each client read last
    std::uint64_t idle_number = 0;              // its place among the idle ones; 0: it is not idle

    [[nodiscard]] bool is_live() const { return newest.exists() && !newest.is_end; }
    [[nodiscard]] bool is_used() const {
      return is_live() || is_subscribed || !watches.empty() || !questions.empty();
    }
    [[nodiscard]] bool is_blank() const {
      return term == Term{} && !newest.exists() && !visible.exists();
    }
  };
  [[nodiscard]] bool refuse(const Waiter& waiter, const ObjectId& id);
  void ask(const ObjectId& id, Question question);
  void send_question(const ObjectId& id, Channel& channel);
  void claim(const ObjectId& id, const Channel& channel);
  void subscribe(const ObjectId& id, Channel& channel, bool wants);
  void keep(Channel& channel, const Version& version);
  void show(Channel& channel, const Version& version);
  void reply(const ObjectId& id, const Channel& channel, const Question& question,
             const ChannelAnswer& answer);
  void end_latest(Channel& channel, std::uint64_t upto_ticket);
  bool cancel_one(const ObjectId& id, Channel& channel, const Waiter& waiter);
  void forget_reader(Channel& channel, ClientId client);
  void settle(const ObjectId& id);

  Owners& engine_;
  std::map<ObjectId, Channel> channels_;
  std::map<std::uint64_t, ObjectId> idle_;  // the longest idle one first
  std::uint64_t last_ticket_ = 0, last_idle_ = 0;
  std::size_t live_ = 0;      // of `channels_`
  std::size_t requests_ = 0;  // of clients, in all of them
  std::size_t readers_ = 0;   // likewise
};

// "version 7 of term 3.1", for error texts.
[[nodiscard]] std::string describe(const VersionNumber& number);

}  // namespace hoplite

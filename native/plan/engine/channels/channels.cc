// SPDX-License-Identifier: Apache-2.0
#include "plan/engine/channels/channels.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "plan/engine/owners.h"

namespace hoplite {
namespace {

// A node unsubscribes when so many visible versions in a row came while no client waited. A client
// that reads each version asks for the next one within a few of them.
constexpr std::uint32_t kUnneededNewsMax = 8;

std::string describe(const Term& term) {
  return "term " + std::to_string(term.epoch.value) + "." + std::to_string(term.counter);
}

// Returns the text of a publication's refusal. The version itself may have been visible for a
// moment: its acceptance and its answer are two messages.
std::string describe_refusal(const std::string& channel, const Version& version,
                             const ChannelAnswer& answer) {
  const std::string what = "publish of " + describe(version.number) + " to channel " + channel;
  const std::string newest = answer.newest.exists()
                                 ? "the newest is " + describe(answer.newest.number)
                                 : "it has none yet";
  switch (answer.outcome) {
    case ChannelOutcome::kTaken:
      return what + ": another publisher has taken the channel (" + describe(answer.term) + "; " +
             newest + "); take a term again to publish here";
    case ChannelOutcome::kOtherBytes:
      return what +
             ": that number has other contents already; a version is immutable, so give the "
             "next one a greater number (" +
             newest + ")";
    case ChannelOutcome::kNotGiven:
      return what + ": no home has given " + describe(version.number.term) + "; take a term first";
    default:
      return what + ": its number is not greater (" + newest + ")";
  }
}

}  // namespace

std::string describe(const VersionNumber& number) {
  return "version " + std::to_string(number.n) + " of " + describe(number.term);
}

// ---- clients ----

// Returns true if no further request may wait, and says so to the client.
bool Channels::refuse(const Waiter& waiter, const ObjectId& id) {
  if (requests_ < engine_.config.channel_requests_max) return false;
  engine_.outgoing.reply(
      waiter, Error{Code::kStoreFull,
                    "channel " + short_name(id) + ": " + std::to_string(requests_) +
                        " requests about channels wait on this node already, of at most " +
                        std::to_string(engine_.config.channel_requests_max) +
                        "; wait for some of them before you ask again"});
  return true;
}

void Channels::handle_take_term(const Waiter& waiter, const TakeTermCommand& take) {
  if (refuse(waiter, take.channel)) return;
  ask(take.channel, {waiter, ++last_ticket_, ChannelAsk::kTakeTerm, {}, {}});
}

void Channels::handle_publish(const Waiter& waiter, const PublishCommand& publish) {
  const Version& version = publish.version;
  const char* fault = nullptr;
  if (!version.exists()) fault = "its number is 0; they start at 1";
  if (version.number.term.counter == 0) fault = "it has no term; take one first";
  if (version.is_end && !version.payload.empty()) fault = "the end of a channel has no payload";
  if (version.payload.size() > kVersionBytesMax) fault = "its payload has more than 4,096 bytes";
  if (fault != nullptr) {
    return engine_.outgoing.reply(
        waiter,
        Error{Code::kInvalidArgument, "publish of " + describe(version.number) + " to channel " +
                                          short_name(publish.channel) + ": " + fault});
  }
  if (refuse(waiter, publish.channel)) return;
  ask(publish.channel, {waiter, ++last_ticket_, ChannelAsk::kPublish, version, {}});
}

// A version that is visible stays so, so this node answers from what it knows. Only the question
// for the very latest goes to the home.
void Channels::handle_watch(const Waiter& waiter, const WatchCommand& watch) {
  if (refuse(waiter, watch.channel)) return;
  if (!watch.wait) {
    return ask(watch.channel, {waiter, ++last_ticket_, ChannelAsk::kLatest, {}, watch.newer_than});
  }
  const auto known = channels_.find(watch.channel);
  if (known != channels_.end() && known->second.visible.exists() &&
      known->second.visible.number > watch.newer_than) {
    known->second.unneeded_news = 0;
    return engine_.outgoing.reply(waiter, VersionSeen{known->second.visible});
  }
  Channel& channel = channels_[watch.channel];
  channel.watches.push_back({waiter, watch.newer_than});
  ++requests_;
  subscribe(watch.channel, channel, true);
  settle(watch.channel);
}

bool Channels::cancel(const Waiter& waiter, const ObjectId& id) {
  const auto found = channels_.find(id);
  if (found == channels_.end() || !cancel_one(id, found->second, waiter)) return false;
  engine_.outgoing.reply(waiter, Error{Code::kCancelled, "cancelled by the caller"});
  settle(id);
  return true;
}

void Channels::handle_client_lost(ClientId client) {
  std::vector<std::pair<ObjectId, Waiter>> asked;
  for (auto& [id, channel] : channels_) {
    for (const Watch& watch : channel.watches) asked.emplace_back(id, watch.waiter);
    for (const Question& question : channel.questions) asked.emplace_back(id, question.waiter);
    forget_reader(channel, client);
  }
  for (const auto& [id, waiter] : asked) {
    if (waiter.client == client) cancel(waiter, id);
  }
}

// ---- readers ----

// Only people need it, so beyond the limit of readers it is left out.
void Channels::handle_read(ClientId client, const ReadCommand& read) {
  const auto found = channels_.find(read.channel);
  if (found == channels_.end() || !found->second.is_live()) return;
  Channel& channel = found->second;
  if (read.reader.number.n == 0) return forget_reader(channel, client);
  const bool is_new = !channel.readers.contains(client);
  if (is_new && readers_ >= kChannelReadersMax) return;
  readers_ += is_new ? 1 : 0;
  channel.readers[client] = read.reader;
}

void Channels::forget_reader(Channel& channel, ClientId client) {
  readers_ -= channel.readers.erase(client);
}

std::vector<ChannelRow> Channels::list(std::size_t rows_max, const ObjectId& after) const {
  std::vector<ChannelRow> rows;
  for (auto at = channels_.upper_bound(after); at != channels_.end(); ++at) {
    if (rows.size() >= std::min(rows_max, kChannelRowsMax)) break;
    const auto& [id, channel] = *at;
    if (!channel.is_live()) continue;
    const bool is_home = engine_.peers.home_of(id) == engine_.config.node;
    ChannelRow row{id, channel.newest, is_home, {}};
    for (const auto& [client, reader] : channel.readers) row.readers.push_back(reader);
    rows.push_back(std::move(row));
  }
  return rows;
}

// Takes one request of a client out of the channel. The home may still do what it asks for.
bool Channels::cancel_one(const ObjectId& id, Channel& channel, const Waiter& waiter) {
  const auto is_its = [&](const auto& each) { return each.waiter == waiter; };
  // A client may have used one request id several times.
  if (const auto gone = std::erase_if(channel.watches, is_its); gone > 0) {
    requests_ -= gone;
    // No version has ever come, and perhaps none will: nothing else ends such a subscription.
    const bool is_empty = channel.watches.empty() && !channel.visible.exists();
    if (is_empty) subscribe(id, channel, false);
    return true;
  }
  const auto question = std::find_if(channel.questions.begin(), channel.questions.end(), is_its);
  if (question == channel.questions.end()) return false;
  const bool is_first = question == channel.questions.begin();
  channel.questions.erase(question);
  --requests_;
  if (is_first) send_question(id, channel);
  return true;
}

// One question of a channel is under way at a time, so that versions keep the order in which this
// node's clients publish them.
void Channels::ask(const ObjectId& id, Question question) {
  Channel& channel = channels_[id];
  channel.questions.push_back(std::move(question));
  ++requests_;
  if (channel.questions.size() == 1) send_question(id, channel);
  settle(id);
}

// A question for the latest version gets its ticket when it leaves. Its answer then serves all that
// were asked before, which have lower tickets.
void Channels::send_question(const ObjectId& id, Channel& channel) {
  if (channel.questions.empty()) return;
  Question& first = channel.questions.front();
  if (first.ask == ChannelAsk::kLatest) first.ticket = ++last_ticket_;
  engine_.outgoing.send(engine_.peers.home_of(id),
                        ChannelQuestion{id, first.ticket, first.ask, first.version});
}

// ---- what this node keeps ----

void Channels::claim(const ObjectId& id, const Channel& channel) {
  engine_.outgoing.send(engine_.peers.home_of(id),
                        ChannelClaim{id, channel.term, channel.newest, channel.is_subscribed,
                                     channel.visible.number});
}

void Channels::subscribe(const ObjectId& id, Channel& channel, bool wants) {
  channel.unneeded_news = 0;
  if (channel.is_subscribed == wants) return;
  channel.is_subscribed = wants;
  claim(id, channel);
}

void Channels::keep(Channel& channel, const Version& version) {
  if (!version.exists() || version.number <= channel.newest.number) return;
  live_ -= channel.is_live() ? 1 : 0;
  channel.newest = version;
  channel.term = std::max(channel.term, version.number.term);
  live_ += channel.is_live() ? 1 : 0;
  if (channel.is_live()) return;
  readers_ -= channel.readers.size();
  channel.readers.clear();
}

// Lets this node's clients see a version that is visible.
void Channels::show(Channel& channel, const Version& version) {
  if (!version.exists() || version.number <= channel.visible.number) return;
  keep(channel, version);
  channel.visible = version;
  std::erase_if(channel.watches, [&](const Watch& watch) {
    if (version.number <= watch.newer_than) return false;
    engine_.outgoing.reply(watch.waiter, VersionSeen{version});
    --requests_;
    return true;
  });
}

// Finds the channel's place after any change: forgets one that is blank and of which no client
// asks, and the one that is idle for longest where too many are.
void Channels::settle(const ObjectId& id) {
  const auto found = channels_.find(id);
  if (found == channels_.end()) return;
  Channel& channel = found->second;
  if (channel.idle_number > 0) idle_.erase(std::exchange(channel.idle_number, 0));
  if (channel.is_used()) return;
  if (channel.is_blank()) {
    channels_.erase(found);
    return;
  }
  channel.idle_number = ++last_idle_;
  idle_.emplace(channel.idle_number, id);
  if (idle_.size() <= engine_.config.channels_max) return;
  const ObjectId oldest = idle_.begin()->second;
  idle_.erase(idle_.begin());
  channels_.erase(oldest);
  engine_.channel_home.forget(oldest);
}

// ---- from the home ----

// A home has at most as many live channels as the cluster may have. Several homes may admit the
// last ones at the same time.
void Channels::handle_offer(NodeId from, const VersionOffer& offer) {
  const ObjectId& id = offer.channel;
  if (from != engine_.peers.home_of(id)) return;
  const bool is_new = !channels_.contains(id);
  if (is_new && live_ >= engine_.config.channels_max + kViewMembersMax) return;
  Channel& channel = channels_[id];
  const bool knows_more = offer.term < channel.term || offer.newest.number < channel.newest.number;
  const bool lacks_it = offer.is_bare && offer.newest.number != channel.newest.number;
  if (knows_more || lacks_it) {
    claim(id, channel);
  } else {
    channel.term = offer.term;
    keep(channel, offer.newest);
    engine_.outgoing.send(from, VersionAck{id, offer.round});
  }
  settle(id);
}

void Channels::handle_news(NodeId from, const VersionNews& news) {
  const auto found = channels_.find(news.channel);
  if (from != engine_.peers.home_of(news.channel) || found == channels_.end()) return;
  Channel& channel = found->second;
  const bool is_needed = !channel.watches.empty();
  show(channel, news.version);
  if (is_needed) channel.unneeded_news = 0;
  if (!is_needed && ++channel.unneeded_news > kUnneededNewsMax) {
    subscribe(news.channel, channel, false);
  }
  settle(news.channel);
}

void Channels::handle_answer(NodeId from, const ChannelAnswer& answer) {
  const auto found = channels_.find(answer.channel);
  if (from != engine_.peers.home_of(answer.channel) || found == channels_.end()) return;
  Channel& channel = found->second;
  if (channel.questions.empty() || channel.questions.front().ticket != answer.ticket) return;
  const Question question = std::move(channel.questions.front());
  channel.questions.pop_front();
  --requests_;
  const bool is_done = answer.outcome == ChannelOutcome::kDone;
  if (is_done && question.ask == ChannelAsk::kLatest) show(channel, answer.newest);
  if (is_done && question.ask == ChannelAsk::kPublish) {
    show(channel, question.version);
  }
  reply(answer.channel, channel, question, answer);
  if (question.ask == ChannelAsk::kLatest) end_latest(channel, question.ticket);
  send_question(answer.channel, channel);
  settle(answer.channel);
}

void Channels::reply(const ObjectId& id, const Channel& channel, const Question& question,
                     const ChannelAnswer& answer) {
  const Waiter& waiter = question.waiter;
  if (answer.outcome == ChannelOutcome::kFull) {
    return engine_.outgoing.reply(
        waiter, Error{Code::kStoreFull, "channel " + short_name(id) +
                                            " can't begin: the cluster has its limit of " +
                                            std::to_string(engine_.config.channels_max) +
                                            " channels; unpublish some of them"});
  }
  if (question.ask == ChannelAsk::kTakeTerm) {
    return engine_.outgoing.reply(waiter,
                                  TermTaken{answer.term, answer.newest.number, answer.before});
  }
  if (question.ask == ChannelAsk::kLatest) {
    const bool is_newer = channel.visible.number > question.newer_than;
    return engine_.outgoing.reply(waiter, VersionSeen{is_newer ? channel.visible : Version{}});
  }
  if (answer.outcome == ChannelOutcome::kDone) return engine_.outgoing.reply(waiter, Done{});
  std::string text = describe_refusal(short_name(id), question.version, answer);
  if (answer.outcome == ChannelOutcome::kNotGiven) {
    return engine_.outgoing.reply(waiter, Error{Code::kInvalidArgument, std::move(text)});
  }
  engine_.outgoing.reply(
      waiter, VersionRefused{answer.newest.number, answer.outcome == ChannelOutcome::kTaken,
                             std::move(text)});
}

// Answers the questions for the latest version that were asked before one that is answered.
void Channels::end_latest(Channel& channel, std::uint64_t upto_ticket) {
  std::erase_if(channel.questions, [&](const Question& question) {
    if (question.ask != ChannelAsk::kLatest || question.ticket > upto_ticket) return false;
    const bool is_newer = channel.visible.number > question.newer_than;
    engine_.outgoing.reply(question.waiter, VersionSeen{is_newer ? channel.visible : Version{}});
    --requests_;
    return true;
  });
}

// ---- repetition ----

void Channels::repeat_claims(std::optional<NodeId> only_to) {
  for (auto& [id, channel] : channels_) {
    if (!engine_.peers.is_for(id, only_to)) continue;
    if (!channel.is_blank() || channel.is_subscribed) claim(id, channel);
    if (channel.questions.empty()) continue;
    const Question& first = channel.questions.front();
    engine_.outgoing.send(engine_.peers.home_of(id),
                          ChannelQuestion{id, first.ticket, first.ask, first.version});
  }
}

void Channels::add_stats(EngineStats& stats) const {
  stats.channels = channels_.size();
  stats.channel_requests = requests_;
}

void Channels::check_invariants() const {
  std::size_t live = 0;
  std::size_t requests = 0;
  std::size_t idle = 0;
  std::size_t readers = 0;
  for (const auto& [id, channel] : channels_) {
    live += channel.is_live() ? 1 : 0;
    requests += channel.watches.size() + channel.questions.size();
    readers += channel.readers.size();
    HOPLITE_CHECK(channel.readers.empty() || channel.is_live());
    HOPLITE_CHECK(channel.visible.number <= channel.newest.number);
    HOPLITE_CHECK(channel.newest.number.term <= channel.term);
    HOPLITE_CHECK(channel.watches.empty() || channel.is_subscribed);
    HOPLITE_CHECK(channel.is_used() == (channel.idle_number == 0));
    HOPLITE_CHECK(channel.is_used() || !channel.is_blank());
    if (channel.idle_number == 0) continue;
    ++idle;
    HOPLITE_CHECK(idle_.at(channel.idle_number) == id);
  }
  HOPLITE_CHECK(live == live_);
  HOPLITE_CHECK(requests == requests_);
  HOPLITE_CHECK(readers == readers_ && readers <= kChannelReadersMax);
  HOPLITE_CHECK(idle == idle_.size());
  HOPLITE_CHECK(idle <= engine_.config.channels_max);
}

}  // namespace hoplite

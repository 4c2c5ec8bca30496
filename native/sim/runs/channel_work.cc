// SPDX-License-Identifier: Apache-2.0
#include "sim/runs/channel_work.h"

#include <string>
#include <utility>

#include "sim/model/content.h"

namespace hoplite::sim {
namespace {

constexpr std::uint64_t kFirstChannel = 1ULL << 32;  // no object of a run has such a number
constexpr std::uint64_t kChannels = 2;
constexpr std::size_t kPublishersMax = 6;
constexpr std::size_t kReadersMax = 8;
constexpr std::uint64_t kPayloadMax = 300;
constexpr std::uint64_t kFirstCopied = 2ULL << 32;
constexpr std::uint64_t kCopiedBytesMax = 60_KiB;  // small and large objects

}  // namespace

std::optional<std::size_t> ChannelWork::some_node() {
  std::vector<std::size_t> live;
  for (std::size_t node = 0; node < cluster_.size(); ++node) {
    if (cluster_.is_alive(node)) live.push_back(node);
  }
  if (live.empty()) return std::nullopt;
  return live[prng_.below(live.size())];
}

ObjectId ChannelWork::some_channel() {
  return object_named(kFirstChannel + prng_.below(kChannels));
}

void ChannelWork::step() {
  const std::uint64_t dice = prng_.below(100);
  if (dice < 12) {
    take_term();
  } else if (dice < 60) {
    publish();
  } else {
    read();
  }
}

void ChannelWork::take_term() {
  const auto node = some_node();
  if (!node) return;
  const ObjectId channel = some_channel();
  const ClientId client{1 + prng_.below(3)};
  if (publishers_.size() >= kPublishersMax) publishers_.pop_front();
  Request& take = cluster_.ask_channel(Verb::kTakeTerm, *node, channel, {.client = client});
  publishers_.push_back({channel, *node, &take, 0, nullptr});
}

// A publisher does not always wait until its last version is visible. One whose node has died goes
// on elsewhere, and says its last version again.
void ChannelWork::publish() {
  if (publishers_.empty()) return;
  Publisher& publisher = publishers_[prng_.below(publishers_.size())];
  if (!publisher.take->has_value()) return;
  const bool moves = !cluster_.is_alive(publisher.node);
  if (moves) {
    const auto node = some_node();
    if (!node) return;
    publisher.node = *node;
  }
  if (put_copies(publisher)) return;
  ChannelOptions options;
  options.client = publisher.take->client;
  const bool repeats = publisher.last != nullptr && (moves || prng_.chance(10));
  if (repeats) {
    options.version = publisher.last->version;
  } else {
    publisher.last_n += 1 + prng_.below(3);
    options.version.number = {publisher.take->taken.term, publisher.last_n};
    options.version.is_end = prng_.chance(5);
    const std::string text = std::to_string(prng_.next());
    options.version.payload = name_copies(publisher);
    if (!options.version.payload.empty()) {
      options.version.is_end = false;
    } else if (!options.version.is_end) {
      while (options.version.payload.size() < prng_.below(kPayloadMax)) {
        options.version.payload += text;
      }
    }
  }
  publisher.last =
      &cluster_.ask_channel(Verb::kPublish, publisher.node, publisher.channel, options);
}

// Puts what the publisher's next version will name, or lets that put go on. Returns false if the
// publisher may publish.
bool ChannelWork::put_copies(Publisher& publisher) {
  if (publisher.keep != nullptr && publisher.keep->is_pending()) return prng_.chance(80);
  if (publisher.keep != nullptr || !prng_.chance(40)) return false;
  const ObjectId object = object_named(kFirstCopied + copied_.size());
  copied_.push_back(object);
  const std::uint64_t size_bytes = prng_.below(kCopiedBytesMax);
  const Request& put = cluster_.put(publisher.node, object,
                                    {.size_bytes = size_bytes, .client = publisher.take->client});
  const auto copies = static_cast<std::uint8_t>(1 + prng_.below(kCopiesMax));
  publisher.keep = &cluster_.keep(put, copies);
  if (copied_.size() > 3 && prng_.chance(30)) {
    cluster_.erase(publisher.node, copied_[prng_.below(copied_.size() - 2)]);
  }
  return true;
}

// Returns the payload of a version that names what enough nodes keep; nothing if there is none.
std::string ChannelWork::name_copies(Publisher& publisher) {
  const Request* const keep = std::exchange(publisher.keep, nullptr);
  if (keep == nullptr || !keep->has_value()) return "";
  const std::string payload = "object " + short_name(keep->object);
  by_payload_.emplace(payload, keep->object);
  return payload;
}

void ChannelWork::read() {
  const auto node = some_node();
  if (!node) return;
  if (readers_.empty() || (readers_.size() < kReadersMax && prng_.chance(30))) {
    readers_.push_back({some_channel(), *node, ClientId{1 + prng_.below(3)}, {}, nullptr});
  }
  Reader& reader = readers_[prng_.below(readers_.size())];
  if (prng_.chance(25)) {
    cluster_.ask_channel(Verb::kWatch, *node, reader.channel,
                         {.newer_than = reader.seen, .wait = false, .client = reader.client});
    return;
  }
  watch(reader);
}

// A reader whose node has died comes back elsewhere, with what it knows.
void ChannelWork::watch(Reader& reader) {
  if (reader.watch != nullptr) {
    if (reader.watch->is_pending()) return;
    if (reader.watch->has_value()) {
      reader.seen = reader.watch->version.number;
      read_copies(reader);
    }
  }
  if (!cluster_.is_alive(reader.node)) {
    const auto node = some_node();
    if (!node) return;
    reader.node = *node;
  }
  reader.watch =
      &cluster_.ask_channel(Verb::kWatch, reader.node, reader.channel,
                            {.newer_than = reader.seen, .wait = true, .client = reader.client});
}

// A reader of a version gets the object that it names.
void ChannelWork::read_copies(const Reader& reader) {
  const auto named = by_payload_.find(reader.watch->version.payload);
  const auto node = cluster_.is_alive(reader.node) ? std::optional(reader.node) : some_node();
  if (named == by_payload_.end() || !node) return;
  cluster_.get(*node, named->second, true, reader.client);
}

void ChannelWork::watch_all() {
  for (Reader& reader : readers_) watch(reader);
}

bool ChannelWork::is_owed(const Request& request) const {
  if (!request.is_pending()) return false;
  if (!request.waits || request.cancelled) return true;
  return cluster_.channels().has_newer(request.object, request.newer_than);
}

}  // namespace hoplite::sim

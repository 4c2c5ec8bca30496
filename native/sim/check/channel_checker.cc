// SPDX-License-Identifier: Apache-2.0
#include "sim/check/channel_checker.h"

namespace hoplite::sim {
namespace {

std::string describe(const VersionNumber& number) {
  return std::to_string(number.term.epoch.value) + "." + std::to_string(number.term.counter) + "#" +
         std::to_string(number.n);
}

}  // namespace

void ChannelChecker::note_request(const Request& request, std::size_t members) {
  asked_[request.id] = {members / 2 + 1, deaths_};
  Known& known = channels_[request.object];
  if (request.verb == Verb::kPublish) {
    known.contents.emplace(request.version.number, request.version);
  }
  if (request.verb == Verb::kTakeTerm) ++known.takes;
}

// Deaths count from the question on: those that confirm may die before the answer is there.
ChannelChecker::Promise ChannelChecker::promise_to(const Request& request) const {
  const Asked& asked = asked_.at(request.id);
  return {*request.answered, asked.majority, asked.deaths_before};
}

std::optional<std::string> ChannelChecker::check_answer(const Request& request) {
  Known& known = channels_[request.object];
  if (request.error) return check_error(request, known);
  switch (request.verb) {
    case Verb::kTakeTerm:
      return check_term(request, known);
    case Verb::kPublish:
      return check_publication(request, known);
    default:
      return check_seen(request, known);
  }
}

std::optional<std::string> ChannelChecker::check_term(const Request& request, Known& known) {
  const Term& term = request.taken.term;
  const auto [at, is_new] = known.taken.emplace(term, promise_to(request));
  if (!is_new) return "the term was given to another publisher";
  for (const auto& [other, promise] : known.taken) {
    if (other > term && promise.answered < request.asked && holds(promise)) {
      return "an older term than one that was given before";
    }
    const bool is_between = other > request.taken.before && other < term;
    if (is_between && promise.answered < request.asked && holds(promise)) {
      return "the term before it is another one";
    }
  }
  for (const auto& [number, promise] : known.published) {
    if (number.term > term && promise.answered < request.asked && holds(promise)) {
      return "an older term than that of a version which was published before";
    }
  }
  return std::nullopt;
}

std::optional<std::string> ChannelChecker::check_publication(const Request& request, Known& known) {
  const VersionNumber& number = request.version.number;
  for (const auto& [other, promise] : known.published) {
    if (other > number && promise.answered < request.asked && holds(promise)) {
      return "published after " + describe(other);
    }
  }
  for (const auto& [term, promise] : known.taken) {
    if (term > number.term && promise.answered < request.asked && holds(promise)) {
      return "published though a newer term was taken";
    }
  }
  const auto [at, is_new] = known.published.emplace(number, promise_to(request));
  if (!is_new && !holds(at->second)) at->second = promise_to(request);
  ++published_;
  return std::nullopt;
}

std::optional<std::string> ChannelChecker::check_seen(const Request& request, const Known& known) {
  const VersionNumber& seen = request.version.number;
  if (request.waits && !request.version.exists()) return "no version, though it waits for one";
  if (request.version.exists()) {
    if (seen <= request.newer_than) return describe(seen) + " is not newer than what it knows";
    const auto content = known.contents.find(seen);
    if (content == known.contents.end()) return describe(seen) + " was published by nobody";
    if (content->second != request.version) return describe(seen) + " has other contents";
  }
  if (request.waits) return std::nullopt;
  for (const auto& [number, promise] : known.published) {
    if (number > seen && number > request.newer_than && promise.answered < request.asked &&
        holds(promise)) {
      return "misses " + describe(number) + ", which was published before";
    }
  }
  return std::nullopt;
}

std::optional<std::string> ChannelChecker::check_error(const Request& request, const Known& known) {
  const std::string& text = request.error->text;
  if (text.empty()) return "an error without a text";
  switch (request.error->code) {
    case Code::kCancelled:
      if (!request.cancelled) return "cancelled, but by nobody: " + text;
      return std::nullopt;
    case Code::kVersionRefused:
      if (request.is_taken && known.takes < 2) return "nobody else took a term: " + text;
      return std::nullopt;
    default:
      return "an error that nothing here explains: " + text;
  }
}

bool ChannelChecker::has_newer(const ObjectId& channel, const VersionNumber& than) const {
  const auto known = channels_.find(channel);
  if (known == channels_.end()) return false;
  for (const auto& [number, promise] : known->second.published) {
    if (number > than && holds(promise)) return true;
  }
  return false;
}

}  // namespace hoplite::sim

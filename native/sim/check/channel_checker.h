// SPDX-License-Identifier: Apache-2.0
// Checks from outside what must hold of version channels (decision 43): versions grow at each
// reader, one number has one content, a published version is never missed by a later question for
// the latest one, and no older term publishes after a newer one. Nothing is promised of decisions
// that came before a majority of the members died, because only a majority keeps them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "sim/model/request.h"

namespace hoplite::sim {

class ChannelChecker {
 public:
  // `members`: live ones of the view in which it is decided, or fewer. REQUIRES: the request stays
  // where it is.
  void note_request(const Request& request, std::size_t members);
  void note_death() { ++deaths_; }  // of any node's life
  // Returns what is wrong with the answer that the request has got, if anything.
  [[nodiscard]] std::optional<std::string> check_answer(const Request& request);
  // True if a version that is newer was published, and can't be lost by now.
  [[nodiscard]] bool has_newer(const ObjectId& channel, const VersionNumber& than) const;
  [[nodiscard]] std::size_t published_count() const { return published_; }

 private:
  struct Promise {  // that a majority keeps it
    Instant answered;
    std::size_t majority = 0;
    std::uint64_t deaths_before = 0;
  };
  struct Known {
    std::map<VersionNumber, Version> contents;  // that publishers asked for
    std::map<VersionNumber, Promise> published;
    std::map<Term, Promise> taken;
    std::size_t takes = 0;  // asked for
  };
  struct Asked {
    std::size_t majority = 0;
    std::uint64_t deaths_before = 0;
  };
  [[nodiscard]] bool holds(const Promise& promise) const {
    return deaths_ - promise.deaths_before < promise.majority;
  }
  [[nodiscard]] Promise promise_to(const Request& request) const;
  [[nodiscard]] std::optional<std::string> check_term(const Request& request, Known& known);
  [[nodiscard]] std::optional<std::string> check_publication(const Request& request, Known& known);
  [[nodiscard]] std::optional<std::string> check_seen(const Request& request, const Known& known);
  [[nodiscard]] static std::optional<std::string> check_error(const Request& request,
                                                              const Known& known);

  std::map<ObjectId, Known> channels_;
  std::map<RequestId, Asked> asked_;
  std::uint64_t deaths_ = 0;
  std::size_t published_ = 0;
};

}  // namespace hoplite::sim

// SPDX-License-Identifier: Apache-2.0
// One request of a simulated client to its node, and its outcome. Plain data. Cluster owns it and
// fills it in; scenarios and the checker read it.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "plan/messages.h"

namespace hoplite::sim {

enum class Verb : std::uint8_t {
  kPut,
  kGet,
  kDelete,
  kReduce,
  kOrphan,
  kKeep,
  kTakeTerm,
  kPublish,
  kWatch
};

// True of a request about a channel, whose id is the request's `object`.
constexpr bool is_of_channel(Verb verb) { return verb >= Verb::kTakeTerm; }

struct Request {
  Verb verb = Verb::kGet;
  std::size_t node = 0;  // index in the cluster
  Incarnation node_life;
  ClientId client;
  RequestId id;
  RequestId sealing;        // of a large put: the id of its last WroteCommand, which Done answers
  ObjectId object;          // of a reduce: the target
  Incarnation incarnation;  // of a put: the attempt; of a delete: up to which
  std::vector<Part> parts;  // of a put, or of a reduce's share
  bool exists = false;      // of a get: True if the client knows that the object was put
  std::uint8_t copies = 0;  // of a keep
  std::uint64_t upto_bytes = kAllBytes;  // of a get: the leading bytes that it waits for
  Instant asked;
  std::optional<Instant> answered;
  bool abandoned = false;  // True if the client or its node is gone, so that no answer is owed
  bool cancelled = false;
  std::optional<Error> error;

  Bytes bytes;  // of a put: what is put; of a get: what came
  Fetched fetched;
  std::uint32_t hops = 0;  // links that it has crossed, and what it was made of, at most
  bool pinned = false;     // a mapping is held
  Extent extent;           // of a put: where it is written
  std::uint32_t block_bytes = 0;
  std::uint64_t written = 0;
  bool maps = false;  // a put whose writer goes on looking at the range

  ReduceOp op = ReduceOp::kSum;
  std::uint32_t source_count = 0;
  std::uint32_t count = 0;
  bool deterministic = false;
  Share share;
  std::vector<ReduceSource> sources;   // in the order of arrival
  std::vector<std::uint32_t> members;  // as answered
  std::vector<std::uint32_t> lost;     // as answered, if too few sources are left

  Version version;           // published, or as answered to a watch
  VersionNumber newer_than;  // of a watch
  bool waits = false;        // of a watch: for a newer version
  TermTaken taken;           // as answered
  bool is_taken = false;     // of a publication: refused because of a newer term

  [[nodiscard]] bool is_pending() const { return !answered && !abandoned; }
  [[nodiscard]] bool has_value() const { return answered && !error; }
  [[nodiscard]] Code code() const { return error ? error->code : Code::kOk; }
};

}  // namespace hoplite::sim

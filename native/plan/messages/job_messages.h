// SPDX-License-Identifier: Apache-2.0
// Jobs of the helper threads of node/, and their results. The spiller moves bytes between the arena
// and the file of spilled objects. The rebuilder makes an object of a base and deltas (decision
// 42), or of runs of a source (decision 48), as a client or a peer asks. Each does its jobs in
// order, so a range may be given back, and taken anew, while older jobs name it. Plain data;
// reached through messages.h.
#pragma once

#include <string>
#include <vector>

#include "plan/messages/types.h"

namespace hoplite {

using SpillId = Id<struct SpillTag, std::uint64_t>;  // one object's way into the file or back

enum class SpillWay : std::uint8_t { kWrite, kRead, kFree };
struct SpillJob {  // an Action; kFree has no answer
  SpillId spill;
  ObjectId object;
  SpillWay way = SpillWay::kWrite;
  Extent arena;  // as long as `file`; kFree: none
  Extent file;
  std::uint64_t whole_bytes = 0;  // of all the spill's steps together; kFree: 0
};
struct SpillDone {  // an IoEvent
  SpillId spill;
  std::string error;  // names the file system and errno; empty: it's done
};

struct Attempt {  // one attempt's bytes of an object
  ObjectId object;
  Incarnation incarnation;
  bool operator==(const Attempt&) const = default;
};

// A Command: a get of an object that was put, answered as GetCommand. A node that has all of the
// base in its arena makes the object of it and the deltas. Any other node, and one where the making
// fails, fetches the object whole.
struct RebuildCommand {
  ObjectId object;
  Incarnation incarnation;
  ObjectMeta meta;           // of the object, with its block_bytes
  std::uint32_t crc32c = 0;  // of its bytes: a recipe may name the deltas of another version
  Attempt base;
  std::vector<Attempt> deltas;  // the oldest first: each is applied to what the last one made
};

// `count` ranges of a source, evenly spaced, that stand one behind the other in an excerpt.
struct StridedRuns {
  std::uint64_t into = 0;  // offset in the excerpt
  std::uint64_t from = 0;  // offset of the first one in the source
  std::uint64_t run_bytes = 0;
  std::uint64_t stride_bytes = 0;  // from one to the next in the source
  std::uint64_t count = 0;
  bool operator==(const StridedRuns&) const = default;
};

// An object that is made of another one's bytes (decision 48). Its id is a hash of all that is
// here, so equal ids have equal bytes. Bytes between its runs are 0.
struct Excerpt {
  ObjectId object;
  ObjectMeta meta;  // its maker fills in block_bytes
  Attempt source;
  std::vector<StridedRuns> runs;  // in the order of `into`, and apart there
  bool operator==(const Excerpt&) const = default;
};

// A Command: a get of an excerpt, which this node makes, or asks a holder of the source to make.
// Without runs it is a question what the source is, answered by a Fetched without bytes.
struct ExcerptCommand {
  Excerpt excerpt;
  bool exists = false;  // True if the source was put: without a holder it is lost, not awaited
};
struct MakeExcerpt {  // a PeerMessage to a holder of the source; a Lost says that it can't
  Excerpt excerpt;
  bool operator==(const MakeExcerpt&) const = default;
};

using RebuildId = Id<struct RebuildTag, std::uint64_t>;  // one attempt of this node at one object

enum class RebuildWay : std::uint8_t { kMake, kForget };
// An Action. kMake writes the next `step_bytes` or so of the object into `target`. It compares them
// with the checksums in the deltas, or copies them from `base` as `runs` say. kForget ends a
// rebuild that is not whole, and has no answer.
struct RebuildJob {
  RebuildId rebuild;
  ObjectId object;
  RebuildWay way = RebuildWay::kMake;
  Extent base;
  std::vector<Extent> deltas;  // the oldest first
  Extent target;               // as long as the base, except for an excerpt
  std::uint32_t crc32c = 0;    // of all of the object
  std::uint64_t step_bytes = 0;
  std::vector<StridedRuns> runs = {};  // of an excerpt, which has no deltas and no checksum
};
struct RebuildDone {  // an IoEvent: a step has ended
  RebuildId rebuild;
  bool is_whole = false;  // True after the last step
  std::string error;      // names what is wrong with the base or a delta; empty: it's done
};

}  // namespace hoplite

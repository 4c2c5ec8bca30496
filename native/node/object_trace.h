// SPDX-License-Identifier: Apache-2.0
// The history of each object on this node, for `hoplite-ray trace`, in fixed memory. Every command,
// event and action that names an object becomes a Moment in a ring. Gets have a ring of their own,
// so that many gets push out no puts and transfers. Cost: one branch each when off;
// benchmarks/overhead.py shows the cost when on. With the option `trace` it prints lines on
// standard error, `trace <object in hex> <kind>`, for examples/follow_a_block.py. Reactor thread
// only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "node/moment_ring.h"
#include "plan/messages.h"

namespace hoplite {

class ObjectTrace {
 public:
  // Keeps `moments_max` moments of puts and transfers and half as many gets.
  ObjectTrace(std::int64_t moments_max, bool prints);

  // `process` is the client's process id.
  void record(const Command& command, std::uint32_t process, Instant now) {
    if (is_on_) record_command(command, process, now);
  }
  void record(const IoEvent& event, Instant now) {
    if (is_on_) record_event(event, now);
  }
  void record(const Action& action, Instant now) {
    if (is_on_) record_action(action, now);
  }
  [[nodiscard]] Remembered moments_of(const ObjectPrefix& prefix) const;

 private:
  struct PendingReply {  // by a client, and not answered yet
    ClientId client;
    RequestId request;
    Moment moment;  // of its answer, if that is no error
  };
  struct Receive {
    Moment moment;  // as kReceiving
    ObjectMeta meta;
    Instant first = {};
    Instant last = {};
    std::uint64_t bytes = 0;
  };

  struct Spill {
    Moment moment;  // as kSpilling or kReading
    Extent file;    // all of it
    std::uint64_t done_bytes = 0;
    std::uint64_t step_bytes = 0;  // of the step that the disk works on; 0: of none
    bool is_cut = false;  // the file's range was freed amid a step, so no further step comes
  };

  void record_command(const Command& command, std::uint32_t process, Instant now);
  void record_event(const IoEvent& event, Instant now);
  void record_action(const Action& action, Instant now);
  void record_message_in(const MessageIn& in, Instant now);
  void record_message_out(const SendMessage& out, Instant now);
  void record_block(const BlockLanded& landed, Instant now);
  void record_close(const CloseReceive& close, Instant now);
  void record_reply(const ReplyToClient& reply, Instant now);
  void record_spill(const SpillJob& job, Instant now);
  void record_spill_done(const SpillDone& done, Instant now);
  void record_freed(const SpillJob& job, Instant now);
  void end_spill(SpillId spill, Code code, Instant now);
  void keep(const Moment& moment);
  [[nodiscard]] PendingReply& reply_slot(ClientId client, RequestId request);

  bool is_on_;
  bool keeps_;
  bool prints_;
  MomentRing lives_;
  MomentRing gets_;
  MomentRing peers_;  // deaths and lost links
  // By a hash of client and request. A later request may take the place of an earlier one, whose
  // answer is then missing: a client with very many pending requests sees only some of them.
  std::vector<PendingReply> pending_;
  std::map<std::pair<NodeId, TransferId>, Receive> receives_;  // open ones
  std::map<SpillId, Spill> spills_;                            // under way
};

}  // namespace hoplite

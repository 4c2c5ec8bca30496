// SPDX-License-Identifier: Apache-2.0
// This node as a home: it passes what other nodes say of objects and reduces to the directory and
// to the planner of reduces, and sends out what these two decide. Small objects travel as payload:
// the home keeps a copy of each, and pushes it along a tree of receivers (design decision 18).
// It has no table: those are Directory's and ReduceTree's.
#pragma once

#include <optional>

#include "plan/messages.h"
#include "plan/messages/parcel.h"

namespace hoplite {

struct Owners;

class Home {
 public:
  explicit Home(Owners& engine) : engine_(engine) {}

  // ---- to the home; `from` may be this node ----
  void handle_claim(NodeId from, const Claim& claim, Epoch epoch, Bytes payload);
  void handle_progress(NodeId from, const Progress& progress);
  void handle_delete(NodeId from, const Delete& remove);
  void handle_orphan(const Orphan& orphan);
  void handle_locate(NodeId from, const Locate& locate);
  void handle_reduce_want(NodeId from, const ReduceWant& want);
  void handle_reduce_report(NodeId from, const ReduceReport& report);

  // ---- from the home of a small object, and from the holder before this one ----
  void handle_push(const Push& push, Bytes payload);
  void handle_push_to(NodeId from, const PushTo& push);

  // Passes on one decision of the directory or of the planner. Returns false if there is none.
  bool settle_one();

 private:
  std::optional<Claim> copy_small(const Claim& claim, Bytes payload);
  void send_parcel(Parcel parcel);

  Owners& engine_;
};

}  // namespace hoplite

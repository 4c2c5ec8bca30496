// SPDX-License-Identifier: Apache-2.0
// All parts of one node's engine, and what they share: its configuration, the time of the turn, and
// the counters. A part owns its tables. The others call its named methods, or read through its
// const accessors. Single-threaded: Engine sets `now` and calls one handler at a time.
#pragma once

#include "plan/directory/directory.h"
#include "plan/engine/channels/channel_home.h"
#include "plan/engine/channels/channels.h"
#include "plan/engine/engine.h"
#include "plan/engine/home.h"
#include "plan/engine/jobs/excerpts.h"
#include "plan/engine/jobs/rebuilds.h"
#include "plan/engine/jobs/spills.h"
#include "plan/engine/keeping.h"
#include "plan/engine/objects.h"
#include "plan/engine/outgoing.h"
#include "plan/engine/overview.h"
#include "plan/engine/peers.h"
#include "plan/engine/reduces/calls.h"
#include "plan/engine/reduces/folds.h"
#include "plan/engine/transfers.h"
#include "plan/objects/inventory.h"
#include "plan/objects/loans.h"
#include "plan/reduce/reduce_tree.h"

namespace hoplite {

struct Owners {
  Owners(const EngineConfig& of, std::uint64_t seed)
      : config(of),
        inventory(of.arena_bytes, of.admission_grace, of.when_full),
        directory(of),
        reduces(of),
        transfers(*this, seed) {}
  Owners(const Owners&) = delete;
  Owners& operator=(const Owners&) = delete;

  const EngineConfig config;
  Instant now;
  EngineStats counters;  // the part that counts one changes it

  Inventory inventory;  // space in the arena
  Loans loans;          // of that space, to receives that are closed
  Directory directory;  // the shard of this node
  ReduceTree reduces;   // planned here

  Outgoing outgoing{*this};
  Peers peers{*this};
  Home home{*this};
  Objects objects{*this};
  Keeping keeping{*this};
  Spills spills{*this};
  Rebuilds rebuilds{*this};
  Excerpts excerpts{*this};
  Transfers transfers;
  Folds folds{*this};
  Calls calls{*this};
  Channels channels{*this};
  ChannelHome channel_home{*this};
  Overview overview{*this};
};

}  // namespace hoplite

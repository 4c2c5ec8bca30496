// SPDX-License-Identifier: Apache-2.0
// The orders of LinkRules to the owner of the connections. Plain data.
#pragma once

#include <cstdint>
#include <variant>

#include "io/liveness/liveness_rules.h"
#include "plan/messages.h"

namespace hoplite {

enum class DeathCause : std::uint8_t {
  kEnded,            // its connections of liveness have ended without Goodbye
  kOutOfReach,       // the network has ended the last of them
  kFrozen,           // silent for too long
  kStaysDown,        // no life of the link came up within the limit
  kRefused,          // each of its addresses refuses a dial
  kNextLifeAnswers,  // at its address
  kNextLifeDials,
};
// True if the process has ended for sure; else the view decides.
[[nodiscard]] constexpr bool is_certain(DeathCause cause) {
  return cause != DeathCause::kOutOfReach && cause != DeathCause::kFrozen &&
         cause != DeathCause::kStaysDown;
}

// The owner answers with LinkRules::handle_dialling or handle_refused, or with neither.
struct DialRail {
  NodeId node;
  RailId rail;
  ConnectionKind kind = ConnectionKind::kControl;
  bool operator==(const DialRail&) const = default;
};
// Dials only to learn whether a process listens there. The answer is handle_taken or
// handle_refused.
struct ProbeRail {
  NodeId node;
  RailId rail;
  bool operator==(const ProbeRail&) const = default;
};
struct SayGoodbye {
  NodeId node;
  std::uint64_t control = 0;
  bool operator==(const SayGoodbye&) const = default;
};
struct CloseConnection {
  std::uint64_t token = 0;
  bool operator==(const CloseConnection&) const = default;
};
struct ForgetPeer {  // for the liveness thread, which says Goodbye where something is open
  NodeId node;
  Incarnation upto;
  bool operator==(const ForgetPeer&) const = default;
};
struct ReportUp {
  NodeId node;
  Incarnation incarnation;
  bool operator==(const ReportUp&) const = default;
};
struct ReportDown {
  NodeId node;
  bool operator==(const ReportDown&) const = default;
};
struct ReportDead {
  NodeId node;
  Incarnation incarnation;
  DeathCause cause = DeathCause::kEnded;
  bool operator==(const ReportDead&) const = default;
};
struct ReportRail {  // for the log
  NodeId node;
  RailId rail;
  Verdict verdict = Verdict::kRailLost;  // or kRailCut
  bool operator==(const ReportRail&) const = default;
};

using LinkAction = std::variant<DialRail, ProbeRail, SayGoodbye, CloseConnection, ForgetPeer,
                                ReportUp, ReportDown, ReportDead, ReportRail>;

}  // namespace hoplite

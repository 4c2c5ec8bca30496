// The life of every object as lines on standard error, for people who follow one (option `trace`):
// `trace <object in hex> <kind>` for each command, event and action that names an object. Costs one
// branch each when off. Reactor thread only.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <utility>

#include "plan/messages.h"

namespace hoplite {

class ObjectTrace {
 public:
  explicit ObjectTrace(bool is_on) : is_on_(is_on) {}
  void hear(const Command& command) {
    if (is_on_) tell(command);
  }
  void hear(const IoEvent& event) {
    if (is_on_) tell(event);
  }
  void perform(const Action& action) {
    if (is_on_) tell(action);
  }

 private:
  void tell(const Command& command);
  void tell(const IoEvent& event);
  void tell(const Action& action);

  bool is_on_;
  // What a landed block and a reply do not name themselves.
  std::map<std::pair<NodeId, TransferId>, ObjectId> receives_;
  std::map<std::pair<ClientId, RequestId>, ObjectId> requests_;
};

}  // namespace hoplite

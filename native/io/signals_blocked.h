// SPDX-License-Identifier: Apache-2.0
// Blocks all signals of its thread while it lives. A thread that is started meanwhile inherits
// this, so signals stay with the process's own threads.
#pragma once

#include <signal.h>

namespace hoplite {

class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_{};
};

}  // namespace hoplite

// SPDX-License-Identifier: Apache-2.0
#include "client/fork_guard.h"

#include <pthread.h>

#include <mutex>
#include <set>

#include "base/check.h"
#include "client/attachment.h"

namespace hoplite {
namespace {

// Held across fork(2), so that the child finds both it and the list whole.
std::mutex mutex;

std::set<Attachment*>& attachments() {
  static auto* const kept = new std::set<Attachment*>;  // NOLINT: never destroyed, exit may fork
  return *kept;
}

void before_fork() {
  mutex.lock();
  for (Attachment* attachment : attachments()) attachment->before_fork();
}

void after_fork_in_parent() { mutex.unlock(); }

void after_fork_in_child() {
  for (Attachment* attachment : attachments()) attachment->after_fork_in_child();
  mutex.unlock();
}

}  // namespace

void guard_against_fork(Attachment* attachment) {
  static const int registered =
      ::pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
  HOPLITE_CHECK(registered == 0);
  const std::lock_guard guard(mutex);
  attachments().insert(attachment);
}

void leave_fork_guard(Attachment* attachment) {
  const std::lock_guard guard(mutex);
  attachments().erase(attachment);
}

}  // namespace hoplite

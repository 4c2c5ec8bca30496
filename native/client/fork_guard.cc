// SPDX-License-Identifier: Apache-2.0
#include "client/fork_guard.h"

#include <pthread.h>
#include <sys/mman.h>

#include <map>
#include <mutex>
#include <set>

#include "base/check.h"
#include "client/attachment.h"

namespace hoplite {
namespace {

// Held across fork(2), so that the child finds both it and the lists whole.
std::mutex mutex;

std::set<Attachment*>& attachments() {
  static auto* const kept = new std::set<Attachment*>;  // NOLINT: never destroyed, exit may fork
  return *kept;
}

std::map<std::byte*, std::size_t>& shared_mappings() {
  static auto* const kept = new std::map<std::byte*, std::size_t>;  // NOLINT: as attachments()
  return *kept;
}

void before_fork() {
  mutex.lock();
  for (Attachment* attachment : attachments()) attachment->before_fork();
}

void after_fork_in_parent() { mutex.unlock(); }

void after_fork_in_child() {
  for (const auto& [at, size_bytes] : shared_mappings()) {
    void* const zeros = ::mmap(at, size_bytes, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    if (zeros == MAP_FAILED) ::munmap(at, size_bytes);
  }
  shared_mappings().clear();
  for (Attachment* attachment : attachments()) attachment->after_fork_in_child();
  mutex.unlock();
}

}  // namespace

// REQUIRES: an attachment is there, which has registered the handlers.
Result<Mapping> map_shared(int fd, std::uint64_t offset, std::uint64_t size_bytes) {
  const std::lock_guard guard(mutex);
  auto mapping = Mapping::open(fd, offset, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED);
  if (mapping) shared_mappings().emplace(mapping->bytes().data(), size_bytes);
  return mapping;
}

Result<void> make_private(Mapping& shared, int fd, std::uint64_t offset) {
  const std::lock_guard guard(mutex);
  auto replaced = shared.replace(fd, offset, PROT_READ | PROT_WRITE, MAP_PRIVATE);
  if (replaced) shared_mappings().erase(shared.bytes().data());
  return replaced;
}

void unmap_shared(Mapping& shared) {
  const std::lock_guard guard(mutex);
  shared_mappings().erase(shared.bytes().data());
  shared.reset();
}

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

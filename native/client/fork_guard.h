// SPDX-License-Identifier: Apache-2.0
// Guards the state that fork(2) must not copy. Tells every attachment of the process about a fork.
// In the child it replaces each shared mapping by private zeros, because the child could write
// through it into a range that the node has reused. Owns the lists of both. Any thread.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "io/memory/mapping.h"

namespace hoplite {

class Attachment;

void guard_against_fork(Attachment* attachment);
void leave_fork_guard(Attachment* attachment);

// Returns a writable shared mapping that no child inherits. REQUIRES: one of the other two
// functions ends it.
[[nodiscard]] Result<Mapping> map_shared(int fd, std::uint64_t offset, std::uint64_t size_bytes);
// Maps the same bytes privately in its place; children share it as any private mapping.
[[nodiscard]] Result<void> make_private(Mapping& shared, int fd, std::uint64_t offset);
void unmap_shared(Mapping& shared);

}  // namespace hoplite

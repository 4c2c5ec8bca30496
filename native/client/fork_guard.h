// What fork(2) must not copy as it is. Tells every attachment of the process when it forks; and in
// the child puts private zeros in the place of each shared mapping, through which it could write
// into whatever the node keeps there later. Owns the lists of both. Any thread.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/result.h"
#include "io/mapping.h"

namespace hoplite {

class Attachment;

void guard_against_fork(Attachment* attachment);
void leave_fork_guard(Attachment* attachment);

// A writable shared mapping that no child gets; it goes by one of the other two.
[[nodiscard]] Result<Mapping> map_shared(int fd, std::uint64_t offset, std::uint64_t size_bytes);
// Maps the same bytes privately in its place; children share it as any private mapping.
[[nodiscard]] Result<void> make_private(Mapping& shared, int fd, std::uint64_t offset);
void unmap_shared(Mapping& shared);

}  // namespace hoplite

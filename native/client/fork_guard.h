// Tells every attachment of the process when it forks. Owns the list of them. Any thread.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace hoplite {

class Attachment;

void guard_against_fork(Attachment* attachment);
void leave_fork_guard(Attachment* attachment);

}  // namespace hoplite

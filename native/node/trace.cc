// SPDX-License-Identifier: Apache-2.0
#include "node/trace.h"

#include <cinttypes>
#include <cstdio>

#include "base/check.h"

namespace hoplite {
namespace {

thread_local const Trace* installed = nullptr;

void print_installed() noexcept {
  if (installed != nullptr) installed->print();
}

}  // namespace

void Trace::install() {
  static const bool is_hooked = [] {  // once for all reactors of the process
    check_hook = print_installed;
    return true;
  }();
  static_cast<void>(is_hooked);
  installed = this;
}

void Trace::print() const noexcept {
  const std::size_t first = next_ > kEntries ? next_ - kEntries : 0;
  for (std::size_t i = first; i < next_; ++i) {
    const Entry& entry = entries_[i % kEntries];
    std::fprintf(stderr, "  %" PRId64 " ns  %s  %" PRIu64 "\n", entry.at.ns, entry.what,
                 entry.detail);
  }
}

}  // namespace hoplite

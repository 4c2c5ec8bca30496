// SPDX-License-Identifier: Apache-2.0
#include "io/bulk/shared_receives.h"

#include <algorithm>

#include "base/check.h"

namespace hoplite {

void SharedReceives::open(const OpenReceive& receive) {
  const std::lock_guard guard(mutex_);
  table_.open(receive);
}

bool SharedReceives::close(NodeId from, TransferId transfer) {
  const Key key{from, transfer};
  const std::lock_guard guard(mutex_);
  table_.close(from, transfer);
  if (std::ranges::find(written_, key) == written_.end()) return true;
  closed_.push_back(key);
  return false;
}

void SharedReceives::close_all(NodeId from) {
  const std::lock_guard guard(mutex_);
  HOPLITE_CHECK(std::ranges::find(written_, from, &Key::first) == written_.end());
  table_.close_all(from);
}

Placement SharedReceives::place(NodeId from, const BlockHeader& header) const {
  const std::lock_guard guard(mutex_);
  return table_.place(from, header);
}

std::size_t SharedReceives::senders() const {
  const std::lock_guard guard(mutex_);
  return table_.senders();
}

bool SharedReceives::begin_write(NodeId from, TransferId transfer) {
  const std::lock_guard guard(mutex_);
  if (!table_.is_open(from, transfer)) return false;
  written_.push_back({from, transfer});
  return true;
}

SharedReceives::Loan SharedReceives::end_write(NodeId from, TransferId transfer) {
  const Key key{from, transfer};
  const std::lock_guard guard(mutex_);
  const auto written = std::ranges::find(written_, key);
  HOPLITE_CHECK(written != written_.end());
  written_.erase(written);
  const auto closed = std::ranges::find(closed_, key);
  if (closed == closed_.end()) return Loan::kOpen;
  if (std::ranges::find(written_, key) != written_.end()) return Loan::kClosed;
  closed_.erase(closed);
  return Loan::kLastClosed;
}

}  // namespace hoplite

// SPDX-License-Identifier: Apache-2.0
#include "wire/layouts.h"

namespace hoplite::wire {

namespace {

constexpr std::uint32_t kNumbers = 1U << 31;  // they wrap around; archive.h has a use for bit 31

}  // namespace

static_assert(kLayoutTableBytesMax >= 2 * kLayoutBytesMax, "the newest is always kept");

std::optional<std::uint32_t> Layouts::number_of(const Layout& layout) const {
  if (layout.size() < kBytesMin) return std::nullopt;
  const auto it = numbers_.find(layout.text());
  if (it == numbers_.end()) return std::nullopt;
  return it->second;
}

const Layout* Layouts::find(std::uint32_t number) const {
  const std::uint32_t place = (number - first_) % kNumbers;
  return place < kept_.size() ? &kept_[place] : nullptr;
}

void Layouts::add(const Layout& layout) {
  if (layout.size() < kBytesMin || numbers_.contains(layout.text())) return;
  const std::uint32_t number = (first_ + static_cast<std::uint32_t>(kept_.size())) % kNumbers;
  numbers_.emplace(kept_.emplace_back(layout).text(), number);
  bytes_ += layout.size();
  while (bytes_ > bytes_max_) {
    bytes_ -= kept_.front().size();
    numbers_.erase(kept_.front().text());
    kept_.pop_front();
    first_ = (first_ + 1) % kNumbers;
  }
}

}  // namespace hoplite::wire

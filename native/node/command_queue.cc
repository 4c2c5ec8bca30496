// SPDX-License-Identifier: Apache-2.0
#include "node/command_queue.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace hoplite {

void CommandQueue::push(Command command) {
  {
    const std::lock_guard guard(mutex_);
    const auto is_view = [](const Command& each) {
      return std::holds_alternative<SetViewCommand>(each.body);
    };
    if (is_view(command) && std::count_if(waiting_.begin(), waiting_.end(), is_view) ==
                                static_cast<std::ptrdiff_t>(kViewsMax)) {
      waiting_.erase(std::find_if(waiting_.begin(), waiting_.end(), is_view));
    }
    waiting_.push_back(std::move(command));
  }
  poller_->wake();
}

void CommandQueue::stop() {
  is_stopping_.store(true, std::memory_order_release);
  poller_->wake();
}

std::vector<Command> CommandQueue::take(std::size_t count_max) {
  const std::lock_guard guard(mutex_);
  const auto count = static_cast<std::ptrdiff_t>(std::min(count_max, waiting_.size()));
  std::vector<Command> taken(std::make_move_iterator(waiting_.begin()),
                             std::make_move_iterator(waiting_.begin() + count));
  waiting_.erase(waiting_.begin(), waiting_.begin() + count);
  return taken;
}

bool CommandQueue::is_empty() const {
  const std::lock_guard guard(mutex_);
  return waiting_.empty();
}

}  // namespace hoplite

// SPDX-License-Identifier: Apache-2.0
// Polls an event source for a moment before its caller goes to sleep. Waking an idle core takes
// longer than a small get (docs/internals/gotchas.md), and a peer process on the same machine
// answers at once. Two rules bound the cost:
//  - A caller looks only when its last wait began at most kAMoment ago, so both ends are still
//    awake.
//  - After a look in vain the caller rests, and each rest is twice as long as the last one. Looks
//    in vain take at most a hundredth of its time, so other threads get the cores.
// One thread at a time. docs/internals/architecture.md.
#pragma once

#include <algorithm>
#include <chrono>
#include <utility>

namespace hoplite {

template <typename Clock>
class BriefLookBy {
 public:
  // Twice the time that a look saves: a virtual machine's core is awake 25 us after it is woken.
  static constexpr std::chrono::microseconds kLasts{50};
  static constexpr std::chrono::microseconds kAMoment{4 * kLasts};  // a small get, not yet awake
  static constexpr std::chrono::microseconds kRestMin{4 * kLasts};
  static constexpr std::chrono::microseconds kRestMax{100 * kLasts};

  // Call it in each wait. Returns true if `look`, a callable that never blocks, has returned true.
  template <typename Look>
  [[nodiscard]] bool finds(Look look) {
    auto now = Clock::now();
    const auto asked_before = std::exchange(asked_, now);
    if (now > asked_before + kAMoment || now < rests_until_) return false;
    for (const auto end = now + kLasts; now < end; now = Clock::now()) {
      if (look()) {
        rest_ = kRestMin;
        return true;
      }
    }
    rests_until_ = now + rest_;
    rest_ = std::min(2 * rest_, kRestMax);
    return false;
  }

 private:
  typename Clock::time_point asked_{};
  typename Clock::time_point rests_until_{};
  // how long the caller rests after the next look in vain
  std::chrono::microseconds rest_ = kRestMin;
};

using BriefLook = BriefLookBy<std::chrono::steady_clock>;

}  // namespace hoplite

// Looks whether something has come, again and again for a moment, before its caller goes to sleep
// for it: waking an idle core takes longer than a small get (docs/gotchas.md), and who asks a
// process of the same machine is answered at once, and may ask again at once. It pays only while
// both are awake: whose last wait was not a moment ago doesn't look at all. And only while there
// are cores for it: who has looked in vain rests, twice as long each time, and so spends a
// hundredth of his time on it at most. One thread at a time. docs/internals/architecture.md.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <utility>

namespace hoplite {

template <typename Clock>
class BriefLookBy {
 public:
  // Twice what it saves: the core of a virtual machine is awake 25 us after it was woken.
  static constexpr std::chrono::microseconds kLasts{50};
  static constexpr std::chrono::microseconds kAMoment{4 * kLasts};  // a small get, not yet awake
  static constexpr std::chrono::microseconds kRestMin{4 * kLasts};
  static constexpr std::chrono::microseconds kRestMax{100 * kLasts};

  // To be called in each wait. Returns whether `look`, a callable without a wait in it, has
  // returned true.
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
  std::chrono::microseconds rest_ = kRestMin;  // after the next look in vain
};

using BriefLook = BriefLookBy<std::chrono::steady_clock>;

}  // namespace hoplite

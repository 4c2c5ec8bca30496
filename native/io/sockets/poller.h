// SPDX-License-Identifier: Apache-2.0
// One epoll instance and the descriptor that wakes it. Level-triggered, so a turn may stop at its
// byte limit and find the rest again. wake() may be called from any thread; all else belongs to one
// thread. The caller chooses tokens and never reuses them. So an event of a descriptor that was
// closed in the same turn matches no token.
#pragma once

#include <sys/epoll.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/clock.h"
#include "base/result.h"
#include "io/sockets/brief_look.h"
#include "io/sockets/unique_fd.h"

namespace hoplite {

enum class Interest : std::uint8_t { kNone = 0, kRead = 1, kWrite = 2, kBoth = 3 };

// How a wait begins: asleep, or with a brief look before the sleep (BriefLook).
enum class Waiting : std::uint8_t { kAsleep, kAwake };
// Returns kAwake if bytes come so fast that the next 64 KiB, which would wake the thread
// (tcp_rail.cc), are here before a look for them ends. Their sender then need not wake a thread.
[[nodiscard]] Waiting choose_waiting(std::uint64_t came_bytes, Duration elapsed);

struct Ready {
  std::uint64_t token = 0;
  // True also at the end or after an error, even with Interest::kNone: reading tells which.
  bool is_readable = false;
  bool is_writable = false;
};

class Poller {
 public:
  static constexpr std::size_t kReadyMax = 128;   // per wait; the rest comes with the next one
  static constexpr std::uint64_t kWakeToken = 0;  // never given to a caller's descriptor

  [[nodiscard]] static Result<Poller> open();

  // REQUIRES: fd is open and not added yet, token != kWakeToken.
  [[nodiscard]] Result<void> add(int fd, std::uint64_t token, Interest interest);
  // REQUIRES: fd was added. Closing its only copy removes it.
  void change(int fd, std::uint64_t token, Interest interest);

  // Call it before handing a descriptor to another thread's table, because a registration ends with
  // the last copy of the descriptor in any table. REQUIRES: fd was added.
  void remove(int fd);

  // Waits for a descriptor, a wake() or the end of `timeout` (rounded up to 1 ms; nullopt: for
  // ever). The span is valid until the next wait.
  [[nodiscard]] std::span<const Ready> wait(std::optional<Duration> timeout,
                                            Waiting begins = Waiting::kAsleep);
  void wake() const noexcept;  // any thread, async-signal-safe; wakes are merged

 private:
  Poller(UniqueFd epoll, UniqueFd wake);
  [[nodiscard]] int look(int timeout_ms);  // how many events have come
  UniqueFd epoll_;
  UniqueFd wake_;
  BriefLook brief_look_;
  std::array<epoll_event, kReadyMax> events_{};
  std::array<Ready, kReadyMax> ready_{};
};

}  // namespace hoplite

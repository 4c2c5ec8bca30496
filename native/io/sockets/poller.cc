// SPDX-License-Identifier: Apache-2.0
#include "io/sockets/poller.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/units.h"
#include "io/sockets/system_error.h"

namespace hoplite {
namespace {

std::uint32_t mask(Interest interest) {
  const auto bits = static_cast<unsigned>(interest);
  return EPOLLRDHUP | ((bits & 1U) != 0 ? EPOLLIN : 0U) | ((bits & 2U) != 0 ? EPOLLOUT : 0U);
}

}  // namespace

Waiting choose_waiting(std::uint64_t came_bytes, Duration elapsed) {
  const std::chrono::nanoseconds look = BriefLook::kLasts;
  const auto may_take = came_bytes * static_cast<std::uint64_t>(look.count()) / 64_KiB;
  return may_take > static_cast<std::uint64_t>(elapsed.ns) ? Waiting::kAwake : Waiting::kAsleep;
}

Poller::Poller(UniqueFd epoll, UniqueFd wake) : epoll_(std::move(epoll)), wake_(std::move(wake)) {}

Result<Poller> Poller::open() {
  UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.is_open()) return system_error("epoll_create1");
  UniqueFd wake(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!wake.is_open()) return system_error("eventfd");
  epoll_event event{.events = EPOLLIN, .data = {.u64 = kWakeToken}};
  if (::epoll_ctl(epoll.value(), EPOLL_CTL_ADD, wake.value(), &event) != 0) {
    return system_error("epoll_ctl of the wake-up descriptor");
  }
  return Poller(std::move(epoll), std::move(wake));
}

Result<void> Poller::add(int fd, std::uint64_t token, Interest interest) {
  HOPLITE_CHECK(token != kWakeToken);
  epoll_event event{.events = mask(interest), .data = {.u64 = token}};
  if (::epoll_ctl(epoll_.value(), EPOLL_CTL_ADD, fd, &event) != 0) return system_error("epoll_ctl");
  return {};
}

void Poller::change(int fd, std::uint64_t token, Interest interest) {
  epoll_event event{.events = mask(interest), .data = {.u64 = token}};
  HOPLITE_CHECK(::epoll_ctl(epoll_.value(), EPOLL_CTL_MOD, fd, &event) == 0);
}

void Poller::remove(int fd) {
  HOPLITE_CHECK(::epoll_ctl(epoll_.value(), EPOLL_CTL_DEL, fd, nullptr) == 0);
}

int Poller::look(int timeout_ms) {
  return ::epoll_wait(epoll_.value(), events_.data(), kReadyMax, timeout_ms);
}

std::span<const Ready> Poller::wait(std::optional<Duration> timeout, Waiting begins) {
  int timeout_ms = -1;
  if (timeout) {
    const std::int64_t rounded = (std::max<std::int64_t>(timeout->ns, 0) + 999'999) / 1'000'000;
    timeout_ms = static_cast<int>(std::min<std::int64_t>(rounded, std::numeric_limits<int>::max()));
  }
  int count = 0;
  const auto has_come = [&] {
    count = look(0);
    return count != 0;
  };
  if (begins == Waiting::kAsleep || timeout_ms == 0 || !brief_look_.finds(has_come)) {
    count = look(timeout_ms);
  }
  if (count < 0) {
    HOPLITE_CHECK(errno == EINTR);
    return {};
  }
  std::size_t found = 0;
  for (int i = 0; i < count; ++i) {
    const epoll_event& event = events_[static_cast<std::size_t>(i)];
    if (event.data.u64 == kWakeToken) {
      std::uint64_t merged = 0;
      [[maybe_unused]] const auto drained = ::read(wake_.value(), &merged, sizeof merged);
      continue;
    }
    constexpr std::uint32_t kEnded = EPOLLHUP | EPOLLERR | EPOLLRDHUP;
    ready_[found++] = {.token = event.data.u64,
                       .is_readable = (event.events & (EPOLLIN | kEnded)) != 0,
                       .is_writable = (event.events & (EPOLLOUT | EPOLLHUP | EPOLLERR)) != 0};
  }
  return {ready_.data(), found};
}

void Poller::wake() const noexcept {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(wake_.value(), &one, sizeof one);
}

}  // namespace hoplite

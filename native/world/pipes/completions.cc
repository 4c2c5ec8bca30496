// SPDX-License-Identifier: Apache-2.0
#include "world/pipes/completions.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include "io/sockets/system_error.h"

namespace hoplite::worlds {

Result<UniqueFd> Doorbell::open() {
  UniqueFd fd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!fd.is_open()) return system_error("eventfd");
  return fd;
}

void Doorbell::ring(int fd) {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(fd, &one, sizeof one);
}

void Doorbell::silence(int fd) {
  std::uint64_t merged = 0;
  [[maybe_unused]] const auto drained = ::read(fd, &merged, sizeof merged);
}

}  // namespace hoplite::worlds

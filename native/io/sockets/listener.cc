// SPDX-License-Identifier: Apache-2.0
#include "io/sockets/listener.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

namespace hoplite {
namespace {

UniqueFd any_descriptor() { return UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC)); }

UniqueFd accept_from(int fd) {
  return UniqueFd(::accept4(fd, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
}

}  // namespace

Listener::Listener(UniqueFd socket) : socket_(std::move(socket)), reserve_(any_descriptor()) {}

std::optional<UniqueFd> Listener::accept() {
  if (!reserve_.is_open()) reserve_ = any_descriptor();  // another thread was quicker last time
  UniqueFd accepted = accept_from(fd());
  if (accepted.is_open()) return accepted;
  if (errno != EMFILE && errno != ENFILE) return std::nullopt;
  reserve_.reset();
  UniqueFd stranger = accept_from(fd());
  const bool is_sent_away = stranger.is_open();
  stranger.reset();
  reserve_ = any_descriptor();
  if (!is_sent_away) return std::nullopt;
  return UniqueFd{};
}

}  // namespace hoplite

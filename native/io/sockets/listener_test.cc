// SPDX-License-Identifier: Apache-2.0
#include "io/sockets/listener.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <array>
#include <vector>

#include "base/check.h"
#include "io/sockets/tcp_socket.h"

namespace hoplite {
namespace {

bool is_ready(int fd) {
  pollfd polled{fd, POLLIN, 0};
  return ::poll(&polled, 1, 0) == 1;
}

class ListenerTest : public ::testing::Test {
 protected:
  ListenerTest() : listener_(listening()) {}

  static UniqueFd listening() {
    auto socket = listen_on(*parse_address("127.0.0.1:0"));
    HOPLITE_CHECK(socket.has_value());
    return std::move(*socket);
  }
  UniqueFd knock() {
    auto address = local_address(listener_.fd());
    UniqueFd fd(::socket(AF_INET, SOCK_STREAM, 0));
    HOPLITE_CHECK(::connect(fd.value(), reinterpret_cast<const sockaddr*>(&address->storage),
                            address->size) == 0);
    return fd;
  }

  Listener listener_;
};

// Takes every descriptor that the process may have, until its end.
class NoDescriptorsLeft {
 public:
  NoDescriptorsLeft() {
    HOPLITE_CHECK(::getrlimit(RLIMIT_NOFILE, &before_) == 0);
    taken_.emplace_back(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    rlimit lower = before_;
    lower.rlim_cur = static_cast<rlim_t>(taken_.back().value()) + 8;
    HOPLITE_CHECK(::setrlimit(RLIMIT_NOFILE, &lower) == 0);
    for (;;) {
      UniqueFd fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
      if (!fd.is_open()) break;
      taken_.push_back(std::move(fd));
    }
  }
  ~NoDescriptorsLeft() { ::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
  std::vector<UniqueFd> taken_;
};

TEST_F(ListenerTest, AcceptsWhoWaitsInTurn) {
  EXPECT_EQ(listener_.accept(), std::nullopt);
  const UniqueFd first = knock();
  const UniqueFd second = knock();
  EXPECT_TRUE(listener_.accept()->is_open());
  EXPECT_TRUE(listener_.accept()->is_open());
  EXPECT_EQ(listener_.accept(), std::nullopt);
}

TEST_F(ListenerTest, WithoutDescriptorsTheBacklogIsSentAway) {
  const UniqueFd first = knock();
  const UniqueFd second = knock();
  {
    const NoDescriptorsLeft none;
    for (int i = 0; i < 2; ++i) {
      const auto accepted = listener_.accept();
      ASSERT_TRUE(accepted.has_value());
      EXPECT_FALSE(accepted->is_open());
    }
    EXPECT_EQ(listener_.accept(), std::nullopt);
    EXPECT_FALSE(is_ready(listener_.fd())) << "it would wake the poller again and again";
  }
  std::array<char, 1> byte{};
  EXPECT_EQ(::recv(first.value(), byte.data(), byte.size(), 0), 0) << "it was told";
  const UniqueFd third = knock();
  EXPECT_TRUE(listener_.accept()->is_open()) << "there are descriptors again";
}

}  // namespace
}  // namespace hoplite

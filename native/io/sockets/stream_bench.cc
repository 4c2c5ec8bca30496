// SPDX-License-Identifier: Apache-2.0
// One plain TCP stream between two processes over loopback: stream_bench BYTES BUFFER_BYTES. For
// each line of its input it moves the bytes once, and prints the seconds that they took. Each side
// uses its buffer over and over: one of all bytes means from memory to memory, and one of a single
// call stays in the cache. benchmarks/fast_link.py has it take turns with two nodes.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

constexpr std::size_t kCallBytes = 1 << 20;  // of one send or receive

[[noreturn]] void fail(const char* what) {
  std::perror(what);
  std::exit(1);
}

// The bytes of the next call, of a round that has moved `moved`.
std::size_t next_call(const std::vector<char>& buffer, std::size_t size_bytes, std::size_t moved) {
  return std::min({kCallBytes, size_bytes - moved, buffer.size() - moved % buffer.size()});
}

// Serves one round for each byte that comes, until the other side closes.
void send_rounds(int connection, const std::vector<char>& buffer, std::size_t size_bytes) {
  for (char start = 0; ::recv(connection, &start, 1, 0) == 1;) {
    for (std::size_t sent = 0; sent < size_bytes;) {
      const char* const from = buffer.data() + sent % buffer.size();
      const std::size_t next = next_call(buffer, size_bytes, sent);
      const ssize_t count = ::send(connection, from, next, MSG_NOSIGNAL);
      if (count < 0) fail("send");
      sent += static_cast<std::size_t>(count);
    }
  }
}

double receive_round(int connection, std::vector<char>& buffer, std::size_t size_bytes) {
  const auto begin = std::chrono::steady_clock::now();
  if (::send(connection, "", 1, MSG_NOSIGNAL) != 1) fail("send");
  for (std::size_t received = 0; received < size_bytes;) {
    char* const into = buffer.data() + received % buffer.size();
    const ssize_t count = ::recv(connection, into, next_call(buffer, size_bytes, received), 0);
    if (count <= 0) fail("recv");
    received += static_cast<std::size_t>(count);
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

int main(int argc, char** argv) {
  const auto size_bytes = argc == 3 ? std::strtoull(argv[1], nullptr, 10) : 0;
  const auto buffer_bytes = argc == 3 ? std::strtoull(argv[2], nullptr, 10) : 0;
  if (size_bytes == 0 || buffer_bytes == 0) {
    std::fprintf(stderr, "usage: stream_bench BYTES BUFFER_BYTES\n");
    return 2;
  }
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* const name = reinterpret_cast<sockaddr*>(&address);
  if (listener < 0 || ::bind(listener, name, length) != 0 || ::listen(listener, 1) != 0 ||
      ::getsockname(listener, name, &length) != 0) {
    fail("listen");
  }
  std::vector<char> buffer(buffer_bytes, 1);  // each process writes its own: no page is new
  const pid_t sender = ::fork();
  if (sender < 0) fail("fork");
  if (sender == 0) {
    std::fill(buffer.begin(), buffer.end(), 2);
    const int connection = ::socket(AF_INET, SOCK_STREAM, 0);
    if (connection < 0 || ::connect(connection, name, length) != 0) fail("connect");
    send_rounds(connection, buffer, size_bytes);
    std::_Exit(0);
  }
  const int connection = ::accept(listener, nullptr, nullptr);
  if (connection < 0) fail("accept");
  for (int next = std::getchar(); next != EOF; next = std::getchar()) {
    if (next != '\n') continue;
    std::printf("%.6f\n", receive_round(connection, buffer, size_bytes));
    std::fflush(stdout);
  }
  ::close(connection);
  return ::waitpid(sender, nullptr, 0) == sender ? 0 : 1;
}

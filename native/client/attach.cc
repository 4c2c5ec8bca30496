// SPDX-License-Identifier: Apache-2.0
#include "client/attach.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>
#include <variant>
#include <vector>

#include "io/sockets/system_error.h"

namespace hoplite {
namespace {

// 10 s. A node answers within a turn; beyond this the node is frozen or starved, and attach fails.
constexpr std::chrono::seconds kAnswers{10};

Error no_answer(const std::string& path, const std::string& why) {
  return {Code::kNodeLost, "attaching to " + path + ": " + why};
}

// Receives up to `into.size()` bytes, and the descriptors that come with them.
ssize_t receive(int fd, std::span<std::byte> into, std::vector<UniqueFd>& descriptors) {
  iovec part{into.data(), into.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(2 * sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t got = ::recvmsg(fd, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (got < 0) return got;
  for (cmsghdr* each = CMSG_FIRSTHDR(&message); each != nullptr;
       each = CMSG_NXTHDR(&message, each)) {
    if (each->cmsg_level != SOL_SOCKET || each->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (each->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int passed = -1;
      std::memcpy(&passed, CMSG_DATA(each) + i * sizeof passed, sizeof passed);
      descriptors.emplace_back(passed);
    }
  }
  return got;
}

Result<UniqueFd> connect_to(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path) {
    return Error{Code::kInvalidArgument, "socket path '" + path + "' must have 1 to " +
                                             std::to_string(sizeof address.sun_path - 1) +
                                             " bytes"};
  }
  std::memcpy(address.sun_path, path.c_str(), path.size());
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket.is_open()) return system_error("socket");
  if (::connect(socket.value(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return system_error("attaching to " + path, Code::kNodeLost);
  }
  // The node refuses other users as well, but a closed connection doesn't say why.
  ucred node{};
  socklen_t size = sizeof node;
  if (::getsockopt(socket.value(), SOL_SOCKET, SO_PEERCRED, &node, &size) != 0) {
    return system_error("SO_PEERCRED");
  }
  if (node.uid != ::geteuid()) {
    return Error{Code::kUnauthenticated, "attaching to " + path + ": that node is of user " +
                                             std::to_string(node.uid) + ", this process of user " +
                                             std::to_string(::geteuid()) +
                                             "; attach to a node of this user"};
  }
  return socket;
}

}  // namespace

Result<OpenedAttachment> attach_to(const std::string& socket_path) {
  auto socket = connect_to(socket_path);
  if (!socket) return socket.error();
  std::vector<std::byte> hello;
  encode(Attach{.wire_version = kWireVersion, .pid = static_cast<std::uint64_t>(::getpid())},
         hello);
  if (::send(socket->value(), hello.data(), hello.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(hello.size())) {
    return system_error("attaching to " + socket_path, Code::kNodeLost);
  }
  std::vector<std::byte> input;
  std::vector<UniqueFd> descriptors;
  std::size_t wanted = kLocalHeaderBytes;
  const auto deadline = std::chrono::steady_clock::now() + kAnswers;
  while (input.size() < wanted) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    pollfd ready{socket->value(), POLLIN, 0};
    const int found = left.count() > 0 ? ::poll(&ready, 1, static_cast<int>(left.count())) : 0;
    if (found == 0) return no_answer(socket_path, "no answer");
    if (found < 0) continue;  // a signal
    const std::size_t at = input.size();
    input.resize(wanted);
    const ssize_t got = receive(socket->value(), std::span(input).subspan(at), descriptors);
    if (got < 0 && errno != EINTR && errno != EAGAIN)
      return system_error("attaching to " + socket_path, Code::kNodeLost);
    if (got == 0) return no_answer(socket_path, "the node closed the connection");
    input.resize(at + static_cast<std::size_t>(got < 0 ? 0 : got));
    if (input.size() < kLocalHeaderBytes) continue;
    auto header = decode_local_header(input);
    if (!header) return header.error();
    wanted = kLocalHeaderBytes + header->body_bytes + header->payload_bytes;
  }
  auto header = decode_local_header(input);
  if (!header) return header.error();
  auto frame = decode_local_body(
      *header, std::span<const std::byte>(input).subspan(kLocalHeaderBytes, header->body_bytes));
  if (!frame) return frame.error();
  const auto* attached = std::get_if<Attached>(&*frame);
  if (attached == nullptr || descriptors.size() != 2) {
    return Error{Code::kBadFrame, "attaching to " + socket_path + ": no descriptors came"};
  }
  return OpenedAttachment{std::move(*socket), std::move(descriptors[0]), std::move(descriptors[1]),
                          *attached};
}

}  // namespace hoplite

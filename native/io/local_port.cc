// SPDX-License-Identifier: Apache-2.0
#include "io/local_port.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>
#include <variant>

#include "base/check.h"
#include "base/limits.h"
#include "io/sockets/system_error.h"

namespace hoplite {
namespace {

constexpr int kListenBacklog = 256;  // a job's workers attach at once
constexpr int kAcceptsPerTurn = 16;
constexpr std::size_t kReadBytes = 128_KiB;  // one largest command, or some thousand small ones
// With a turn's worth of waiting commands a client is not read until the engine has caught up. One
// recv may bring some 2,400 more.
constexpr std::size_t kCommandsWaitingMax = kCommandsPerTurnMax;
constexpr std::size_t kFramesPerSend = 16;
// A payload of this size is not copied to be sent with others: the copy takes as long as a send.
constexpr std::size_t kUncopiedBytesMin = 4_KiB;

Result<sockaddr_un> socket_address(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path) {
    return Error{Code::kInvalidArgument, "socket path '" + path + "' has " +
                                             std::to_string(path.size()) +
                                             " bytes, the kernel takes 1 to " +
                                             std::to_string(sizeof address.sun_path - 1)};
  }
  std::memcpy(address.sun_path, path.c_str(), path.size());
  return address;
}

Result<void> prepare_directory(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  const std::string directory = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  if (::mkdir(directory.c_str(), S_IRWXU) != 0 && errno != EEXIST) {
    return system_error("making " + directory);
  }
  struct stat status{};
  if (::stat(directory.c_str(), &status) != 0) return system_error("looking at " + directory);
  if (status.st_uid != ::geteuid() || (status.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    return Error{Code::kInvalidArgument,
                 "directory " + directory + " must belong to this user and have mode 0700"};
  }
  return {};
}

// The process at the other end, if it is of our user.
std::optional<std::uint32_t> process_at(int fd) {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return std::nullopt;
  if (peer.uid != ::geteuid()) return std::nullopt;
  return static_cast<std::uint32_t>(peer.pid);
}

// Returns how many bytes of both the socket has taken.
std::size_t send_at_once(int fd, std::span<const std::byte> frame,
                         std::span<const std::byte> payload) {
  std::array<iovec, 2> parts{iovec{const_cast<std::byte*>(frame.data()), frame.size()},
                             iovec{const_cast<std::byte*>(payload.data()), payload.size()}};
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  const ssize_t sent = ::sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  return sent < 0 ? 0 : static_cast<std::size_t>(sent);  // the next flush() handles the error
}

bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

}  // namespace

LocalPort::LocalPort(std::string path, UniqueFd listener, NodeId node, Incarnation incarnation,
                     const LocalLimits& limits, Poller& poller, const Arena& arena,
                     std::uint64_t token)
    : path_(std::move(path)),
      listener_(std::move(listener)),
      listener_token_(token),
      node_(node),
      incarnation_(incarnation),
      limits_(limits),
      poller_(&poller),
      arena_(&arena),
      next_token_(token + 1),
      read_(kReadBytes) {}

Result<LocalPort> LocalPort::open(const std::string& path, NodeId node, Incarnation incarnation,
                                  const LocalLimits& limits, Poller& poller, const Arena& arena,
                                  std::uint64_t first_token) {
  auto address = socket_address(path);
  if (!address) return address.error();
  if (auto prepared = prepare_directory(path); !prepared) return prepared.error();
  UniqueFd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!listener.is_open()) return system_error("socket");
  const auto* raw = reinterpret_cast<const sockaddr*>(&*address);
  UniqueFd probe(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (::connect(probe.value(), raw, sizeof *address) == 0 || errno == EAGAIN) {
    return Error{Code::kInvalidArgument, "a node listens on " + path + " already"};
  }
  ::unlink(path.c_str());
  if (::bind(listener.value(), raw, sizeof *address) != 0 ||
      ::listen(listener.value(), kListenBacklog) != 0) {
    return system_error("listening on " + path);
  }
  if (auto added = poller.add(listener.value(), first_token, Interest::kRead); !added) {
    return added.error();
  }
  return LocalPort(path, std::move(listener), node, incarnation, limits, poller, arena,
                   first_token);
}

LocalPort::~LocalPort() {
  if (listener_.is_open()) ::unlink(path_.c_str());
}

LocalCounters LocalPort::counters() const {
  LocalCounters counters = counters_;
  for (const auto& [token, client] : clients_) counters.bytes_queued += client.queued_bytes;
  return counters;
}

std::uint32_t LocalPort::process_of(ClientId client) const {
  const auto found = clients_.find(client.value);
  return found == clients_.end() ? 0 : found->second.process;
}

void LocalPort::handle_ready(const Ready& ready) {
  if (ready.token == listener_token_) {
    accept_all();
    return;
  }
  const auto found = clients_.find(ready.token);
  if (found == clients_.end()) return;
  Attachment& client = found->second;
  if (client.state == State::kCutOff) {  // only the end of its socket matters
    end_client(ready.token, client);
    return;
  }
  if (ready.is_writable && !std::exchange(client.is_dirty, true)) dirty_.push_back(ready.token);
  const bool is_listened_to =
      client.interest == Interest::kRead || client.interest == Interest::kBoth;
  if (!is_listened_to && ready.is_readable) {  // it has closed without reading its replies
    end_client(ready.token, client);
  } else if (ready.is_readable && client.commands.size() < kCommandsWaitingMax) {
    receive(ready.token, client);
  }
}

void LocalPort::accept_all() {
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    auto fd = listener_.accept();
    if (!fd) return;
    const std::uint64_t token = next_token_++;
    const auto process = fd->is_open() ? process_at(fd->value()) : std::nullopt;
    if (!process || clients_.size() >= limits_.clients_max ||
        !poller_->add(fd->value(), token, Interest::kRead)) {
      ++counters_.clients_refused;
      continue;
    }
    Attachment& client = clients_[token];
    client.fd = std::move(*fd);
    client.process = *process;
    ++counters_.clients;
  }
}

void LocalPort::receive(std::uint64_t token, Attachment& client) {
  const ssize_t got = ::recv(client.fd.value(), read_.data(), read_.size(), MSG_DONTWAIT);
  if (got < 0) {
    if (!would_block()) cut_off(token, client);
    return;
  }
  if (got == 0) {
    end_client(token, client);
    return;
  }
  const auto arrived = std::span<const std::byte>(read_).first(static_cast<std::size_t>(got));
  const bool is_continued = !client.input.empty();  // part of a frame is here already
  if (is_continued) client.input.insert(client.input.end(), arrived.begin(), arrived.end());
  const auto whole = is_continued ? std::span<const std::byte>(client.input) : arrived;
  auto used = parse(token, client, whole);
  if (!used) {
    ++counters_.frames_bad;
    cut_off(token, client);
    return;
  }
  const auto rest = whole.subspan(*used);
  client.input = Bytes(rest.begin(), rest.end());
}

Result<std::size_t> LocalPort::parse(std::uint64_t token, Attachment& client,
                                     std::span<const std::byte> bytes) {
  std::size_t read = 0;
  for (;;) {
    const std::span<const std::byte> here = bytes.subspan(read);
    if (here.size() < kLocalHeaderBytes) return read;
    auto header = decode_local_header(here);
    if (!header) return header.error();
    const std::size_t body_end = kLocalHeaderBytes + header->body_bytes;
    const std::size_t whole = body_end + header->payload_bytes;
    if (here.size() < whole) return read;
    auto frame = decode_local_body(*header, here.subspan(kLocalHeaderBytes, header->body_bytes));
    if (!frame) return frame.error();
    const auto payload = here.subspan(body_end, header->payload_bytes);
    auto handled =
        handle_frame(token, client, std::move(*frame), Bytes(payload.begin(), payload.end()));
    if (!handled) return handled.error();
    read += whole;
  }
}

Result<void> LocalPort::handle_frame(std::uint64_t token, Attachment& client, LocalFrame frame,
                                     Bytes payload) {
  if (std::holds_alternative<Attach>(frame) && !client.is_attached) {
    client.is_attached = true;
    client.passes_descriptors = true;
    Bytes answer;
    encode(Attached{ClientId{token}, node_, incarnation_, arena_->size_bytes()}, answer);
    queue(token, client, std::move(answer));
    return {};
  }
  auto* command = std::get_if<Command>(&frame);
  if (command == nullptr || !client.is_attached) {
    return Error{Code::kBadFrame, "a frame that does not come now"};
  }
  command->client = ClientId{token};
  if (auto* put = std::get_if<PutCommand>(&command->body)) {
    put->payload = std::move(payload);
  } else if (!payload.empty()) {
    return Error{Code::kBadFrame, "a payload behind a command that has none"};
  }
  client.commands.push_back(std::move(*command));
  enqueue_turn(token, client);
  ++counters_.commands;
  return {};
}

std::vector<Command> LocalPort::take_commands(std::size_t count_max) {
  std::vector<Command> commands;
  while (commands.size() < count_max && !turns_.empty()) {
    const std::uint64_t token = turns_.front();
    turns_.pop_front();
    const auto found = clients_.find(token);
    HOPLITE_CHECK(found != clients_.end());
    Attachment& client = found->second;
    client.is_in_turn = false;
    if (client.commands.empty() || is_held_back(client)) continue;
    commands.push_back(std::move(client.commands.front()));
    client.commands.pop_front();
    if (client.state == State::kEnded && client.commands.empty()) {
      clients_.erase(found);  // this was its ClientLostCommand
    } else {
      enqueue_turn(token, client);
    }
  }
  return commands;
}

// One recv(2) may bring gets with 150 MiB of answers; the client gets these at the pace at which it
// reads. All its commands wait, those that free memory included, because their order must not
// change.
bool LocalPort::is_held_back(const Attachment& client) const {
  return client.queued_bytes > limits_.listen_below_bytes;
}

void LocalPort::enqueue_turn(std::uint64_t token, Attachment& client) {
  if (client.commands.empty() || is_held_back(client)) return;
  if (!std::exchange(client.is_in_turn, true)) turns_.push_back(token);
}

void LocalPort::reply(const ReplyToClient& action) {
  const auto found = clients_.find(action.client.value);
  if (found == clients_.end() || found->second.state != State::kOpen) {
    return;  // the client has gone meanwhile
  }
  const auto* fetched = std::get_if<Fetched>(&action.reply);
  const bool has_payload = fetched != nullptr && !fetched->mapped;
  Bytes frame;
  encode(LocalReply{action.request, action.reply}, has_payload ? fetched->meta.size_bytes : 0,
         frame);
  std::span<const std::byte> payload;
  if (has_payload) payload = arena_->at({fetched->extent.offset, fetched->meta.size_bytes});
  ++counters_.replies;
  queue(found->first, found->second, std::move(frame), payload);
}

void LocalPort::queue(std::uint64_t token, Attachment& client, Bytes frame,
                      std::span<const std::byte> payload) {
  const std::size_t whole = frame.size() + payload.size();
  std::size_t sent = 0;
  if (client.output.empty() && payload.size() >= kUncopiedBytesMin) {
    sent = send_at_once(client.fd.value(), frame, payload);
  }
  if (sent == whole) return;
  frame.insert(frame.end(), payload.begin(), payload.end());
  client.output_sent += sent;
  client.queued_bytes += whole - sent;
  client.untaken_bytes = (sent > 0 ? 0 : client.untaken_bytes) + whole - sent;
  client.output.push_back(std::move(frame));
  if (!std::exchange(client.is_dirty, true)) dirty_.push_back(token);
}

void LocalPort::flush() {
  for (const std::uint64_t token : std::exchange(dirty_, {})) {
    const auto found = clients_.find(token);
    if (found == clients_.end() || found->second.state != State::kOpen) continue;
    Attachment& client = found->second;
    client.is_dirty = false;
    Result<bool> sent = true;
    while (!client.output.empty() && sent && *sent) sent = send(client);
    if (!sent || client.untaken_bytes > limits_.untaken_bytes_max) {
      cut_off(token, client);
    } else {
      watch(token, client);
      enqueue_turn(token, client);  // if it was held back
    }
  }
}

Result<bool> LocalPort::send(Attachment& client) {
  std::array<iovec, kFramesPerSend> parts{};
  std::size_t count = 0;
  for (Bytes& frame : client.output) {
    if (count == parts.size()) break;
    const std::size_t skip = count == 0 ? client.output_sent : 0;
    parts[count++] = {frame.data() + skip, frame.size() - skip};
  }
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = count;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(2 * sizeof(int))> control{};
  if (client.passes_descriptors) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(2 * sizeof(int));
    const std::array<int, 2> descriptors{arena_->writable_fd(), arena_->readonly_fd()};
    std::memcpy(CMSG_DATA(rights), descriptors.data(), sizeof descriptors);
  }
  const ssize_t result = ::sendmsg(client.fd.value(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (result < 0) {
    if (would_block()) return false;
    return system_error("sendmsg", Code::kPeerLost);
  }
  client.passes_descriptors = false;
  client.untaken_bytes = 0;
  client.queued_bytes -= static_cast<std::uint64_t>(result);
  std::size_t sent = static_cast<std::size_t>(result) + client.output_sent;
  while (!client.output.empty() && sent >= client.output.front().size()) {
    sent -= client.output.front().size();
    client.output.pop_front();
  }
  client.output_sent = sent;
  return client.output.empty() || sent == 0;
}

void LocalPort::watch(std::uint64_t token, Attachment& client) {
  const Interest wanted = client.output.empty()  ? Interest::kRead
                          : is_held_back(client) ? Interest::kWrite
                                                 : Interest::kBoth;
  if (client.interest == wanted) return;
  client.interest = wanted;
  poller_->change(client.fd.value(), token, wanted);
}

// Ends the frames to a client and keeps its claims until the client has closed its side.
// The process may live on with views that it reads and ranges that it writes, so no other client
// may get these ranges. The client sees the end of the frames as the node's end. Its library closes
// the socket with the last view or range, and the kernel closes it with the last process that has
// it.
// A pidfd would miss a forked child that reads views, and would need a second descriptor. The
// client that stays counts in clients_max.
void LocalPort::cut_off(std::uint64_t token, Attachment& client) {
  if (!client.is_attached) return end_client(token, client);  // it can hold nothing
  end_frames(client, State::kCutOff);
  ::shutdown(client.fd.value(), SHUT_WR);
  poller_->change(client.fd.value(), token, Interest::kNone);
  client.commands.clear();
}

void LocalPort::end_client(std::uint64_t token, Attachment& client) {
  end_frames(client, State::kEnded);
  if (!client.is_attached) {
    clients_.erase(token);
    return;
  }
  client.fd.reset();
  client.commands.push_back({ClientId{token}, RequestId{0}, ClientLostCommand{}});
  enqueue_turn(token, client);
}

void LocalPort::end_frames(Attachment& client, State state) {
  if (std::exchange(client.state, state) == State::kOpen) {
    --counters_.clients;
    if (client.is_attached) ++counters_.clients_lost;
  }
  client.input = {};
  client.output = {};
  client.queued_bytes = 0;  // so that its earlier commands are not held back
}

}  // namespace hoplite

// SPDX-License-Identifier: Apache-2.0
// The Unix socket that clients attach to: a stream socket in a directory of mode 0700. It checks
// that a client has the same user (SO_PEERCRED) and hands it the arena's two descriptors
// (SCM_RIGHTS). It turns frames into Commands, and Replies into frames. Clients are taken in turn.
// Reactor thread only. docs/internals/wire.md, "The local socket".
//  - The end of a client is a ClientLostCommand: the engine releases all that the client held.
//  - Back-pressure: while a client does not read its replies, the port neither reads from it nor
//    takes its commands. It cuts the client off at untaken_bytes_max.
//  - A client that is cut off may live on with views and ranges. So the port reports its end only
//    when the client has closed its side.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "io/memory/arena.h"
#include "io/sockets/listener.h"
#include "io/sockets/poller.h"
#include "io/sockets/unique_fd.h"
#include "plan/messages.h"
#include "wire/local/local_frame.h"

namespace hoplite {

struct LocalLimits {
  std::size_t clients_max = 4096;  // some 64 workers per core, with room
  // Bytes of waiting replies. Above it the port takes no command of the client.
  std::uint64_t listen_below_bytes = 1_MiB;
  // Replies queued since the socket last took anything; beyond it the client is cut off. 16,000
  // small gets that are answered at once fit. A client that reads takes something while the replies
  // are copied, which may last 2 s on two loaded cores.
  std::uint64_t untaken_bytes_max = 1_GiB;
};

struct LocalCounters {
  std::uint64_t clients = 0, clients_lost = 0, clients_refused = 0, frames_bad = 0;
  std::uint64_t commands = 0, replies = 0;
  std::uint64_t bytes_queued = 0;  // of replies, now
};

class LocalPort {
 public:
  // Makes the directory of `path` (0700) and replaces a socket that a dead node left behind.
  // kInvalidArgument if the directory is open to others, the path is too long, or a live node
  // listens there. REQUIRES: poller and arena outlive this.
  [[nodiscard]] static Result<LocalPort> open(const std::string& path, NodeId node,
                                              Incarnation incarnation, const LocalLimits& limits,
                                              Poller& poller, const Arena& arena,
                                              std::uint64_t first_token);
  LocalPort(LocalPort&&) noexcept = default;
  LocalPort& operator=(LocalPort&&) = delete;
  ~LocalPort();  // removes the socket's file

  void handle_ready(const Ready& ready);
  // Sends or queues the reply. If Fetched is not mapped, copies the bytes of the extent behind it;
  // the caller may reuse the extent afterwards.
  void reply(const ReplyToClient& action);
  void flush();  // what the turn's replies have queued
  // Moves up to `count_max` commands out, in order per client, one of each client in turn.
  [[nodiscard]] std::vector<Command> take_commands(std::size_t count_max);
  [[nodiscard]] bool has_commands() const { return !turns_.empty(); }  // to be taken now
  [[nodiscard]] LocalCounters counters() const;                        // cost: O(clients)
  [[nodiscard]] std::uint32_t process_of(ClientId client) const;       // 0: it has gone

 private:
  enum class State : std::uint8_t {
    kOpen,
    kCutOff,  // no more frames; it keeps what it holds until its process closes the socket
    kEnded,   // it has closed its side; its earlier commands are still to be taken
  };
  struct Attachment {
    State state = State::kOpen;
    UniqueFd fd;
    std::uint32_t process = 0;
    bool is_attached = false;
    bool passes_descriptors = false;  // with the first bytes that go out
    std::vector<std::byte> input;     // the part of a frame that has come
    std::deque<Bytes> output;
    std::size_t output_sent = 0;  // of output.front()
    std::uint64_t queued_bytes = 0;
    std::uint64_t untaken_bytes = 0;  // queued since the socket last took anything
    Interest interest = Interest::kRead;
    bool is_dirty = false;
    std::deque<Command> commands;  // not taken yet
    bool is_in_turn = false;       // its token is in turns_
  };
  LocalPort(std::string path, UniqueFd listener, NodeId node, Incarnation incarnation,
            const LocalLimits& limits, Poller& poller, const Arena& arena, std::uint64_t token);

  void accept_all();
  void receive(std::uint64_t token, Attachment& client);
  // Handles the whole frames at the front of `bytes` and returns how many bytes they had. On an
  // error the caller closes the connection.
  [[nodiscard]] Result<std::size_t> parse(std::uint64_t token, Attachment& client,
                                          std::span<const std::byte> bytes);
  [[nodiscard]] Result<void> handle_frame(std::uint64_t token, Attachment& client, LocalFrame frame,
                                          Bytes payload);
  [[nodiscard]] Result<bool> send(Attachment& client);  // false: the socket is full
  void queue(std::uint64_t token, Attachment& client, Bytes frame,
             std::span<const std::byte> payload = {});
  void watch(std::uint64_t token, Attachment& client);
  [[nodiscard]] bool is_held_back(const Attachment& client) const;
  void enqueue_turn(std::uint64_t token, Attachment& client);
  void cut_off(std::uint64_t token, Attachment& client);     // the reference may become invalid
  void end_client(std::uint64_t token, Attachment& client);  // the reference may become invalid
  void end_frames(Attachment& client, State state);

  std::string path_;
  Listener listener_;
  std::uint64_t listener_token_;
  NodeId node_;
  Incarnation incarnation_;
  LocalLimits limits_;
  Poller* poller_;
  const Arena* arena_;
  std::uint64_t next_token_;
  std::vector<std::byte> read_;                  // what one recv(2) brings
  std::map<std::uint64_t, Attachment> clients_;  // by token, which is also the ClientId
  std::vector<std::uint64_t> dirty_;
  std::deque<std::uint64_t> turns_;  // clients with commands, whose turn comes in this order
  LocalCounters counters_;
};

}  // namespace hoplite

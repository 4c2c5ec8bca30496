// The Unix socket that clients attach to: a stream socket in a directory of mode 0700. Checks that
// a client is of the same user (SO_PEERCRED), hands it the arena's two descriptors (SCM_RIGHTS),
// and turns its frames into Commands and Replies into frames. A client's end is a
// ClientLostCommand: the engine gives back what it held. A client that does not read its replies is
// not listened to until it does, nor are its commands taken that are here already (back-pressure);
// it is cut off when it takes nothing of all too much. Who is cut off may live on with views and
// ranges, so its end is told when it has closed its side, not before. Clients are taken in turn.
// Reactor thread only. docs/wire.md, "The local socket". SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "io/arena.h"
#include "io/listener.h"
#include "io/poller.h"
#include "io/unique_fd.h"
#include "plan/messages.h"
#include "wire/local_frame.h"

namespace hoplite {

struct LocalLimits {
  std::size_t clients_max = 4096;            // some 64 workers per core, with room
  std::uint64_t listen_below_bytes = 1_MiB;  // of replies waiting; above it no command is taken
  // Queued since the socket last took anything: 16,000 small gets that waited and are answered at
  // once. Who reads takes something while they are copied: for 2 s on two loaded cores.
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
  // kSystem when the directory is open to others, the path is too long, or a live node listens
  // there. REQUIRES: poller and arena outlive this.
  [[nodiscard]] static Result<LocalPort> open(const std::string& path, NodeId node,
                                              Incarnation incarnation, const LocalLimits& limits,
                                              Poller& poller, const Arena& arena,
                                              std::uint64_t first_token);
  LocalPort(LocalPort&&) noexcept = default;
  LocalPort& operator=(LocalPort&&) = delete;
  ~LocalPort();  // removes the socket's file

  void handle_ready(const Ready& ready);
  // Sends or queues the reply, with the bytes of the extent behind it where Fetched is not mapped;
  // the extent may be used again afterwards.
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
    kCutOff,  // not spoken with any more; what it holds stays its own until it has ended
    kEnded,   // it has closed its side; what it had said before is still to be taken
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
  // Takes in the whole frames at the front of `bytes`, and returns how many bytes they were; an
  // error means: close.
  [[nodiscard]] Result<std::size_t> parse(std::uint64_t token, Attachment& client,
                                          std::span<const std::byte> bytes);
  [[nodiscard]] Result<void> handle_frame(std::uint64_t token, Attachment& client, LocalFrame frame,
                                          Bytes payload);
  [[nodiscard]] Result<bool> send(Attachment& client);  // false: the socket is full
  void queue(std::uint64_t token, Attachment& client, Bytes frame,
             std::span<const std::byte> payload = {});
  void watch(std::uint64_t token, Attachment& client);
  [[nodiscard]] bool is_held_back(const Attachment& client) const;
  void line_up(std::uint64_t token, Attachment& client);
  void cut_off(std::uint64_t token, Attachment& client);  // the reference may end with it
  void lose(std::uint64_t token, Attachment& client);     // as well
  void leave(Attachment& client, State state);

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

// SPDX-License-Identifier: Apache-2.0
// Frames to the node, in order. The socket gets at once as much as it takes. The rest waits here,
// and the outbox's thread writes it when the socket has room. So no caller ever waits for a node
// that does not read, because it is stopped, swapped out or in a long turn. Owns the waiting frames
// and the thread, which starts with the first of them, but not the socket. Any thread. A forked
// child neither sends nor locks.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <thread>

#include "base/result.h"
#include "base/units.h"
#include "io/sockets/unique_fd.h"
#include "plan/messages.h"

namespace hoplite {

// 1 GiB: 16,000 small puts that start at once. A node that reads takes them in a second. Beyond it
// a command is refused with kStoreFull.
inline constexpr std::uint64_t kUnreadCommandsBytesMax = 1_GiB;

class Outbox {
 public:
  enum class Room : std::uint8_t {
    kBounded,  // kStoreFull beyond the bound
    kAlways,   // ends or releases something, so the number of such frames is bounded
  };

  struct Frames {
    std::span<const std::byte> head;     // the head of each frame, one after the other
    std::span<const std::size_t> ends;   // the end of each frame's head in `head`
    std::span<const std::byte> payload;  // belongs to the last
    Room room;
  };

  // The thread calls `read`, without a lock, while frames wait and bytes have arrived, because a
  // node does not read from a client that leaves its answers unread.
  Outbox(int socket, std::uint64_t waiting_bytes_max, std::function<void()> read);
  ~Outbox();
  Outbox(const Outbox&) = delete;
  Outbox& operator=(const Outbox&) = delete;
  [[nodiscard]] bool is_open() const { return wake_.is_open(); }

  // Returns the number of the first; the others' follow it. With an error none is sent: kStoreFull,
  // or kNodeLost.
  [[nodiscard]] Result<std::uint64_t> send(const Frames& frames);
  // Returns true if the frame is not sent, and never will be.
  [[nodiscard]] bool drop_unsent(std::uint64_t number);
  void flush();  // sends as much as the socket takes
  void close();  // the node is gone: drops all waiting frames
  void after_fork_in_child();

 private:
  struct Frame {
    Bytes bytes;
    std::size_t sent = 0;
  };
  // REQUIRES of all four: mutex_ is held.
  [[nodiscard]] Result<void> send_waiting();
  void queue_rest(std::uint64_t number, const Frames& frames, std::size_t sent);
  void drop(std::map<std::uint64_t, Frame>::iterator frame);
  void start();

  void run();
  void wake() const;

  int socket_;
  std::uint64_t waiting_bytes_max_;
  std::function<void()> read_;
  UniqueFd wake_;
  std::mutex mutex_;  // the innermost lock; no thread waits while it holds it
  std::uint64_t next_number_ = 1;
  std::map<std::uint64_t, Frame> waiting_;  // only the first one may be sent in part
  std::uint64_t waiting_bytes_ = 0;
  std::atomic<bool> is_closing_{false};
  std::unique_ptr<std::thread> thread_;
};

}  // namespace hoplite

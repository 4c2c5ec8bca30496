// SPDX-License-Identifier: Apache-2.0
// One rail to one peer is two TCP connections: control (messages, small objects) and bulk (blocks).
// A RailConnection is either of them: it owns the descriptor, the frames waiting to go out and the
// frame or block that is coming in. Payloads of blocks are sent from and received into the arena
// itself; no byte of them is copied here. Every length is checked before anything is allocated; an
// Error means: close. Partial reads and writes are the normal case. One thread at a time. Design
// decision 19.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "base/result.h"
#include "io/bulk/shared_receives.h"
#include "io/links/link_counters.h"
#include "io/memory/arena.h"
#include "io/sockets/stream.h"
#include "wire/frame.h"

namespace hoplite {

// Bytes that a turn may still move; shared by everything that moves some.
struct Budget {
  std::uint64_t bytes = 0;
  void take(std::uint64_t n) { bytes = n < bytes ? bytes - n : 0; }
};

struct QueuedPush {  // of the object, or the order to push it to the receiver
  ObjectId object;
  NodeId receiver;
  auto operator<=>(const QueuedPush&) const = default;
};
struct FrameIn {
  Frame frame;
  Bytes payload;
};
struct RailPlace {  // the parts of the node that a connection uses
  const Arena* arena = nullptr;
  SharedReceives* receives = nullptr;
  std::uint64_t arriving_bytes_max = 0;  // as in LinkLimits
  LinkCounters* counters = nullptr;
};

class RailConnection {
 public:
  RailConnection(UniqueFd fd, RailPlace place);

  [[nodiscard]] int fd() const { return stream_.fd(); }
  // REQUIRES: nothing was sent or received yet.
  void secure(std::unique_ptr<TlsSession> tls) { stream_.secure(std::move(tls)); }
  [[nodiscard]] bool is_encrypted() const { return stream_.tls() != nullptr; }
  // Returns a value that only these two ends know. Empty without TLS. REQUIRES: with TLS, some
  // bytes were received.
  [[nodiscard]] Bytes binding() const { return stream_.binding(); }
  // Hands the stream on. REQUIRES: no output waits, and every byte that was read is used up.
  [[nodiscard]] Stream release() { return std::move(stream_); }
  // Counts there from here on. REQUIRES: `counters` outlives this.
  void count_in(LinkCounters& counters) { place_.counters = &counters; }
  // True if there are bytes to send as soon as the kernel takes them.
  [[nodiscard]] bool has_output() const;
  [[nodiscard]] std::uint64_t queued_bytes() const { return queued_bytes_; }
  [[nodiscard]] std::uint64_t layout_bytes() const {  // that both ends remember
    return sent_layouts_.bytes() + received_layouts_.bytes();
  }

  // ---- out ----
  void queue_frame(Bytes frame, std::optional<QueuedPush> push = {});  // header, body and payload
  // For the frames that are queued next. REQUIRES: each frame is sent, in this order.
  [[nodiscard]] wire::Layouts& sent_layouts() { return sent_layouts_; }
  [[nodiscard]] bool is_queued(const QueuedPush& push) const { return pushes_.contains(push); }
  // The later BlockSent names its rail and ticket. REQUIRES: the extent stays as it is until then.
  void queue_block(const SendBlock& block);
  // Sends until the socket or the budget is full; appends a BlockSent to `events` for each block
  // that the kernel has taken whole. Frames go first.
  [[nodiscard]] Result<void> send(NodeId to, Budget& budget, std::vector<IoEvent>& events);

  // ---- in ----
  // Handshake and control: appends each complete frame. Without ReadAhead it takes no byte beyond
  // the first frame from the kernel, because blocks may follow a Proof. Bytes that TLS holds (up to
  // 64 KiB, one read of the kernel) are used up beyond the budget, because no poller reports them.
  [[nodiscard]] Result<void> receive_frames(ReadAhead ahead, Budget& budget,
                                            std::vector<FrameIn>& frames);
  // Bulk: appends a BlockLanded for each block that is in its place with the right checksum, and
  // ReceiveClosed behind the last read of a transfer that was closed meanwhile.
  [[nodiscard]] Result<void> receive_blocks(NodeId from, Budget& budget,
                                            std::vector<IoEvent>& events);

 private:
  struct OutFrame {
    Bytes bytes;
    std::optional<QueuedPush> push;
  };
  struct OutBlock {
    std::array<std::byte, kBlockFrameBytes> head{};
    SendBlock block;
    bool is_started = false;
  };
  enum class Sent : std::uint8_t { kAll, kSocketFull };
  enum class Parsed : std::uint8_t { kFrame, kNeedsMore };
  [[nodiscard]] Result<Sent> send_frames(Budget& budget);
  [[nodiscard]] Result<Sent> send_blocks(NodeId to, Budget& budget, std::vector<IoEvent>& events);
  [[nodiscard]] Result<Parsed> parse_frame(std::vector<FrameIn>& frames);
  [[nodiscard]] std::size_t frame_bytes_missing() const;
  [[nodiscard]] std::array<std::span<std::byte>, 2> next_places();  // for bytes of blocks
  [[nodiscard]] bool borrow_place(NodeId from);  // for one read; false: none is needed
  void give_place_back(NodeId from, std::vector<IoEvent>& events);
  [[nodiscard]] Result<void> begin_block(NodeId from);
  [[nodiscard]] Result<void> end_block(NodeId from, std::vector<IoEvent>& events);
  // Accounts for `got` bytes that recvmsg wrote to the block's place and then to head_.
  void advance_block(std::size_t got);
  [[nodiscard]] Result<std::size_t> receive(std::span<const std::span<std::byte>> into,
                                            ReadAhead ahead);
  [[nodiscard]] Result<void> share_window();
  [[nodiscard]] Result<void> await_block();
  [[nodiscard]] bool may_receive(const Budget& budget) const;

  Stream stream_;
  RailPlace place_;

  std::deque<OutFrame> frames_;
  std::set<QueuedPush> pushes_;  // those of frames_
  std::size_t frame_sent_ = 0;   // of frames_.front()
  std::deque<OutBlock> blocks_;
  std::uint64_t block_sent_ = 0;  // of blocks_.front(): head, then payload
  std::uint64_t queued_bytes_ = 0;

  wire::Layouts sent_layouts_, received_layouts_;

  Bytes input_;  // control: bytes not yet parsed, from input_read_ on
  std::size_t input_read_ = 0;

  std::array<std::byte, kBlockFrameBytes> head_{};  // bulk: of the block that comes in
  std::size_t head_got_ = 0;
  BlockHeader block_;
  Placement landing_;
  bool in_payload_ = false;
  std::uint64_t payload_got_ = 0;
  std::uint32_t crc_ = 0;
  bool is_window_limited_ = false;
  std::uint64_t awaited_bytes_ = 1;  // how many bytes make the socket readable
};

}  // namespace hoplite

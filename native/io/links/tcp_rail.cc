// SPDX-License-Identifier: Apache-2.0
#include "io/links/tcp_rail.h"

#include <sys/uio.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "base/check.h"
#include "io/log.h"
#include "io/sockets/tcp_socket.h"
#include "wire/crc32c.h"

namespace hoplite {
namespace {

// Frames in one sendmsg. A larger number does not shorten a turn measurably.
constexpr std::size_t kFramesPerSend = 16;
// 64 KiB, the most that the kernel carries as one packet. Small blocks leave together: alone, each
// block of 8 KiB is a packet of its own in every queue up to the receiver's socket.
constexpr std::uint64_t kBytesPerSend = 64_KiB;
constexpr std::size_t kBlocksPerSend = kBytesPerSend / kBlockBytesMin;
constexpr std::uint64_t kPacketBytes = 16_KiB;  // an average one's of a busy connection
// 64 KiB. With more, a wake-up costs less than it gains by copying while the rest is in flight.
constexpr std::uint64_t kAwaitedBytesMax = 64_KiB;
// 64 KiB per thread, shared by all connections. It takes the bytes that control connections read
// ahead, and blocks that no transfer waits for.
constexpr std::size_t kScratchBytes = 64_KiB;
thread_local std::array<std::byte, kScratchBytes> scratch;

iovec to_iovec(std::span<std::byte> bytes) { return {bytes.data(), bytes.size()}; }

}  // namespace

RailConnection::RailConnection(UniqueFd fd, RailPlace place)
    : stream_(std::move(fd)), place_(place) {}

bool RailConnection::has_output() const {
  return stream_.has_unsent() || (stream_.is_open() && (!frames_.empty() || !blocks_.empty()));
}

bool RailConnection::may_receive(const Budget& budget) const {
  return budget.bytes > 0 || stream_.has_unread();
}

// ---- out ----

void RailConnection::queue_frame(Bytes frame, std::optional<QueuedPush> push) {
  queued_bytes_ += frame.size();
  if (push) pushes_.insert(*push);
  frames_.push_back({std::move(frame), push});
}

void RailConnection::queue_block(const SendBlock& block) {
  HOPLITE_CHECK(block.header.size_bytes == block.extent.size_bytes);
  HOPLITE_CHECK(block.extent.size_bytes > 0);
  HOPLITE_CHECK(place_.arena->contains(block.extent));
  queued_bytes_ += kBlockFrameBytes + block.extent.size_bytes;
  blocks_.push_back({.head = {}, .block = block});
}

Result<void> RailConnection::send(NodeId to, Budget& budget, std::vector<IoEvent>& events) {
  if (auto flushed = stream_.flush(); !flushed) return flushed;
  while (budget.bytes > 0 && stream_.is_ready() && has_output()) {
    // The rest of a started block goes out before any frame, because a frame would split its bytes.
    const bool in_block = !blocks_.empty() && block_sent_ > 0;
    auto sent =
        !frames_.empty() && !in_block ? send_frames(budget) : send_blocks(to, budget, events);
    if (!sent) return sent.error();
    if (*sent == Sent::kSocketFull) break;
  }
  return {};
}

Result<RailConnection::Sent> RailConnection::send_frames(Budget& budget) {
  std::array<iovec, kFramesPerSend> parts{};
  std::size_t count = 0;
  std::size_t wanted = 0;
  for (OutFrame& frame : frames_) {
    if (count == parts.size()) break;
    const std::size_t skip = count == 0 ? frame_sent_ : 0;
    parts[count++] = to_iovec(std::span(frame.bytes).subspan(skip));
    wanted += frame.bytes.size() - skip;
  }
  auto result = stream_.send(std::span(parts).first(count));
  if (!result) return result.error();
  std::size_t sent = *result;
  const bool is_full = sent < wanted;
  place_.counters->bytes_sent += sent;
  queued_bytes_ -= sent;
  budget.take(sent);
  for (sent += frame_sent_; !frames_.empty() && sent >= frames_.front().bytes.size();) {
    sent -= frames_.front().bytes.size();
    if (frames_.front().push) pushes_.erase(*frames_.front().push);
    frames_.pop_front();
    ++place_.counters->frames_sent;
  }
  frame_sent_ = sent;
  return is_full ? Sent::kSocketFull : Sent::kAll;
}

Result<RailConnection::Sent> RailConnection::send_blocks(NodeId to, Budget& budget,
                                                         std::vector<IoEvent>& events) {
  std::array<iovec, 2 * kBlocksPerSend> parts{};
  std::size_t count = 0;
  std::uint64_t wanted = 0;
  std::uint64_t skip = block_sent_;
  for (OutBlock& out : blocks_) {
    if (wanted >= kBytesPerSend || count + 2 > parts.size()) break;
    const std::span<std::byte> payload = place_.arena->at(out.block.extent);
    if (!out.is_started) {
      if (out.block.header.crc32c == 0) out.block.header.crc32c = crc32c(payload);
      out.head = encode(out.block.header);
      out.is_started = true;
    }
    const auto head = std::span<std::byte>(out.head);
    if (skip < head.size()) parts[count++] = to_iovec(head.subspan(skip));
    parts[count++] = to_iovec(payload.subspan(skip > head.size() ? skip - head.size() : 0));
    wanted += head.size() + payload.size() - skip;
    skip = 0;
  }
  auto result = stream_.send(std::span(parts).first(count));
  if (!result) return result.error();
  const std::uint64_t sent = *result;
  queued_bytes_ -= sent;
  place_.counters->bytes_sent += sent;
  budget.take(sent);
  block_sent_ += sent;
  while (!blocks_.empty()) {
    const SendBlock& block = blocks_.front().block;
    const std::uint64_t whole = kBlockFrameBytes + block.extent.size_bytes;
    if (block_sent_ < whole) break;
    block_sent_ -= whole;
    events.emplace_back(BlockSent{to, block.rail, block.extent.size_bytes, block.ticket});
    ++place_.counters->blocks_sent;
    blocks_.pop_front();
  }
  return sent == wanted ? Sent::kAll : Sent::kSocketFull;
}

// ---- in ----

// Returns how many bytes arrived; 0: none at present. The peer's end of the stream is an error.
Result<std::size_t> RailConnection::receive(std::span<const std::span<std::byte>> into,
                                            ReadAhead ahead) {
  std::array<iovec, 2> parts{};
  HOPLITE_CHECK(into.size() <= parts.size());
  std::transform(into.begin(), into.end(), parts.begin(), to_iovec);
  auto got = stream_.receive(std::span(parts).first(into.size()), ahead);
  if (got) place_.counters->bytes_received += *got;
  return got;
}

std::size_t RailConnection::frame_bytes_missing() const {
  const std::size_t here = input_.size() - input_read_;
  if (here < kFrameHeaderBytes) return kFrameHeaderBytes - here;
  auto header = decode_header(std::span(input_).subspan(input_read_));
  if (!header) return 0;  // parse_frame says so
  const std::size_t whole = kFrameHeaderBytes + header->body_bytes + header->payload_bytes;
  return whole > here ? whole - here : 0;
}

Result<void> RailConnection::receive_frames(ReadAhead ahead, Budget& budget,
                                            std::vector<FrameIn>& frames) {
  bool has_more = true;
  while (may_receive(budget) && has_more) {
    const std::size_t missing = frame_bytes_missing();
    if (missing > 0) {
      const bool is_exact = ahead == ReadAhead::kNone;
      const std::span<std::byte> into =
          std::span(scratch).first(is_exact ? std::min(missing, kScratchBytes) : kScratchBytes);
      auto got = receive({&into, 1}, budget.bytes > 0 ? ahead : ReadAhead::kInHand);
      if (!got) return got.error();
      has_more = *got == into.size();  // less: there was no more
      input_.insert(input_.end(), into.begin(), into.begin() + static_cast<std::ptrdiff_t>(*got));
      budget.take(*got);
      if (is_exact && !is_encrypted() && is_tls(std::span(input_).subspan(input_read_))) {
        return Error{Code::kUnauthenticated,
                     "it speaks TLS, and data_tls is off here; give all nodes the same data_tls"};
      }
    }
    for (;;) {
      auto parsed = parse_frame(frames);
      if (!parsed) return parsed.error();
      if (*parsed == Parsed::kNeedsMore) break;
      if (ahead == ReadAhead::kNone) return {};
    }
  }
  return {};
}

Result<RailConnection::Parsed> RailConnection::parse_frame(std::vector<FrameIn>& frames) {
  const std::span<const std::byte> here = std::span(input_).subspan(input_read_);
  if (here.size() < kFrameHeaderBytes) {
    input_.erase(input_.begin(), input_.begin() + static_cast<std::ptrdiff_t>(input_read_));
    input_read_ = 0;
    return Parsed::kNeedsMore;
  }
  auto header = decode_header(here);
  if (!header) return header.error();
  if (header->type == FrameType::kBlock) {
    return Error{Code::kBadFrame, "a block on a control connection"};
  }
  const std::size_t body_end = kFrameHeaderBytes + header->body_bytes;
  const std::size_t whole = body_end + header->payload_bytes;
  if (here.size() < whole) {
    input_.erase(input_.begin(), input_.begin() + static_cast<std::ptrdiff_t>(input_read_));
    input_read_ = 0;
    return Parsed::kNeedsMore;
  }
  auto frame =
      decode_body(*header, here.subspan(kFrameHeaderBytes, header->body_bytes), &received_layouts_);
  if (!frame) return frame.error();
  const auto payload = here.subspan(body_end, header->payload_bytes);
  frames.push_back({std::move(*frame), Bytes(payload.begin(), payload.end())});
  ++place_.counters->frames_received;
  input_read_ += whole;
  return Parsed::kFrame;
}

// A single sender gets the window that the kernel gives it; several senders share
// arriving_bytes_max. The limit is set again after each read, because the kernel forgets it
// whenever it enlarges the socket's buffer.
Result<void> RailConnection::share_window() {
  const std::size_t senders = place_.receives->senders();
  const bool is_limited = senders > 1;
  if (!is_limited && !is_window_limited_) return {};
  is_window_limited_ = is_limited;
  const std::uint64_t share = place_.arriving_bytes_max / std::max<std::size_t>(senders, 1);
  return limit_window(fd(), is_limited ? std::max(share, kWindowBytesMin) : kWindowBytesMax);
}

Result<void> RailConnection::receive_blocks(NodeId from, Budget& budget,
                                            std::vector<IoEvent>& events) {
  bool has_more = true;
  while (may_receive(budget) && has_more) {
    const bool is_borrowed = borrow_place(from);
    const auto into = next_places();
    auto got = receive(std::span(into).first(into[1].empty() ? 1 : 2),
                       budget.bytes > 0 ? ReadAhead::kAllowed : ReadAhead::kInHand);
    if (got) advance_block(*got);
    if (is_borrowed) give_place_back(from, events);
    if (!got) return got.error();
    has_more = *got == into[0].size() + into[1].size();  // less: there was no more
    budget.take(*got);
    if (in_payload_ && payload_got_ == block_.size_bytes) {
      if (auto ended = end_block(from, events); !ended) return ended;
    }
    if (!in_payload_ && head_got_ == kBlockFrameBytes) {
      if (auto begun = begin_block(from); !begun) return begun;
    }
  }
  if (auto shared = share_window(); !shared) return shared;
  return await_block();
}

bool RailConnection::borrow_place(NodeId from) {
  if (!in_payload_ || landing_.arrival != Arrival::kLand) return false;
  if (place_.receives->begin_write(from, block_.transfer)) return true;
  landing_.arrival = Arrival::kDiscard;
  return false;
}

void RailConnection::give_place_back(NodeId from, std::vector<IoEvent>& events) {
  const SharedReceives::Loan loan = place_.receives->end_write(from, block_.transfer);
  if (loan == SharedReceives::Loan::kOpen) return;
  landing_.arrival = Arrival::kDiscard;
  if (loan == SharedReceives::Loan::kLastClosed) {
    events.emplace_back(ReceiveClosed{from, block_.transfer});
  }
}

// With the last bytes of a block comes the head of the next one: one call per block.
std::array<std::span<std::byte>, 2> RailConnection::next_places() {
  if (!in_payload_) return {std::span(head_).subspan(head_got_), {}};
  const std::uint64_t left = block_.size_bytes - payload_got_;
  const std::span<std::byte> payload =
      landing_.arrival == Arrival::kLand
          ? place_.arena->at(landing_.extent).subspan(payload_got_)
          : std::span(scratch).first(std::min<std::uint64_t>(left, kScratchBytes));
  return {payload, payload.size() == left ? std::span(head_) : std::span<std::byte>{}};
}

// A block is useless until it is whole. So no part of it wakes the reactor while a packet brings
// less than the missing bytes. The kernel wakes it nevertheless when the window would close and at
// the end of the stream.
Result<void> RailConnection::await_block() {
  const std::uint64_t missing = in_payload_ ? block_.size_bytes - payload_got_ : 1;
  const std::uint64_t awaited =
      missing > kPacketBytes ? std::min(missing, kAwaitedBytesMax) : std::uint64_t{1};
  // Records are longer than what is in them, and one may lie half read in the session.
  if (awaited == awaited_bytes_ || is_encrypted()) return {};
  awaited_bytes_ = awaited;
  return await_bytes(fd(), awaited);
}

void RailConnection::advance_block(std::size_t got) {
  if (in_payload_) {
    const auto of_block =
        static_cast<std::size_t>(std::min<std::uint64_t>(got, block_.size_bytes - payload_got_));
    if (landing_.arrival == Arrival::kLand) {
      crc_ = crc32c(place_.arena->at(landing_.extent).subspan(payload_got_, of_block), crc_);
    } else {
      place_.counters->bytes_discarded += of_block;
    }
    payload_got_ += of_block;
    got -= of_block;
  }
  head_got_ += got;
}

Result<void> RailConnection::begin_block(NodeId from) {
  auto header = decode_header(head_);
  if (!header) return header.error();
  if (header->type != FrameType::kBlock) {
    return Error{Code::kBadFrame, "a frame that is no block on a bulk connection"};
  }
  auto block = decode_block(*header, std::span(head_).subspan(kFrameHeaderBytes));
  if (!block) return block.error();
  block_ = *block;
  landing_ = place_.receives->place(from, block_);
  if (landing_.arrival == Arrival::kHostile) {
    return Error{Code::kBadFrame, "a block of " + short_name(block_.object) + " at " +
                                      std::to_string(block_.offset) +
                                      " that its transfer can't have"};
  }
  in_payload_ = true;
  payload_got_ = 0;
  head_got_ = 0;
  crc_ = 0;
  return {};
}

Result<void> RailConnection::end_block(NodeId from, std::vector<IoEvent>& events) {
  in_payload_ = false;
  if (landing_.arrival != Arrival::kLand) {
    ++place_.counters->blocks_discarded;
    return {};
  }
  if (crc_ != block_.crc32c) {
    ++place_.counters->blocks_corrupt;
    return Error{Code::kBadFrame, "block of " + short_name(block_.object) + " at " +
                                      std::to_string(block_.offset) + " from " + node_name(from) +
                                      " has a wrong CRC-32C"};
  }
  ++place_.counters->blocks_landed;
  events.emplace_back(BlockLanded{from, block_.transfer, landing_.block, crc_});
  return {};
}

}  // namespace hoplite

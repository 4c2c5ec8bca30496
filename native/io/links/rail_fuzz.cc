// SPDX-License-Identifier: Apache-2.0
// libFuzzer: a member says anything on its bulk and control connections, cut into any pieces. No
// byte of it lands outside of what it may fill.
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "base/check.h"
#include "base/fuzz_input.h"
#include "io/links/tcp_rail.h"
#include "wire/crc32c.h"

namespace hoplite {
namespace {

constexpr std::uint64_t kArenaBytes = 64_KiB;
constexpr Extent kAllowed{4096, 1000};
constexpr std::uint32_t kBlock = 64;
constexpr NodeId kPeer{2};
constexpr std::uint64_t kTurnBytes = 1_MiB;

OpenReceive open_receive() {
  OpenReceive receive;
  receive.transfer = TransferId{1};
  receive.from = kPeer;
  receive.object.bytes.fill(9);
  receive.incarnation = Incarnation{1};
  receive.meta.size_bytes = kAllowed.size_bytes;
  receive.meta.block_bytes = kBlock;
  receive.base = kAllowed;
  return receive;
}

// Correct except for the fields that the input sets, because a stranger's bytes would rarely be
// correct.
void append_block(FuzzInput& input, Bytes& out) {
  BlockHeader header;
  header.transfer = TransferId{input.number() % 4U};
  header.object.bytes.fill(9);
  header.incarnation = Incarnation{1};
  header.offset = std::uint64_t{input.number()} * (kBlock / 2);
  header.size_bytes = 1 + input.number();
  const Bytes payload(header.size_bytes, std::byte{0xAB});
  header.crc32c = crc32c(payload) + (input.number() == 0 ? 1U : 0U);
  const auto head = encode(header);
  out.insert(out.end(), head.begin(), head.end());
  out.insert(out.end(), payload.begin(), payload.end());
}

Bytes stream_of(FuzzInput& input) {
  Bytes stream;
  while (!input.is_empty()) {
    if (input.number() % 2 == 0) {
      append_block(input, stream);
    } else {
      const auto raw = input.take(input.number());
      stream.insert(stream.end(), raw.begin(), raw.end());
    }
  }
  return stream;
}

// Says the stream in pieces of `piece` bytes, until the connection is to be closed.
template <typename Hear>
void play(int to, std::span<const std::byte> stream, std::size_t piece, const Hear& hear) {
  while (!stream.empty()) {
    const auto said = stream.first(std::min(piece, stream.size()));
    HOPLITE_CHECK(::send(to, said.data(), said.size(), MSG_NOSIGNAL) == std::ssize(said));
    stream = stream.subspan(said.size());
    if (!hear()) return;
  }
}

std::array<UniqueFd, 2> connect() {
  std::array<int, 2> ends{};
  HOPLITE_CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) == 0);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

void check_arena(const Arena& arena) {
  const auto is_untouched = [&](Extent extent) {
    const auto bytes = arena.at(extent);
    return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{}; });
  };
  constexpr std::uint64_t kEnd = kAllowed.offset + kAllowed.size_bytes;
  HOPLITE_CHECK(is_untouched({0, kAllowed.offset}));
  HOPLITE_CHECK(is_untouched({kEnd, kArenaBytes - kEnd}));
}

}  // namespace
}  // namespace hoplite

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace hoplite;
  static const Arena arena = [] {
    auto opened = Arena::open(kArenaBytes);
    HOPLITE_CHECK(opened.has_value());
    return std::move(*opened);
  }();
  FuzzInput input(std::as_bytes(std::span(data, size)));
  const std::size_t piece = 1U + input.number();
  const std::size_t abandoned_after = input.number();
  const Bytes stream = stream_of(input);
  SharedReceives receives(kArenaBytes);
  receives.open(open_receive());
  LinkCounters counters;
  const RailPlace place{&arena, &receives, 0, &counters};

  auto bulk_ends = connect();
  RailConnection bulk(std::move(bulk_ends[1]), place);
  std::vector<IoEvent> events;
  std::size_t heard = 0;
  play(bulk_ends[0].value(), stream, piece, [&] {
    if (++heard == abandoned_after) HOPLITE_CHECK(receives.close(kPeer, TransferId{1}));
    Budget budget{kTurnBytes};
    return bulk.receive_blocks(kPeer, budget, events).has_value();
  });
  check_arena(arena);
  HOPLITE_CHECK(events.size() == counters.blocks_landed);

  auto control_ends = connect();
  RailConnection control(std::move(control_ends[1]), place);
  std::vector<FrameIn> frames;
  play(control_ends[0].value(), stream, piece, [&] {
    Budget budget{kTurnBytes};
    return control.receive_frames(ReadAhead::kAllowed, budget, frames).has_value();
  });
  return 0;
}

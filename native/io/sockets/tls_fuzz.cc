// SPDX-License-Identifier: Apache-2.0
// libFuzzer: a relay between two ends of TLS cuts, delays, changes and repeats their bytes, and
// each end reads as it likes. An end receives only bytes that the other has sent, in that order.
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "base/check.h"
#include "io/sockets/authority_test.h"
#include "io/sockets/stream.h"

namespace hoplite {
namespace {

constexpr std::size_t kSaidMax = 40'000;  // at a time: some records

const TlsContext& context() {
  static const TlsContext made = [] {
    auto opened = TlsContext::open(Authority().certify(), 100'000);  // keys change often
    HOPLITE_CHECK(opened.has_value());
    return std::move(*opened);
  }();
  return made;
}

std::byte byte_at(std::size_t offset) { return std::byte(offset % 251); }

std::array<UniqueFd, 2> connect() {
  std::array<int, 2> ends{};
  HOPLITE_CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()) ==
                0);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

// One end, and the descriptor by which the relay speaks with it.
class End {
 public:
  explicit End(TlsSession::Side side) : End(connect(), side) {}

  void send_some(std::size_t size) {
    if (is_gone_ || !stream_.is_ready()) return;
    Bytes next(size);
    for (std::size_t i = 0; i < size; ++i) next[i] = byte_at(sent_bytes_ + i);
    iovec part{next.data(), next.size()};
    auto taken = stream_.send({&part, 1});
    is_gone_ = !taken;
    if (taken) sent_bytes_ += *taken;
  }
  void receive_some(std::size_t size, ReadAhead ahead) {
    Bytes into(size);
    do {  // what was read ahead is used up before the other end's turn
      if (is_gone_ || !stream_.flush()) return;
      std::array parts{iovec{into.data(), size / 3},
                       iovec{into.data() + size / 3, size - size / 3}};
      auto got = stream_.receive(parts, ahead);
      is_gone_ = !got;
      for (std::size_t i = 0; got && i < *got; ++i)
        HOPLITE_CHECK(into[i] == byte_at(received_bytes_++));
    } while (stream_.has_unread() && ahead == ReadAhead::kAllowed);
  }
  [[nodiscard]] int wire() const { return wire_.value(); }
  [[nodiscard]] std::size_t sent_bytes() const { return sent_bytes_; }
  [[nodiscard]] std::size_t received_bytes() const { return received_bytes_; }

 private:
  End(std::array<UniqueFd, 2> ends, TlsSession::Side side)
      : stream_(std::move(ends[0]), context().begin(side)), wire_(std::move(ends[1])) {}

  Stream stream_;
  UniqueFd wire_;
  bool is_gone_ = false;
  std::size_t sent_bytes_ = 0, received_bytes_ = 0;
};

// Passes at most `size` bytes on: the last of them changed, or all of them twice.
void pass(const End& from, const End& to, std::size_t size, bool changed, bool twice) {
  Bytes some(size);
  const ssize_t got = ::recv(from.wire(), some.data(), some.size(), MSG_DONTWAIT);
  if (got <= 0) return;
  some.resize(static_cast<std::size_t>(got));
  if (changed) some.back() ^= std::byte{1};
  for (int i = 0; i < (twice ? 2 : 1); ++i) {
    static_cast<void>(::send(to.wire(), some.data(), some.size(), MSG_DONTWAIT | MSG_NOSIGNAL));
  }
}

void step(End& one, End& other, std::uint8_t deed, std::size_t size) {
  switch (deed % 8) {
    case 0:
      return one.send_some(size);
    case 1:
      return one.receive_some(size, ReadAhead::kAllowed);
    case 2:
      return one.receive_some(size, ReadAhead::kNone);
    case 3:
      return one.receive_some(size, ReadAhead::kInHand);
    case 4:
      return pass(one, other, size, true, false);
    case 5:
      return pass(one, other, size, false, true);
    default:
      return pass(one, other, size, false, false);
  }
}

}  // namespace
}  // namespace hoplite

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace hoplite;
  std::span<const std::uint8_t> input(data, size);
  if (input.empty()) return 0;
  End dialler(TlsSession::Side::kDials), listener(TlsSession::Side::kListens);
  for (int turn = 0; turn < 3 && input[0] % 4 != 0; ++turn) {  // mostly they have met already
    for (auto [one, other] : {std::pair(&dialler, &listener), std::pair(&listener, &dialler)}) {
      one->receive_some(1, ReadAhead::kNone);
      pass(*one, *other, kSaidMax, false, false);
    }
  }
  for (input = input.subspan(1); input.size() >= 3; input = input.subspan(3)) {
    const bool is_first = input[0] % 2 == 0;
    step(is_first ? dialler : listener, is_first ? listener : dialler, input[0] / 2,
         1U + (input[1] * 256U + input[2]) % kSaidMax);
  }
  HOPLITE_CHECK(listener.received_bytes() <= dialler.sent_bytes());
  HOPLITE_CHECK(dialler.received_bytes() <= listener.sent_bytes());
  return 0;
}

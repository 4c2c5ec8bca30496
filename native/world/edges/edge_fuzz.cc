// SPDX-License-Identifier: Apache-2.0
// libFuzzer: a peer sends any bytes in any pieces while this member sends, receives and cancels.
// The edge ends or goes on. No byte lands outside of a receive's buffer, and the edge keeps no more
// than the window allows.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "base/check.h"
#include "base/fuzz_input.h"
#include "world/edges/edge_rules.h"

namespace hoplite::worlds {
namespace {

using Data = std::vector<std::byte>;

constexpr EdgeLimits kLimits{.window_bytes = 4096,
                             .payload_bytes_min = 64,
                             .payload_bytes_max = 512,
                             .message_bytes_max = 1_MiB};
constexpr std::size_t kOperationsMax = 64;  // under way at once
constexpr std::byte kUntouched{0x5A};

// The buffer of a receive, between two fences that must stay unchanged.
struct Lent {
  explicit Lent(std::size_t size) : bytes(size + 2 * kFence, kUntouched) {}
  static constexpr std::size_t kFence = 16;
  Data bytes;
  [[nodiscard]] std::span<std::byte> place() {
    return std::span(bytes).subspan(kFence, bytes.size() - 2 * kFence);
  }
  void check() const {
    const auto is_untouched = [](std::byte each) { return each == kUntouched; };
    HOPLITE_CHECK(std::ranges::all_of(std::span(bytes).first(kFence), is_untouched));
    HOPLITE_CHECK(std::ranges::all_of(std::span(bytes).last(kFence), is_untouched));
  }
};

class Session {
 public:
  explicit Session(FuzzInput input) : input_(input) {}

  void run() {
    while (!input_.is_empty() && step()) {
      take_outcomes();
      for (const Lent& each : lent_) each.check();
    }
  }

 private:
  bool step() {
    switch (input_.number() % 8) {
      case 0:
        return feed(message());
      case 1:
        return feed(envelope());
      case 2: {
        const auto raw = input_.take(input_.number());
        return feed(Data(raw.begin(), raw.end()));
      }
      case 3:
        return receive();
      case 4:
        send();
        return true;
      case 5:
        return last_ == 0 || rules_.handle_cancel(OperationId{1 + input_.number() % last_});
      case 6:
        if (input_.number() == 0) rules_.handle_leave();
        return true;
      default:
        write();
        return true;
    }
  }

  // Returns a message that is valid, except where the input makes it wrong.
  Data message() {
    Envelope said{Verb::kMessage, input_.number(), {}};
    said.content.key = MatchKey{input_.number() % 3U};
    said.content.operation = input_.number() % 2;
    said.content.size_bytes = said.payload_bytes + input_.number() % 4 * 300U;
    said.content.dtype = input_.number() % 4 == 0 ? "float32" : "uint8";
    Data bytes;
    encode_envelope(said, bytes);
    bytes.resize(bytes.size() + said.payload_bytes, std::byte{0xAB});
    return bytes;
  }

  Data envelope() {
    Envelope said{static_cast<Verb>(1 + input_.number() % 5), 0, {}};
    if (said.verb == Verb::kMessage || said.verb == Verb::kData) {
      said.payload_bytes = input_.number();
    }
    said.content.key = MatchKey{input_.number() % 3U};
    said.content.size_bytes = std::uint64_t{input_.number()} * 16;
    Data bytes;
    encode_envelope(said, bytes);
    bytes.resize(bytes.size() + said.payload_bytes, std::byte{0xCD});
    return bytes;
  }

  // Takes bytes like Edge::read_some(): into their place, if it is known, or else ahead.
  bool feed(const Data& bytes) {
    std::span<const std::byte> rest = bytes;
    while (!rest.empty()) {
      if (rules_.has_left() || rules_.ending()) return false;
      const std::size_t piece = std::min<std::size_t>(rest.size(), 1 + input_.number());
      const std::span<std::byte> place = rules_.target();
      if (!place.empty() && input_.number() % 2 == 0) {
        const std::size_t count = std::min(piece, place.size());
        std::copy_n(rest.begin(), count, place.begin());
        if (!rules_.handle_landed(count)) return false;
        rest = rest.subspan(count);
        continue;
      }
      const auto used = rules_.handle_bytes(rest.first(piece));
      if (!used) return false;
      HOPLITE_CHECK(*used > 0 && *used <= piece);
      rest = rest.subspan(*used);
    }
    return true;
  }

  bool receive() {
    if (open_ >= kOperationsMax) return true;
    ++open_;
    Wanted wanted{MatchKey{input_.number() % 3U}, static_cast<std::uint8_t>(input_.number() % 2),
                  "uint8", std::nullopt};
    if (input_.number() % 2 == 0) wanted.into = lent_.emplace_back(input_.number()).place();
    return static_cast<bool>(rules_.handle_receive(OperationId{++last_}, std::move(wanted)));
  }

  void send() {
    if (open_ >= kOperationsMax) return;
    ++open_;
    Content content;
    content.key = MatchKey{input_.number() % 3U};
    content.size_bytes = std::uint64_t{input_.number()} * 20;
    content.dtype = "uint8";
    const Data& data = sent_.emplace_back(content.size_bytes);
    rules_.handle_send(OperationId{++last_}, std::move(content), data);
  }

  void write() {
    const Frame frame = rules_.poll_frame();
    const std::size_t size = frame.head.size() + frame.payload.size();
    HOPLITE_CHECK(frame.payload.size() <= kLimits.payload_bytes_max);
    if (size > 0) rules_.handle_written(1 + input_.number() % size);
  }

  void take_outcomes() {
    while (const auto outcome = rules_.poll_outcome()) {
      HOPLITE_CHECK(outcome->operation.value > 0 && outcome->operation.value <= last_);
    }
  }

  FuzzInput input_;
  EdgeRules rules_{Rank{1}, kLimits};
  std::uint64_t last_ = 0;
  std::size_t open_ = 0;
  std::deque<Lent> lent_;
  std::deque<Data> sent_;
};

}  // namespace
}  // namespace hoplite::worlds

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  hoplite::worlds::Session(hoplite::FuzzInput(std::as_bytes(std::span(data, size)))).run();
  return 0;
}

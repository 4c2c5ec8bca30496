// SPDX-License-Identifier: Apache-2.0
// Two sides of a link with real sockets on loopback. Time is the test's: limits pass without
// waiting for them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/must_test.h"
#include "io/links/links.h"
#include "io/sockets/authority_test.h"

namespace hoplite {

inline constexpr std::uint32_t kBlock = 1024 * 1024;  // more than two sockets hold
inline constexpr std::uint64_t kArena = 64_MiB;
inline constexpr Extent kPayload{0, 64_KiB};

struct Side {
  explicit Side(std::uint64_t node, std::string secret = "secret", std::uint32_t life = 1,
                std::vector<std::string> rails = {"127.0.0.1:0"})
      : member{NodeId{node}, Incarnation{life}, {}},
        poller(must(Poller::open())),
        arena(must(Arena::open(kArena))),
        links(must(Links::open({NodeId{node}, Incarnation{life}, std::move(secret), tls()}, limits,
                               rails, poller, arena, 1))) {
    member.rails = links.rails();
  }

  static std::optional<TlsContext> tls() {
    if (authority == nullptr) return std::nullopt;
    return must(TlsContext::open(authority->certify()));
  }
  // Settings of every Side that a test makes later: the authority of those with TLS, and the
  // limits.
  static inline const Authority* authority = nullptr;
  static inline LinkLimits limits;

  void turn(Instant now, std::uint64_t budget_bytes = 1_MiB) {
    Budget budget{budget_bytes};
    links.handle_ready(poller.wait(1_ms), budget, now);
    links.handle_timeout(now);
    Budget out{budget_bytes};
    links.flush(out, now);
    for (IoEvent& event : links.take_events()) events.push_back(std::move(event));
  }
  template <typename T>
  std::size_t count() const {
    return static_cast<std::size_t>(
        std::count_if(events.begin(), events.end(),
                      [](const IoEvent& e) { return std::holds_alternative<T>(e); }));
  }
  template <typename T>
  const T& last() const {
    const auto found = std::find_if(events.rbegin(), events.rend(),
                                    [](const IoEvent& e) { return std::holds_alternative<T>(e); });
    HOPLITE_CHECK(found != events.rend());
    return std::get<T>(*found);
  }

  Member member;
  Poller poller;
  Arena arena;
  Links links;
  std::vector<IoEvent> events;
};

enum class DataTls : std::uint8_t { kOff, kOn };

class LinkSides : public ::testing::Test {
 protected:
  explicit LinkSides(DataTls tls) {
    Side::authority = tls == DataTls::kOn ? &ours_ : nullptr;
    Side::limits = {};
  }
  // Turns all sides until `done`; false after a number of turns that no healthy run comes near.
  bool run(const std::vector<Side*>& sides, const std::function<bool()>& done) {
    for (int i = 0; i < 5000 && !done(); ++i) {
      for (Side* side : sides) side->turn(now_);
    }
    return done();
  }
  bool connect_both(Side& a, Side& b) {
    a.links.connect(b.member, now_);
    b.links.connect(a.member, now_);
    const auto up = [](const Side& side) { return side.count<LinkUp>(); };
    const std::size_t at_a = up(a) + 1, at_b = up(b) + 1;
    return run({&a, &b}, [&] { return up(a) == at_a && up(b) == at_b; });
  }
  static OpenReceive receive_of(const Side& from, std::uint32_t blocks) {
    OpenReceive receive;
    receive.transfer = TransferId{5};
    receive.from = from.member.node;
    receive.object.bytes.fill(9);
    receive.incarnation = Incarnation{1};
    receive.meta.size_bytes = std::uint64_t{blocks} * kBlock;
    receive.meta.block_bytes = kBlock;
    receive.base = {1_MiB, receive.meta.size_bytes};
    return receive;
  }
  static SendBlock block_to(Side& from, const Side& to, std::uint32_t index) {
    const Extent extent{std::uint64_t{index} * kBlock, kBlock};
    const auto bytes = from.arena.at(extent);
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7 + index);
    BlockHeader header;
    header.transfer = TransferId{5};
    header.object.bytes.fill(9);
    header.incarnation = Incarnation{1};
    header.offset = extent.offset;
    header.size_bytes = kBlock;
    return {to.member.node, RailId{0}, header, extent};
  }
  // A push with a payload of 64 KiB, and the other messages about the object.
  static SendMessage push_to(const Side& to, std::uint8_t object, std::vector<NodeId> forward) {
    Push push;
    push.object.bytes.fill(object);
    push.meta.size_bytes = kPayload.size_bytes;
    push.meta.parts = {{DType::kOpaque, push.meta.size_bytes}};
    push.forward = std::move(forward);
    return {to.member.node, {Epoch{1}, TransferId{0}, TraceId{3}, push}, kPayload};
  }
  static SendMessage order_to(const Side& to, std::uint64_t receiver) {
    PushTo order{{}, Incarnation{1}, {NodeId{receiver}}};
    return {to.member.node, {Epoch{1}, TransferId{0}, TraceId{3}, order}, std::nullopt};
  }
  static SendMessage claim_to(const Side& to) {
    return {to.member.node, {Epoch{1}, TransferId{0}, TraceId{3}, Claim{}}, kPayload};
  }
  static Message small_message(std::uint32_t blocks) {
    Message message;
    message.view_epoch = Epoch{1};
    message.transfer = TransferId{8};
    message.body = Credit{blocks};
    return message;
  }
  void pass(Duration time) { now_ = now_ + time; }

  Instant now_{1'000'000'000};
  Authority ours_;
};

// Each test runs without TLS and with it. Only the bytes on the wire differ.
class LinksTest : public LinkSides, public ::testing::WithParamInterface<DataTls> {
 protected:
  LinksTest() : LinkSides(GetParam()) {}
};

}  // namespace hoplite

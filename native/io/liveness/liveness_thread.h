// SPDX-License-Identifier: Apache-2.0
// The liveness thread itself, which runs in a descriptor table of its own. Used by liveness.cc
// only; all state belongs to that one thread.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>

#include "base/result.h"
#include "io/liveness/liveness.h"
#include "io/sockets/poller.h"
#include "plan/messages.h"
#include "wire/frame.h"

namespace hoplite {

class LivenessThread {
 public:
#ifdef __SANITIZE_THREAD__  // TSan knows a descriptor by its number alone, in whichever table
  static constexpr bool kHasOwnTable = false;
#else
  static constexpr bool kHasOwnTable = true;
#endif

  // Runs the thread: sends 0 or an errno on `orders`, then works until the other end is shut down.
  // REQUIRES: `orders` is in the process's table and stays open until the answer.
  static void thread_main(int orders, const LivenessLimits& limits) noexcept;

 private:
  struct Connection {
    Stream stream;
    NodeId node;
    Incarnation incarnation;
    RailId rail;
    std::array<std::byte, kFrameHeaderBytes> input{};  // a frame without a body
    std::size_t input_got = 0;
    std::size_t pulse_sent = 0;  // bytes of a Pulse that did not fit whole
  };
  using Connections = std::map<std::uint64_t, Connection>;  // by the poller's token

  // Leaves the process's descriptor table: the thread then has standard error and `orders` alone.
  [[nodiscard]] static Result<void> leave_table(int orders);
  [[nodiscard]] static Result<LivenessThread> open(UniqueFd orders, const LivenessLimits& limits);
  LivenessThread(UniqueFd orders, Poller poller, const LivenessLimits& limits);

  void run() noexcept;
  void take_orders();
  void handle_order(const LivenessOrder& order, Stream connection);
  void receive_from(Connections::iterator each);
  // Returns how the byte stream ended, or nothing while it is open.
  [[nodiscard]] std::optional<RailEnd> receive(Connection& connection);
  // Returns false for a frame that is not allowed here.
  [[nodiscard]] bool handle_input(Connection& connection, std::span<const std::byte> bytes);
  void pulse(Connections::iterator each);
  // Returns how many bytes the kernel took.
  [[nodiscard]] static Result<std::size_t> send_bytes(Connection& connection,
                                                      std::span<const std::byte> bytes);
  void end(Connections::iterator each, RailEnd how);
  void end_connections(NodeId node, Incarnation upto);  // Goodbye, and close
  void tick(Instant now);
  void send_events();

  UniqueFd orders_;
  Poller poller_;
  LivenessRules rules_;
  Connections connections_;
  std::deque<LivenessEvent> unsent_events_;  // events that wait for the reactor
  Instant next_tick_;
  std::uint64_t next_token_;
  bool is_running_ = true;
};

}  // namespace hoplite

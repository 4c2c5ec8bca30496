// SPDX-License-Identifier: Apache-2.0
// The order in which frames of a link arrive.
#include "sim/model/network.h"

#include <gtest/gtest.h>

#include <string>

namespace hoplite::sim {
namespace {

constexpr NodeId kA{1}, kB{2};

class NetworkTest : public testing::Test, NetworkUser {
 protected:
  void SetUp() override {
    for (const NodeId node : {kA, kB}) network_.start_node(node, Incarnation{1});
    network_.connect(kA, kB, Incarnation{1});
    network_.connect(kB, kA, Incarnation{1});
    run_until(timeline_.now() + 10_ms);
  }
  void send(char name) { network_.send(kA, kB, {static_cast<std::byte>(name)}, 0); }
  void run_until(Instant end) {
    for (auto at = timeline_.next_at(); at && *at <= end; at = timeline_.next_at()) {
      timeline_.step();
    }
    timeline_.advance(end);
  }

  Timeline timeline_;
  Network network_{{}, timeline_, *this, 1};
  std::string heard_;

 private:
  void handle_frame(NodeId, NodeId, ConnectionKind, ByteVector frame, std::uint32_t) override {
    heard_ += static_cast<char>(frame.front());
  }
  std::pair<ByteVector, std::uint32_t> read_block(NodeId, const SendBlock&) override { return {}; }
  void handle_block_sent(NodeId, const BlockSent&) override {}
  void handle_link_up(NodeId node, NodeId peer, Incarnation, std::uint64_t life) override {
    network_.note_life(node, peer, life);
  }
  void handle_link_down(NodeId, NodeId) override {}
  void handle_peer_dead(NodeId, NodeId, Incarnation) override {}
};

TEST_F(NetworkTest, FramesOnTheirWayKeepTheirOrderWhenAStallIsProlonged) {
  const Instant start = timeline_.now();  // a frame is on its way for 30 us
  send('a');
  run_until(start + 4_us);
  send('b');
  run_until(start + 10_us);
  network_.stall_way(kA, kB, 25_us);
  run_until(start + 33_us);  // the first one waits, the second one is still on its way
  network_.stall_way(kA, kB, 67_us);
  run_until(start + 99_us);
  EXPECT_EQ(heard_, "");
  run_until(start + 1_ms);
  EXPECT_EQ(heard_, "ab");
}

}  // namespace
}  // namespace hoplite::sim

// An edge within one process, whose faults and delays somebody else decides: for tests, of worlds
// and of what is built on them. Bytes pass as they are written, or wait to be let through, one by
// one if need be; an end dies, freezes or is cut off when it is told to.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>

#include "base/units.h"
#include "io/unique_fd.h"
#include "world/pipe.h"

namespace hoplite::worlds {

enum class FakeSide : std::uint8_t { kFirst, kSecond };

// What is between the two ends. Any thread.
class FakeWire {
 public:
  static constexpr std::uint64_t kRoomBytes = 256_KiB;  // that wait, in each direction

  [[nodiscard]] static Result<std::shared_ptr<FakeWire>> open();

  void hold();     // what is written waits from now on
  void release();  // and goes on
  // Lets so many bytes through to an end; returns how many there were.
  std::uint64_t deliver(FakeSide to, std::uint64_t bytes);
  // An end finds, after what has come through, that the other one is gone in this way: kPeerLost,
  // kTimeout (frozen) or kSystem (cut off). What was under way to it is lost.
  void end(FakeSide at, Code how);

 private:
  friend class FakePipe;
  struct Way {  // towards one end
    std::deque<std::byte> bytes;
    std::uint64_t through = 0;  // of them may be read
    std::optional<Code> ended;
    bool is_finished = false;  // by who writes it
    UniqueFd bell;             // of the end that reads it; rings for room on its other way as well
  };
  FakeWire(UniqueFd first, UniqueFd second);
  [[nodiscard]] Way& to(FakeSide side) { return ways_[static_cast<std::size_t>(side)]; }

  std::mutex mutex_;
  std::array<Way, 2> ways_;
  bool is_held_ = false;
};

class FakePipe final : public Pipe {
 public:
  FakePipe(std::shared_ptr<FakeWire> wire, FakeSide side) : wire_(std::move(wire)), side_(side) {}
  ~FakePipe() override;  // the other end finds that this one is gone

  [[nodiscard]] Result<std::size_t> write(std::span<iovec> parts) override;
  [[nodiscard]] Result<std::size_t> read(std::span<iovec> parts) override;
  [[nodiscard]] std::size_t read_ahead_bytes() const override { return 0; }
  [[nodiscard]] int fd() const override;
  [[nodiscard]] bool await(Interest interest, std::uint64_t enough) override;
  [[nodiscard]] Interest interest_of(Interest) const override { return Interest::kRead; }
  void handle_ready() override;
  void finish() override;
  [[nodiscard]] bool took_all() const override;
  [[nodiscard]] const char* name() const override { return "fake"; }

 private:
  [[nodiscard]] FakeWire::Way& in() const { return wire_->to(side_); }
  [[nodiscard]] FakeWire::Way& out() const;
  std::shared_ptr<FakeWire> wire_;
  FakeSide side_;
};

}  // namespace hoplite::worlds

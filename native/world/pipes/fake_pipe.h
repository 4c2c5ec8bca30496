// SPDX-License-Identifier: Apache-2.0
// An edge within one process, for tests of worlds and of their users. The test decides its faults
// and delays: bytes pass at once or wait for deliver(), and end() lets an end die, freeze or be cut
// off.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>

#include "base/units.h"
#include "io/sockets/unique_fd.h"
#include "world/pipes/pipe.h"

namespace hoplite::worlds {

enum class FakeSide : std::uint8_t { kFirst, kSecond };

// The connection between the two ends. Any thread.
class FakeWire {
 public:
  static constexpr std::uint64_t kRoomBytes = 256_KiB;  // of each direction; a writer waits beyond

  [[nodiscard]] static Result<std::shared_ptr<FakeWire>> open();

  void hold();     // makes written bytes wait for deliver() or release()
  void release();  // lets all waiting and later bytes through
  // Lets up to `bytes` bytes through to an end. Returns how many it let through.
  std::uint64_t deliver(FakeSide to, std::uint64_t bytes);
  // Makes the end `at` find, after the bytes let through, that the other one is gone: kPeerLost
  // (died), kTimeout (frozen) or kSystem (cut off). The bytes still waiting for it are lost.
  void end(FakeSide at, Code how);

 private:
  friend class FakePipe;
  struct Way {  // towards one end
    std::deque<std::byte> bytes;
    std::uint64_t through = 0;  // how many of `bytes` may be read
    std::optional<Code> ended;
    bool is_finished = false;  // True if the writing end has closed it
    UniqueFd bell;             // wakes the reading end, also when its other way has room again
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
  [[nodiscard]] bool has_delivered_all() const override;
  [[nodiscard]] const char* name() const override { return "fake"; }

 private:
  [[nodiscard]] FakeWire::Way& in() const { return wire_->to(side_); }
  [[nodiscard]] FakeWire::Way& out() const;
  std::shared_ptr<FakeWire> wire_;
  FakeSide side_;
};

}  // namespace hoplite::worlds

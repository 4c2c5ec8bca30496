// SPDX-License-Identifier: Apache-2.0
#include "world/edges/edge.h"

#include <algorithm>
#include <array>
#include <span>
#include <utility>

namespace hoplite::worlds {
namespace {

constexpr std::size_t kDrainBytes = 64_KiB;

iovec part_of(std::span<const std::byte> bytes) {
  return {const_cast<std::byte*>(bytes.data()), bytes.size()};
}

}  // namespace

Result<void> Edge::write() {
  auto written = write_frames();
  pipe_->flush();
  is_blocked_ = is_blocked_ || pipe_->has_unsent();
  return written;
}

Result<void> Edge::write_frames() {
  is_blocked_ = false;
  std::size_t total = 0;
  while (true) {
    const Frame frame = rules_.poll_frame();
    const std::size_t size = frame.head.size() + frame.payload.size();
    if (size == 0) return {};
    is_blocked_ = true;
    if (total >= kTurnBytesMax) return {};
    std::array<iovec, 2> parts{part_of(frame.head), part_of(frame.payload)};
    const auto written = pipe_->write(parts);
    if (!written) return written.error();
    rules_.handle_written(*written);
    if (*written < size) return {};
    is_blocked_ = false;
    total += size;
  }
}

// Reads into the next bytes' place, if it is known, and then ahead. Amid a message it reads ahead
// only the next envelope, so that the following bytes land in their place too. Returns 0 when
// nothing is there.
Result<std::size_t> Edge::read_some() {
  const std::size_t ahead = rules_.is_amid_message()
                                ? kEnvelopeBytes
                                : std::max(pipe_->read_ahead_bytes(), rules_.missing_bytes());
  if (staged_.size() < ahead) staged_.resize(ahead);
  const std::span<std::byte> place = rules_.target();
  std::array<iovec, 2> parts{part_of(place), iovec{staged_.data(), ahead}};
  const auto got = pipe_->read(place.empty() ? std::span(parts).last(1) : std::span(parts));
  if (!got) return got.error();
  const std::size_t landed = std::min(*got, place.size());
  staged_at_ = 0;
  staged_end_ = *got - landed;
  if (landed > 0) {
    if (auto handled = rules_.handle_landed(landed); !handled) return handled.error();
  }
  return *got;
}

Result<void> Edge::read(Reading reading) {
  has_more_ = false;
  std::size_t total = 0;
  while (!rules_.has_left() && !rules_.ending()) {
    if (reading == Reading::kUntilOutcome && rules_.has_outcome()) return {};
    if (reading == Reading::kWhileAwaited && !rules_.is_waiting()) return {};
    if (has_read_ahead()) {
      const auto came = std::span(staged_).first(staged_end_).subspan(staged_at_);
      const auto used = rules_.handle_bytes(came);
      if (!used) return used.error();
      staged_at_ += *used;
      continue;
    }
    if (total >= kTurnBytesMax) {
      has_more_ = true;
      return {};
    }
    const auto got = read_some();
    if (!got) return got.error();
    if (*got == 0) return {};
    total += *got;
  }
  return {};
}

void Edge::finish(Finishing when) {
  if (when == Finishing::kWhenSent && pipe_->has_unsent()) return;
  if (!std::exchange(is_finished_, true)) pipe_->finish();
}

bool Edge::drain() {
  if (staged_.size() < kDrainBytes) staged_.resize(kDrainBytes);
  staged_at_ = staged_end_ = 0;
  for (std::size_t total = 0; total < kTurnBytesMax;) {
    iovec part{staged_.data(), staged_.size()};
    const auto got = pipe_->read({&part, 1});
    has_more_ = got && *got > 0;
    if (!has_more_) return !got;
    total += *got;
  }
  return false;
}

}  // namespace hoplite::worlds

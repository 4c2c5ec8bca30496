// SPDX-License-Identifier: Apache-2.0
#include "world/pipes/fake_pipe.h"

#include <algorithm>
#include <utility>

#include "world/pipes/completions.h"

namespace hoplite::worlds {
namespace {

using Lock = std::lock_guard<std::mutex>;

FakeSide other(FakeSide side) {
  return side == FakeSide::kFirst ? FakeSide::kSecond : FakeSide::kFirst;
}

}  // namespace

Result<std::shared_ptr<FakeWire>> FakeWire::open() {
  auto first = Doorbell::open();
  if (!first) return first.error();
  auto second = Doorbell::open();
  if (!second) return second.error();
  return std::shared_ptr<FakeWire>(new FakeWire(std::move(*first), std::move(*second)));
}

FakeWire::FakeWire(UniqueFd first, UniqueFd second) {
  to(FakeSide::kFirst).bell = std::move(first);
  to(FakeSide::kSecond).bell = std::move(second);
}

void FakeWire::hold() {
  const Lock lock(mutex_);
  is_held_ = true;
}

void FakeWire::release() {
  const Lock lock(mutex_);
  is_held_ = false;
  for (Way& way : ways_) {
    way.through = way.bytes.size();
    Doorbell::ring(way.bell.value());
  }
}

std::uint64_t FakeWire::deliver(FakeSide side, std::uint64_t bytes) {
  const Lock lock(mutex_);
  Way& way = to(side);
  const std::uint64_t more = std::min<std::uint64_t>(bytes, way.bytes.size() - way.through);
  way.through += more;
  Doorbell::ring(way.bell.value());
  return more;
}

void FakeWire::end(FakeSide at, Code how) {
  const Lock lock(mutex_);
  Way& way = to(at);
  if (!way.ended) way.ended = how;
  way.bytes.resize(way.through);
  Doorbell::ring(way.bell.value());
}

FakePipe::~FakePipe() { wire_->end(other(side_), Code::kPeerLost); }

FakeWire::Way& FakePipe::out() const { return wire_->to(other(side_)); }

int FakePipe::fd() const { return in().bell.value(); }

Result<std::size_t> FakePipe::write(std::span<iovec> parts) {
  const Lock lock(wire_->mutex_);
  if (in().ended) return Error{*in().ended, "the other end is gone"};
  FakeWire::Way& way = out();
  std::size_t total = 0;
  for (const iovec& part : parts) {
    const auto* const from = static_cast<const std::byte*>(part.iov_base);
    const std::size_t count =
        std::min<std::size_t>(part.iov_len, FakeWire::kRoomBytes - way.bytes.size());
    if (!way.ended) way.bytes.insert(way.bytes.end(), from, from + count);
    total += count;
  }
  if (total > 0 && !wire_->is_held_) {
    way.through = way.bytes.size();
    Doorbell::ring(way.bell.value());
  }
  return total;
}

Result<std::size_t> FakePipe::read(std::span<iovec> parts) {
  const Lock lock(wire_->mutex_);
  FakeWire::Way& way = in();
  std::size_t total = 0;
  for (const iovec& part : parts) {
    const std::size_t count = std::min<std::size_t>(part.iov_len, way.through);
    const auto last = way.bytes.begin() + static_cast<std::ptrdiff_t>(count);
    std::copy(way.bytes.begin(), last, static_cast<std::byte*>(part.iov_base));
    way.bytes.erase(way.bytes.begin(), last);
    way.through -= count;
    total += count;
  }
  if (total > 0) {
    Doorbell::ring(out().bell.value());  // there is room again
  } else if (way.ended) {
    return Error{*way.ended, "the other end is gone"};
  } else if (way.is_finished && way.bytes.empty()) {
    return Error{Code::kPeerLost, "the other end has finished"};
  }
  return total;
}

bool FakePipe::await(Interest interest, std::uint64_t) {
  const Lock lock(wire_->mutex_);
  const auto bits = static_cast<unsigned>(interest);
  const bool is_over = in().is_finished && in().bytes.empty();
  const bool has_come = in().through > 0 || in().ended.has_value() || is_over;
  const bool has_room = out().bytes.size() < FakeWire::kRoomBytes;
  return ((bits & static_cast<unsigned>(Interest::kRead)) != 0 && has_come) ||
         ((bits & static_cast<unsigned>(Interest::kWrite)) != 0 && has_room);
}

bool FakePipe::has_delivered_all() const {
  const Lock lock(wire_->mutex_);
  return out().bytes.empty();
}

void FakePipe::finish() {
  const Lock lock(wire_->mutex_);
  out().is_finished = true;
  Doorbell::ring(out().bell.value());
}

void FakePipe::handle_ready() { Doorbell::silence(fd()); }

}  // namespace hoplite::worlds

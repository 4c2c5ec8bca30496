// SPDX-License-Identifier: Apache-2.0
// The contract of Pipe, tested on each transport.
#include "world/pipes/pipe.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/prng.h"
#include "world/pipes/fake_pipe.h"
#include "world/pipes/ring_pipe.h"
#include "world/pipes/socket_pipe.h"
#include "world/pipes/sockets_test.h"

namespace hoplite::worlds {
namespace {

using Data = std::vector<std::byte>;
using Ends = std::pair<std::unique_ptr<Pipe>, std::unique_ptr<Pipe>>;

UniqueFd memory(std::uint64_t size, int seals) {
  UniqueFd fd(::memfd_create("world", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(::ftruncate(fd.value(), static_cast<off_t>(size)), 0);
  EXPECT_EQ(::fcntl(fd.value(), F_ADD_SEALS, seals), 0);
  return fd;
}

constexpr int kSealed = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

Ends by(Streams streams) {
  EXPECT_TRUE(SocketPipe::prepare(streams.first.fd()));
  EXPECT_TRUE(SocketPipe::prepare(streams.second.fd()));
  return {std::make_unique<SocketPipe>(std::move(streams.first)),
          std::make_unique<SocketPipe>(std::move(streams.second))};
}

std::pair<std::unique_ptr<RingPipe>, std::unique_ptr<RingPipe>> rings() {
  auto sockets = unix_sockets();
  UniqueFd shared = memory(kRingsBytes, kSealed);
  UniqueFd copy(::dup(shared.value()));
  auto first = RingPipe::open(std::move(sockets.first), std::move(copy), RingSide::kFirst);
  auto second = RingPipe::open(std::move(sockets.second), std::move(shared), RingSide::kSecond);
  EXPECT_TRUE(first && second);
  return {std::move(*first), std::move(*second)};
}

struct Transport {
  std::string name;
  std::function<Ends()> open;
};

class Pipes : public testing::TestWithParam<Transport> {};

INSTANTIATE_TEST_SUITE_P(
    All, Pipes,
    testing::Values(Transport{"tcp", [] { return by(plain_streams(tcp_sockets())); }},
                    Transport{"unix", [] { return by(plain_streams(unix_sockets())); }},
                    Transport{"tls", [] { return by(secure_streams(tcp_sockets())); }},
                    Transport{"shared_memory",
                              [] {
                                auto [first, second] = rings();
                                return Ends{std::move(first), std::move(second)};
                              }},
                    Transport{"fake",
                              [] {
                                auto wire = FakeWire::open();
                                EXPECT_TRUE(wire);
                                return Ends{std::make_unique<FakePipe>(*wire, FakeSide::kFirst),
                                            std::make_unique<FakePipe>(*wire, FakeSide::kSecond)};
                              }}),
    [](const auto& each) { return each.param.name; });

std::size_t write(Pipe& pipe, std::span<const std::byte> bytes) {
  // In two parts, as a frame is.
  auto* const data = const_cast<std::byte*>(bytes.data());
  const std::size_t first = std::min<std::size_t>(bytes.size(), 32);
  std::array<iovec, 2> parts{iovec{data, first}, iovec{data + first, bytes.size() - first}};
  const auto written = pipe.write(parts);
  EXPECT_TRUE(written) << written.error().text;
  return written ? *written : 0;
}

// Waits as the progress thread does: asleep, unless what it waits for is there.
void sleep_for(Poller& poller, Pipe& pipe, Interest interest) {
  if (pipe.await(interest, 1)) return;
  poller.change(pipe.fd(), 1, pipe.interest_of(interest));
  for (const Ready& ready : poller.wait(5_s)) {
    if (ready.token == 1) pipe.handle_ready();
  }
}

Data pattern(std::size_t size) {
  Data data(size);
  for (std::size_t i = 0; i < size; ++i) data[i] = static_cast<std::byte>((i * 31) >> 3);
  return data;
}

TEST_P(Pipes, BytesArriveInOrderHoweverTheyAreCut) {
  auto [first, second] = GetParam().open();
  const Data sent = pattern(5'000'000);
  Data got;
  Prng prng(1);
  std::size_t written = 0;
  while (got.size() < sent.size()) {
    const std::size_t size = std::min<std::size_t>(sent.size() - written, prng.below(300'000));
    written += write(*first, std::span(sent).subspan(written, size));
    first->flush();
    Data part(prng.below(300'000) + 1);
    iovec into{part.data(), part.size()};
    const auto came = second->read({&into, 1});
    ASSERT_TRUE(came) << came.error().text;
    got.insert(got.end(), part.begin(), part.begin() + static_cast<std::ptrdiff_t>(*came));
  }
  EXPECT_EQ(got, sent);
}

TEST_P(Pipes, WhoSleepsIsWokenByBytesAndByRoom) {
  auto ends = GetParam().open();
  Pipe& first = *ends.first;
  Pipe& second = *ends.second;
  const Data sent = pattern(20'000'000);
  std::thread writer([&] {
    auto poller = Poller::open();
    ASSERT_TRUE(poller && poller->add(first.fd(), 1, Interest::kNone));
    for (std::size_t written = 0; written < sent.size() || first.has_unsent();) {
      const std::size_t size = write(first, std::span(sent).subspan(written));
      written += size;
      if (size == 0) sleep_for(*poller, first, Interest::kWrite);
      first.flush();
    }
  });
  auto poller = Poller::open();
  ASSERT_TRUE(poller && poller->add(second.fd(), 1, Interest::kNone));
  Data got(sent.size());
  for (std::size_t at = 0; at < got.size();) {
    iovec into{got.data() + at, got.size() - at};
    const auto came = second.read({&into, 1});
    ASSERT_TRUE(came) << came.error().text;
    at += *came;
    if (*came == 0) sleep_for(*poller, second, Interest::kRead);
  }
  writer.join();
  EXPECT_EQ(got, sent);
}

TEST_P(Pipes, AnEndThatGoesIsSeenAfterWhatItSent) {
  auto [first, second] = GetParam().open();
  const Data sent = pattern(1000);
  ASSERT_EQ(write(*first, sent), sent.size());
  first.reset();
  second->handle_ready();
  Data got(2000);
  iovec into{got.data(), got.size()};
  const auto came = second->read({&into, 1});
  ASSERT_TRUE(came);
  EXPECT_EQ(*came, sent.size());
  second->handle_ready();
  const auto after = second->read({&into, 1});
  ASSERT_FALSE(after);
  EXPECT_EQ(after.error().code, Code::kPeerLost);
}

// Two ends of TLS, and what a stranger between them sees and does.
class OverTls : public testing::Test {
 protected:
  OverTls() {
    Sockets here = unix_sockets();
    Sockets there = unix_sockets();
    wire_ = {std::move(here.second), std::move(there.second)};
    Ends ends = by(secure_streams({std::move(here.first), std::move(there.first)}, [this] {
      pass(overheard(wire_.first), wire_.second);
      pass(overheard(wire_.second), wire_.first);
    }));
    first_ = std::move(ends.first);
    second_ = std::move(ends.second);
  }
  // Returns the bytes that have come from an end so far.
  static Data overheard(const UniqueFd& from) {
    Data bytes(100'000);
    const ssize_t got = ::recv(from.value(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    bytes.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
    return bytes;
  }
  static void pass(std::span<const std::byte> bytes, const UniqueFd& to) {
    EXPECT_EQ(::send(to.value(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  Result<std::size_t> read() {
    iovec into{got_.data(), got_.size()};
    return second_->read({&into, 1});
  }
  Sockets wire_;
  std::unique_ptr<Pipe> first_, second_;
  Data got_ = Data(2000);
};

TEST_F(OverTls, NothingThatIsWrittenCanBeOverheard) {
  const Data sent(1000, std::byte{'s'});
  ASSERT_EQ(write(*first_, sent), sent.size());
  const Data heard = overheard(wire_.first);
  ASSERT_GT(heard.size(), sent.size());
  const Data secret(8, std::byte{'s'});
  EXPECT_EQ(std::search(heard.begin(), heard.end(), secret.begin(), secret.end()), heard.end());
  pass(heard, wire_.second);
  const auto came = read();
  ASSERT_TRUE(came) << came.error().text;
  EXPECT_TRUE(*came == sent.size() && std::ranges::equal(sent, std::span(got_).first(*came)));
}

TEST_F(OverTls, ARecordThatIsCutOffIsAnEndAndBringsNothing) {
  const Data sent = pattern(1000);
  ASSERT_EQ(write(*first_, sent), sent.size());
  const Data heard = overheard(wire_.first);
  pass(std::span(heard).first(heard.size() - 1), wire_.second);
  auto came = read();
  ASSERT_TRUE(came);
  EXPECT_EQ(*came, 32U);  // the record before it: write() has two parts
  wire_.second.reset();
  came = read();
  ASSERT_FALSE(came);
  EXPECT_EQ(came.error().code, Code::kPeerLost);
}

TEST_F(OverTls, WhatAStrangerChangesOrRepeatsIsRefused) {
  const Data sent = pattern(1000);
  ASSERT_EQ(write(*first_, sent), sent.size());
  Data heard = overheard(wire_.first);
  pass(heard, wire_.second);
  ASSERT_EQ(*read(), sent.size());
  pass(heard, wire_.second);
  const auto came = read();
  ASSERT_FALSE(came);
  EXPECT_EQ(came.error().code, Code::kBadFrame);
  EXPECT_FALSE(second_->has_delivered_all());
}

TEST_F(OverTls, WhatIsReadInPartIsThereAlreadyAndSaysSo) {
  ASSERT_EQ(write(*first_, pattern(1000)), 1000U);
  pass(overheard(wire_.first), wire_.second);
  got_.resize(400);
  EXPECT_FALSE(second_->await(Interest::kRead, 1));
  ASSERT_EQ(*read(), 400U);
  EXPECT_TRUE(second_->await(Interest::kRead, 1));  // the kernel has nothing more
  EXPECT_FALSE(second_->await(Interest::kNone, 1));
}

TEST_F(OverTls, APartOfARecordInHandIsCountedBeforeSleep) {
  ASSERT_EQ(write(*first_, pattern(16'000)), 16'000U);
  const Data heard = overheard(wire_.first);
  pass(std::span(heard).first(heard.size() - 100), wire_.second);
  ASSERT_EQ(*read(), 32U);  // and the session holds all but 100 bytes of the next record
  EXPECT_FALSE(second_->await(Interest::kRead, 16'000 - 32));
  pass(std::span(heard).last(100), wire_.second);
  auto poller = Poller::open();
  ASSERT_TRUE(poller && poller->add(second_->fd(), 1, Interest::kRead));
  EXPECT_EQ(poller->wait(5_s).size(), 1U);
}

TEST(RingPipe, MemoryThatCouldShrinkIsRefused) {
  for (const auto& [size, seals] : {std::pair(kRingsBytes, F_SEAL_SEAL | F_SEAL_GROW),
                                    std::pair(kRingsBytes - 4096, kSealed)}) {
    auto sockets = unix_sockets();
    auto pipe = RingPipe::open(std::move(sockets.first), memory(size, seals), RingSide::kFirst);
    ASSERT_FALSE(pipe);
    EXPECT_EQ(pipe.error().code, Code::kBadFrame);
  }
}

TEST(RingPipe, CountersThatAPeerHasSpoiltAreAnError) {
  auto sockets = unix_sockets();
  UniqueFd shared = memory(kRingsBytes, kSealed);
  auto peer = Mapping::open(shared.value(), 0, kRingsBytes, PROT_READ | PROT_WRITE, MAP_SHARED);
  ASSERT_TRUE(peer);
  auto pipe = RingPipe::open(std::move(sockets.first), std::move(shared), RingSide::kSecond);
  ASSERT_TRUE(pipe);
  auto* const head = reinterpret_cast<RingHead*>(peer->bytes().data());
  head->written.store(kRingBytes + 1);  // more than there is room for
  Data got(10);
  iovec into{got.data(), got.size()};
  const auto came = (*pipe)->read({&into, 1});
  ASSERT_FALSE(came);
  EXPECT_EQ(came.error().code, Code::kBadFrame);
}

TEST(RingPipe, WhoIsAwakeCostsNoCall) {
  auto [first, second] = rings();
  const Data sent = pattern(1000);
  ASSERT_EQ(write(*first, sent), sent.size());  // the reader is awake: no knock
  char knock = 0;
  EXPECT_LT(::recv(second->fd(), &knock, 1, MSG_DONTWAIT | MSG_PEEK), 0);
  Data got(1000);
  iovec into{got.data(), got.size()};
  ASSERT_TRUE(second->read({&into, 1}));
  EXPECT_FALSE(second->await(Interest::kRead, 1));  // sleeps
  ASSERT_EQ(write(*first, sent), sent.size());
  EXPECT_EQ(::recv(second->fd(), &knock, 1, MSG_DONTWAIT | MSG_PEEK), 1);
}

TEST(RingPipe, AReaderThatWaitsForMuchIsWokenOnceAndByALittleWhenItsWriterStops) {
  auto [first, second] = rings();
  const auto is_knocked = [&pipe = *second] {
    char knock = 0;
    return ::recv(pipe.fd(), &knock, 1, MSG_DONTWAIT | MSG_PEEK) == 1;
  };
  const Data sent = pattern(100'000);
  EXPECT_FALSE(second->await(Interest::kRead, 250'000));
  ASSERT_EQ(write(*first, sent), sent.size());
  ASSERT_EQ(write(*first, sent), sent.size());
  EXPECT_FALSE(is_knocked());
  EXPECT_FALSE(second->await(Interest::kRead, 250'000));  // its writer is at it
  ASSERT_EQ(write(*first, sent), sent.size());
  EXPECT_TRUE(is_knocked());
  first->flush();
  EXPECT_TRUE(second->await(Interest::kRead, 1'000'000));  // nothing more is coming
  second->handle_ready();
  Data got(300'000);
  iovec into{got.data(), got.size()};
  ASSERT_EQ(*second->read({&into, 1}), got.size());

  EXPECT_FALSE(second->await(Interest::kRead, 250'000));
  ASSERT_EQ(write(*first, std::span(sent).first(10)), 10U);
  EXPECT_FALSE(is_knocked());
  first->flush();
  EXPECT_TRUE(is_knocked());
}

TEST(FakePipe, WhatIsHeldComesWhenItIsLetThrough) {
  auto wire = FakeWire::open();
  ASSERT_TRUE(wire);
  FakePipe first(*wire, FakeSide::kFirst);
  FakePipe second(*wire, FakeSide::kSecond);
  (*wire)->hold();
  ASSERT_EQ(write(first, pattern(100)), 100U);
  Data got(1000);
  iovec into{got.data(), got.size()};
  EXPECT_EQ(*second.read({&into, 1}), 0U);
  EXPECT_EQ((*wire)->deliver(FakeSide::kSecond, 30), 30U);
  EXPECT_EQ(*second.read({&into, 1}), 30U);
  EXPECT_EQ((*wire)->deliver(FakeSide::kSecond, 20), 20U);
  (*wire)->end(FakeSide::kSecond, Code::kTimeout);
  (*wire)->release();
  EXPECT_EQ(*second.read({&into, 1}), 20U);  // the other 50 bytes, still in flight, are lost
  const auto after = second.read({&into, 1});
  ASSERT_FALSE(after);
  EXPECT_EQ(after.error().code, Code::kTimeout);
}

}  // namespace
}  // namespace hoplite::worlds

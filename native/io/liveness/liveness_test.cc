// SPDX-License-Identifier: Apache-2.0
// The thread with real TCP connections on loopback. tests/process has the tests that kill
// processes.
#include "io/liveness/liveness.h"

#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <string>

#include "base/check.h"
#include "base/must_test.h"
#include "io/liveness/liveness_thread.h"
#include "io/sockets/tcp_socket.h"
#include "wire/frame.h"

namespace hoplite {
namespace {

constexpr int kSoonMs = 10'000;
constexpr NodeId kPeer{2};
constexpr Incarnation kLife{3};

struct Pair {
  UniqueFd ours, theirs;
};

Pair connect_pair() {
  const UniqueFd listener = must(listen_on(must(parse_address("127.0.0.1:0"))));
  const SocketAddress address = must(local_address(listener.value()));
  Pair pair;
  pair.theirs = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  HOPLITE_CHECK(::connect(pair.theirs.value(), reinterpret_cast<const sockaddr*>(&address.storage),
                          address.size) == 0);
  pair.ours = UniqueFd(::accept4(listener.value(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  HOPLITE_CHECK(pair.ours.is_open());
  return pair;
}

Bytes frame_of(const LinkFrame& frame) {
  Bytes bytes;
  encode(frame, bytes);
  return bytes;
}

// The thread ids of this process whose thread is named so.
std::set<std::string> threads_named(const std::string& name) {
  std::set<std::string> found;
  DIR* const tasks = ::opendir("/proc/self/task");
  HOPLITE_CHECK(tasks != nullptr);
  while (const dirent* const task = ::readdir(tasks)) {
    std::string read;
    std::ifstream(std::string("/proc/self/task/") + task->d_name + "/comm") >> read;
    if (read == name) found.insert(task->d_name);
  }
  ::closedir(tasks);
  return found;
}

// Returns the targets of one thread's descriptors, for a thread of this process.
std::multiset<std::string> descriptors_of(const std::string& thread) {
  std::multiset<std::string> found;
  const std::string folder = "/proc/self/task/" + thread + "/fd";
  DIR* const each = ::opendir(folder.c_str());
  HOPLITE_CHECK(each != nullptr);
  while (const dirent* const entry = ::readdir(each)) {
    if (entry->d_name[0] == '.') continue;
    std::array<char, 256> target{};
    const ssize_t size =
        ::readlink((folder + "/" + entry->d_name).c_str(), target.data(), target.size());
    const std::string text(target.data(), static_cast<std::size_t>(std::max<ssize_t>(size, 0)));
    found.insert(text.substr(0, text.find('[')));
  }
  ::closedir(each);
  return found;
}

class LivenessTest : public ::testing::Test {
 protected:
  void start(const LivenessLimits& limits = {}) {
    liveness_.emplace(must(Liveness::start(limits)));
  }
  void watch(UniqueFd connection, std::uint8_t rail = 0) {
    liveness_->watch(kPeer, kLife, RailId{rail}, Stream(std::move(connection)));
  }
  // An event that is no mere suspicion, if there is one: the peer here says nothing by itself.
  std::optional<LivenessEvent> poll_event() {
    for (const LivenessEvent& event : liveness_->take_events()) {
      if (event.verdict != Verdict::kSuspect && event.verdict != Verdict::kRecovered) return event;
    }
    return std::nullopt;
  }
  LivenessEvent next() {  // waits for it
    for (;;) {
      if (const auto event = poll_event()) return *event;
      pollfd ready{liveness_->fd(), POLLIN, 0};
      HOPLITE_CHECK(::poll(&ready, 1, kSoonMs) == 1);
    }
  }
  // Reads from the peer's end until `frame` has come; false: the stream has ended before.
  static bool hears(const UniqueFd& theirs, const LinkFrame& frame) {
    const Bytes expected = frame_of(frame);
    Bytes got(expected.size());
    for (;;) {
      pollfd ready{theirs.value(), POLLIN, 0};
      HOPLITE_CHECK(::poll(&ready, 1, kSoonMs) == 1);
      if (::recv(theirs.value(), got.data(), got.size(), MSG_WAITALL) <= 0) return false;
      if (got == expected) return true;
    }
  }
  static void send_frame(const UniqueFd& theirs, const LinkFrame& frame) {
    const Bytes bytes = frame_of(frame);
    ASSERT_EQ(::send(theirs.value(), bytes.data(), bytes.size(), MSG_NOSIGNAL), std::ssize(bytes));
  }

  // The kernel lists a thread for a moment after it was joined.
  static void wait_for_no_thread() {
    while (!threads_named("hoplite-live").empty()) ::sched_yield();
  }

  std::optional<Liveness> liveness_;
};

TEST_F(LivenessTest, PulsesAndReportsTheEndOfAPeerAsADeath) {
  start();
  Pair pair = connect_pair();
  watch(std::move(pair.ours));
  EXPECT_TRUE(hears(pair.theirs, Pulse{}));
  EXPECT_TRUE(hears(pair.theirs, Pulse{}));
  pair.theirs.reset();
  EXPECT_EQ(next(), (LivenessEvent{kPeer, kLife, RailId{0}, Verdict::kDead}));
}

TEST_F(LivenessTest, AfterGoodbyeItsEndIsNoDeath) {
  start();
  Pair pair = connect_pair();
  watch(std::move(pair.ours));
  send_frame(pair.theirs, Goodbye{});
  pair.theirs.reset();
  EXPECT_EQ(next().verdict, Verdict::kLeft);
}

TEST_F(LivenessTest, ForgettingAPeerSaysGoodbye) {
  start();
  Pair pair = connect_pair();
  watch(std::move(pair.ours));
  liveness_->forget(kPeer, kLife);
  EXPECT_TRUE(hears(pair.theirs, Goodbye{}));
  EXPECT_FALSE(hears(pair.theirs, Goodbye{}));
}

TEST_F(LivenessTest, ASilentPeerIsFrozenAndIsToldSo) {
  start({.cut = 500_ms, .suspect = 300_ms, .dead = 300_ms});
  Pair pair = connect_pair();
  watch(std::move(pair.ours));
  EXPECT_EQ(next().verdict, Verdict::kFrozen);
  EXPECT_TRUE(hears(pair.theirs, Goodbye{}));
}

TEST_F(LivenessTest, WhoTalksNonsenseLosesTheConnectionAndIsNotDead) {
  start();
  Pair pair = connect_pair();
  watch(std::move(pair.ours));
  send_frame(pair.theirs, CloseRail{});
  EXPECT_FALSE(hears(pair.theirs, Goodbye{}));
  EXPECT_EQ(next().verdict, Verdict::kUnreachable);
}

TEST_F(LivenessTest, ASecondConnectionOfARailReplacesTheFirstInSilence) {
  start();
  Pair first = connect_pair();
  Pair second = connect_pair();
  watch(std::move(first.ours));
  EXPECT_TRUE(hears(first.theirs, Pulse{}));
  watch(std::move(second.ours));
  EXPECT_FALSE(hears(first.theirs, Goodbye{}));
  EXPECT_TRUE(hears(second.theirs, Pulse{}));
  EXPECT_FALSE(poll_event());
}

TEST_F(LivenessTest, OneRailOfTwoIsNoDeath) {
  start();
  Pair rails[2] = {connect_pair(), connect_pair()};
  watch(std::move(rails[0].ours), 0);
  watch(std::move(rails[1].ours), 1);
  EXPECT_TRUE(hears(rails[1].theirs, Pulse{}));
  rails[0].theirs.reset();
  EXPECT_EQ(next(), (LivenessEvent{kPeer, kLife, RailId{0}, Verdict::kRailLost}));
  rails[1].theirs.reset();
  EXPECT_EQ(next().verdict, Verdict::kDead);
}

TEST_F(LivenessTest, ItsThreadHasATableOfItsOwnAndLeavesNothingBehind) {
  if (!LivenessThread::kHasOwnTable) GTEST_SKIP() << "it shares the process's under TSan";
  const UniqueFd other(::open("/dev/zero", O_RDONLY | O_CLOEXEC));
  const std::size_t errors_to_null =
      std::filesystem::read_symlink("/proc/self/fd/2") == "/dev/null" ? 1 : 0;
  wait_for_no_thread();
  for (int round = 0; round < 20; ++round) {
    start();
    Pair pair = connect_pair();
    watch(std::move(pair.ours));
    EXPECT_TRUE(hears(pair.theirs, Pulse{}));
    const auto threads = threads_named("hoplite-live");
    ASSERT_EQ(threads.size(), 1U);
    const auto found = descriptors_of(*threads.begin());
    EXPECT_EQ(found.count("/dev/null"), 2U + errors_to_null);
    EXPECT_EQ(found.count("/dev/zero"), 0U);
    EXPECT_EQ(found.count("socket:"), 2U);  // orders, and one peer
    EXPECT_LE(found.size(), 7U);            // and standard error, epoll, its wake-up
    liveness_.reset();
    EXPECT_FALSE(hears(pair.theirs, Goodbye{}));  // as a death looks
    wait_for_no_thread();
  }
}

TEST_F(LivenessTest, ItsDescriptorsAreInNoForkedChild) {
  if (!LivenessThread::kHasOwnTable) GTEST_SKIP() << "it shares the process's under TSan";
  start();
  Pair pair = connect_pair();
  watch(std::move(pair.ours));
  EXPECT_TRUE(hears(pair.theirs, Pulse{}));
  int wait[2];
  ASSERT_EQ(::pipe(wait), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(wait[1]);
    char nothing = 0;
    [[maybe_unused]] const auto ended = ::read(wait[0], &nothing, 1);
    ::_exit(0);
  }
  liveness_.reset();
  EXPECT_FALSE(hears(pair.theirs, Goodbye{}));  // though the child lives
  ::close(wait[1]);
  ::close(wait[0]);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
}

}  // namespace
}  // namespace hoplite

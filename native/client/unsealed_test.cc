// SPDX-License-Identifier: Apache-2.0
// A reserved range as memory: shared until it is sealed, private and pinned afterwards.
#include "client/unsealed.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "client/client.h"
#include "client/scripted_node_test.h"

namespace hoplite {
namespace {

constexpr std::uint64_t kSize = 200'000;
constexpr std::uint64_t kPlace = 8192;

class UnsealedTest : public ::testing::Test {
 protected:
  UnsealedTest() {
    char path[] = "/tmp/hoplite-test-XXXXXX";
    HOPLITE_CHECK(::mkdtemp(path) != nullptr);
    directory_ = path;
    node_ = std::make_unique<ScriptedNode>(directory_ + "/node.sock");
    client_ = must(Client::attach(directory_ + "/node.sock"));
    answer_seals_with(large(kPlace, kSize));
  }
  ~UnsealedTest() override {
    client_.reset();
    node_.reset();
    ::rmdir(directory_.c_str());
  }
  void answer_seals_with(std::optional<Reply> seal) {
    node_->script([seal](const Command& c) -> std::optional<Reply> {
      if (std::holds_alternative<PutCommand>(c.body)) return Reserved{{kPlace, kSize}};
      if (std::holds_alternative<WroteCommand>(c.body)) return seal;
      return std::nullopt;
    });
  }
  RequestHandle reserve() {
    auto put =
        must(client_->reserve(object_id(1), Incarnation{3}, "l", {{DType::kOpaque, kSize}}, kSize));
    EXPECT_TRUE(put->wait(kSoon));
    return put;
  }
  std::unique_ptr<Unsealed> map() { return must(client_->map(reserve())); }
  std::byte in_arena(std::uint64_t at) { return node_->arena().at({kPlace, kSize})[at]; }

  std::string directory_;
  std::unique_ptr<ScriptedNode> node_;
  std::unique_ptr<Client> client_;
};

TEST_F(UnsealedTest, IsSharedUntilItIsSealedAndPrivateFromThenOn) {
  auto range = map();
  const auto bytes = range->bytes();
  ASSERT_EQ(bytes.size(), kSize);
  std::fill(bytes.begin(), bytes.end(), std::byte{5});
  EXPECT_EQ(in_arena(kSize - 1), std::byte{5});
  auto sealing = must(range->seal());
  bytes[7] = std::byte{9};
  ASSERT_TRUE(sealing->wait(kSoon));
  EXPECT_TRUE(std::holds_alternative<Done>(must(sealing->take())));
  EXPECT_TRUE(std::holds_alternative<Done>(must(sealing->take())));  // as often as one likes
  bytes[8] = std::byte{9};
  EXPECT_EQ(in_arena(7), std::byte{5});
  EXPECT_EQ(in_arena(8), std::byte{5});
  EXPECT_EQ(bytes[7], std::byte{9});
  EXPECT_EQ(bytes[9], std::byte{5});
  const auto wrote = std::get<WroteCommand>(node_->commands<WroteCommand>().at(0).body);
  EXPECT_TRUE(wrote.pin);
  EXPECT_EQ(wrote.upto_bytes, kSize);
  EXPECT_EQ(wrote.incarnation, Incarnation{3});
}

TEST_F(UnsealedTest, ReportsHowFarItIsWrittenUntilItIsSealed) {
  const auto put = reserve();
  auto range = must(client_->map(put));
  ASSERT_TRUE(range->report(4096));
  ASSERT_TRUE(range->report(kSize));  // the seal says that
  EXPECT_EQ(range->report(kSize + 1).error().code, Code::kInvalidArgument);
  ASSERT_TRUE(must(range->seal())->wait(kSoon));
  EXPECT_EQ(range->report(4096).error().code, Code::kInvalidArgument);
  const auto wrote = node_->commands<WroteCommand>();
  ASSERT_EQ(wrote.size(), 2U);
  EXPECT_EQ(wrote[0].request, RequestId{0});
  EXPECT_EQ(std::get<WroteCommand>(wrote[0].body).upto_bytes, 4096U);
  EXPECT_FALSE(std::get<WroteCommand>(wrote[0].body).pin);
}

TEST_F(UnsealedTest, OfAPutThatWasTakenBackReportsNothing) {
  const auto put = reserve();
  auto range = must(client_->map(put));
  put->cancel();
  EXPECT_EQ(range->report(4096).error().code, Code::kCancelled);
  EXPECT_TRUE(node_->commands<WroteCommand>().empty());
}

TEST_F(UnsealedTest, ReleasesItsPinWithItsMappingAndCancelsNothing) {
  auto range = map();
  ASSERT_TRUE(must(range->seal())->wait(kSoon));
  EXPECT_TRUE(node_->commands<ReleaseCommand>().empty());
  range.reset();
  ASSERT_TRUE(node_->wait_for<ReleaseCommand>(1));
  EXPECT_EQ(std::get<ReleaseCommand>(node_->commands<ReleaseCommand>()[0].body).object,
            object_id(1));
  client_.reset();
  ASSERT_TRUE(node_->wait_for<ClientLostCommand>(1));
  EXPECT_TRUE(node_->commands<CancelCommand>().empty());
}

TEST_F(UnsealedTest, DroppedUnsealedCancelsThePut) {
  const auto put = reserve();
  auto range = must(client_->map(put));
  range.reset();
  ASSERT_TRUE(node_->wait_for<CancelCommand>(1));
  EXPECT_EQ(node_->commands<CancelCommand>()[0].request, put->id());
}

TEST_F(UnsealedTest, WhoseSealFailsKeepsItsBytesAndThenCancels) {
  answer_seals_with(Error{Code::kObjectLost, "deleted"});
  const auto put = reserve();
  auto range = must(client_->map(put));
  range->bytes()[0] = std::byte{5};
  auto sealing = must(range->seal());
  ASSERT_TRUE(sealing->wait(kSoon));
  EXPECT_EQ(sealing->take().error().code, Code::kObjectLost);
  EXPECT_EQ(range->bytes()[0], std::byte{5});
  EXPECT_TRUE(node_->commands<CancelCommand>().empty());
  range.reset();
  sealing.reset();
  ASSERT_TRUE(node_->wait_for<CancelCommand>(1));
  EXPECT_EQ(node_->commands<CancelCommand>()[0].request, put->id());
  EXPECT_TRUE(node_->commands<ReleaseCommand>().empty());
}

TEST_F(UnsealedTest, DroppedWhileItIsBeingSealedLeavesNothingBehind) {
  answer_seals_with(std::nullopt);
  auto range = map();
  ASSERT_TRUE(range->seal());
  ASSERT_TRUE(node_->wait_for<WroteCommand>(1));
  node_->script([](const Command& c) -> std::optional<Reply> {
    const bool is_last_word = std::holds_alternative<CancelCommand>(c.body);
    return is_last_word ? std::optional<Reply>(large(kPlace, kSize)) : std::nullopt;
  });
  range.reset();  // the seal's answer crosses the cancel
  ASSERT_TRUE(node_->wait_for<CancelCommand>(2));
  while (node_->commands<ReleaseCommand>().empty()) {  // reads what has come, and releases it
    static_cast<void>(client_->is_alive());
    ASSERT_TRUE(client_->get(object_id(2)));
  }
}

TEST_F(UnsealedTest, CannotBeTakenBackOnceItIsBeingSealed) {
  answer_seals_with(std::nullopt);
  auto range = map();
  auto sealing = must(range->seal());
  sealing->cancel();
  EXPECT_FALSE(sealing->is_finished());
  EXPECT_TRUE(node_->commands<CancelCommand>().empty());
}

TEST_F(UnsealedTest, IsMappedOnceAndSealedOnce) {
  const auto put = reserve();
  auto range = must(client_->map(put));
  EXPECT_EQ(client_->map(put).error().code, Code::kInvalidArgument);
  ASSERT_TRUE(range->seal());
  EXPECT_EQ(range->seal().error().code, Code::kInvalidArgument);
}

TEST_F(UnsealedTest, IsForLargeObjectsOnly) {
  auto put = client_->reserve(object_id(1), Incarnation{1}, "", {{DType::kOpaque, kInlineBytesMax}},
                              kInlineBytesMax);
  ASSERT_FALSE(put);
  EXPECT_EQ(put.error().code, Code::kInvalidArgument);
}

TEST_F(UnsealedTest, OutlivesItsNode) {
  auto range = map();
  range->bytes()[0] = std::byte{5};
  node_.reset();
  EXPECT_FALSE(client_->is_alive());
  EXPECT_EQ(range->seal().error().code, Code::kNodeLost);
  EXPECT_EQ(range->bytes()[0], std::byte{5});
}

// Runs `child` in a forked process; true when it returned true there.
bool in_child(const std::function<bool()>& child) {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(child() ? 0 : 1);
  int status = 0;
  return ::waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST_F(UnsealedTest, AForkedChildHasZerosInItsPlaceAndCannotSealIt) {
  auto range = map();
  range->bytes()[0] = std::byte{5};
  EXPECT_TRUE(in_child([&] {
    const bool is_zero = range->bytes()[0] == std::byte{0};
    range->bytes()[0] = std::byte{77};
    const bool is_refused = range->seal().error().code == Code::kInvalidArgument;
    range.reset();
    return is_zero && is_refused;
  }));
  EXPECT_EQ(in_arena(0), std::byte{5});
  EXPECT_TRUE(must(range->seal())->wait(kSoon));
}

TEST_F(UnsealedTest, AForkedChildReadsWhatWasSealedAndKeepsItsPin) {
  auto range = map();
  range->bytes()[0] = std::byte{5};
  ASSERT_TRUE(must(range->seal())->wait(kSoon));
  EXPECT_TRUE(in_child([&] { return range->bytes()[0] == std::byte{5}; }));
  range.reset();
  ASSERT_TRUE(client_->get(object_id(2)));
  ASSERT_TRUE(node_->wait_for<GetCommand>(1));
  EXPECT_TRUE(
      node_->commands<ReleaseCommand>().empty());  // only with the socket: design, processes
  client_.reset();
  EXPECT_TRUE(node_->wait_for<ClientLostCommand>(1));
}

}  // namespace
}  // namespace hoplite

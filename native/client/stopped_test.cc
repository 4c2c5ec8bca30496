// SPDX-License-Identifier: Apache-2.0
// A client whose node reads nothing: no call waits for it, and nothing is lost meanwhile.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "client/client.h"
#include "client/scripted_node_test.h"

namespace hoplite {
namespace {

// commands; the socket of a stopped node takes some 300 of them
constexpr std::size_t kMany = 5000;

class StoppedTest : public ::testing::Test {
 protected:
  StoppedTest() {
    char path[] = "/tmp/hoplite-test-XXXXXX";
    HOPLITE_CHECK(::mkdtemp(path) != nullptr);
    directory_ = path;
    node_ = std::make_unique<ScriptedNode>(socket_path());
    client_ = must(Client::attach(socket_path()));
  }
  ~StoppedTest() override {
    client_.reset();
    node_.reset();
    ::rmdir(directory_.c_str());
  }
  std::string socket_path() const { return directory_ + "/node.sock"; }
  // Begun until the kernel takes no more.
  std::vector<RequestHandle> begin_many(std::size_t count = kMany) {
    std::vector<RequestHandle> gets;
    for (std::size_t i = 0; i < count; ++i) gets.push_back(must(client_->get(object_id(1))));
    return gets;
  }
  // Returns the gets that the node has read, in its order.
  std::vector<RequestId> requested_ids() {
    std::vector<RequestId> ids;
    for (const Command& each : node_->commands<GetCommand>()) ids.push_back(each.request);
    return ids;
  }

  std::string directory_;
  std::unique_ptr<ScriptedNode> node_;
  std::unique_ptr<Client> client_;
};

TEST_F(StoppedTest, CommandsAreBegunWithoutWaitingAndReadInTheirOrder) {
  node_->script([](const Command&) { return small(0, 64); });
  node_->pause();
  const auto gets = begin_many();
  EXPECT_FALSE(gets.back()->wait(1_ms));
  node_->resume();
  std::vector<RequestId> begun;
  for (const RequestHandle& each : gets) {
    ASSERT_TRUE(each->wait(kSoon));
    begun.push_back(each->id());
  }
  EXPECT_EQ(requested_ids(), begun);
}

TEST_F(StoppedTest, WhatIsGivenUpUnsentIsNeverAsked) {
  node_->pause();
  const auto gets = begin_many();
  for (const RequestHandle& each : gets) each->cancel();
  const auto after = must(client_->remove(object_id(2)));
  node_->resume();
  ASSERT_TRUE(node_->wait_for<DeleteCommand>(1));
  EXPECT_LT(requested_ids().size(), kMany / 2);
  // Each get that the node has read is cancelled.
  EXPECT_EQ(node_->commands<CancelCommand>().size(), requested_ids().size());
}

TEST_F(StoppedTest, ATimeoutLoopKeepsNothing) {
  client_ = must(Client::attach(socket_path(), 64_KiB));
  node_->pause();
  for (std::size_t i = 0; i < kMany; ++i) {
    auto get = client_->get(object_id(1));
    ASSERT_TRUE(get) << get.error().text;
    EXPECT_FALSE((*get)->wait(Duration{0}));
  }
}

TEST_F(StoppedTest, BeyondTheBoundACommandFailsAndNamesTheNode) {
  client_ = must(Client::attach(socket_path(), 64_KiB));
  node_->pause();
  std::vector<RequestHandle> gets;
  std::optional<Error> refused;
  for (std::size_t i = 0; i < kMany && !refused; ++i) {
    auto get = client_->get(object_id(1));
    if (get) gets.push_back(*get);
    if (!get) refused = get.error();
  }
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->code, Code::kStoreFull);
  EXPECT_NE(refused->text.find("node 7 "), std::string::npos) << refused->text;
  EXPECT_NE(refused->text.find("hoplite-ray doctor"), std::string::npos) << refused->text;
  EXPECT_FALSE(client_->gather(std::vector(100, object_id(3))));
  const std::size_t begun = gets.size();
  gets.clear();  // taken back, beyond the bound
  node_->resume();
  const auto after = must(client_->remove(object_id(2)));
  ASSERT_TRUE(node_->wait_for<DeleteCommand>(1));
  EXPECT_LE(requested_ids().size(), begun);
  EXPECT_EQ(node_->commands<CancelCommand>().size(), requested_ids().size());
}

TEST_F(StoppedTest, AReleaseGoesOutOnceTheNodeReadsThoughTheClientDoesNothing) {
  node_->script([](const Command& c) -> std::optional<Reply> {
    const auto* get = std::get_if<GetCommand>(&c.body);
    if (get == nullptr || get->object != object_id(9)) return std::nullopt;
    return large(4096, 100'000);
  });
  auto held = must(client_->get(object_id(9)));
  ASSERT_TRUE(held->wait(kSoon));
  std::optional<Outcome> view = must(held->take());
  node_->pause();
  const auto gets = begin_many();
  view.reset();
  node_->resume();
  EXPECT_TRUE(node_->wait_for<ReleaseCommand>(1));
}

TEST_F(StoppedTest, AnswersThatNobodyWaitsForDoNotHoldBackWhatIsToBeSent) {
  node_->script([](const Command& c) -> std::optional<Reply> {
    if (std::holds_alternative<GetCommand>(c.body)) return small(0, 4096);
    return std::nullopt;
  });
  node_->pause();
  const auto gets = begin_many(4 * kMany);  // of which the kernel takes a sixth at once
  node_->resume();
  EXPECT_TRUE(node_->wait_for<GetCommand>(2 * kMany));
}

TEST_F(StoppedTest, ALargeListIsAskedForAtOnceAndInOrder) {
  node_->script([](const Command&) { return small(0, 64); });
  node_->pause();
  const auto gets = must(client_->gather(std::vector(kMany, object_id(1))));
  EXPECT_EQ(client_->wait_all(gets, 1_ms), std::nullopt);
  gets[kMany - 2]->cancel();  // unsent
  node_->resume();
  EXPECT_EQ(client_->wait_all(gets, kSoon), kMany - 2);
  ASSERT_TRUE(gets.back()->wait(kSoon));
  std::vector<RequestId> expected;
  for (const RequestHandle& each : gets) {
    if (each != gets[kMany - 2]) expected.push_back(each->id());
  }
  EXPECT_EQ(requested_ids(), expected);
}

TEST_F(StoppedTest, SmallPutsArriveWholeThoughTheyAreSentInParts) {
  node_->script([](const Command&) { return Done{}; });
  node_->pause();
  std::vector<RequestHandle> puts;
  for (std::uint8_t i = 0; i < 50; ++i) {
    const std::vector<std::byte> data(kInlineBytesMax - i, std::byte{i});
    puts.push_back(must(client_->put(object_id(i), Incarnation{1}, "",
                                     {{DType::kOpaque, data.size()}}, OneBuffer{data})));
  }
  node_->resume();
  for (const RequestHandle& each : puts) ASSERT_TRUE(each->wait(kSoon));
  const auto received = node_->commands<PutCommand>();
  ASSERT_EQ(received.size(), puts.size());
  for (std::uint8_t i = 0; i < 50; ++i) {
    const auto& put = std::get<PutCommand>(received[i].body);
    EXPECT_EQ(put.object, object_id(i));
    EXPECT_EQ(put.payload, std::vector<std::byte>(kInlineBytesMax - i, std::byte{i}));
  }
}

TEST_F(StoppedTest, ACloseAndAnEndOfTheLastHandleDoNotWait) {
  node_->pause();
  auto gets = begin_many();
  client_->close();
  for (const RequestHandle& each : gets) EXPECT_TRUE(each->is_finished());
  client_.reset();
  gets.clear();
  node_->resume();
  EXPECT_TRUE(node_->wait_for<ClientLostCommand>(1));
}

TEST_F(StoppedTest, ANodeThatDiesWithoutReadingEndsEverything) {
  node_->pause();
  const auto gets = begin_many();
  node_.reset();
  for (const RequestHandle& each : gets) {
    ASSERT_TRUE(each->wait(kSoon));
    EXPECT_EQ(each->take().error().code, Code::kNodeLost);
  }
  EXPECT_FALSE(client_->is_alive());
}

TEST_F(StoppedTest, ManyThreadsBeginAndGiveUp) {
  node_->script([](const Command&) { return small(0, 64); });
  node_->pause();
  std::atomic<std::size_t> ended{0};
  std::vector<std::thread> threads;
  for (std::uint8_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (std::size_t i = 0; i < kMany / 4; ++i) {
        auto get = must(client_->get(object_id(t)));
        if (i % 2 == 0) get->cancel();
        if (i % 100 == 99) static_cast<void>(get->wait(1_ms));
        if (i % 2 == 0 && get->is_finished()) ++ended;
      }
    });
  }
  for (auto& each : threads) each.join();
  EXPECT_EQ(ended, kMany / 2);
  node_->resume();
  auto get = must(client_->get(object_id(8)));
  ASSERT_TRUE(get->wait(kSoon));
}

TEST_F(StoppedTest, AForkedChildSendsNothingAndEnds) {
  node_->pause();
  auto gets = begin_many();
  const pid_t child = ::fork();
  if (child == 0) {
    gets.clear();
    client_.reset();
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  const auto last = must(client_->remove(object_id(2)));
  node_->resume();
  EXPECT_TRUE(node_->wait_for<DeleteCommand>(1));
  EXPECT_EQ(requested_ids().size(), kMany);
  EXPECT_TRUE(node_->commands<CancelCommand>().empty());
}

}  // namespace
}  // namespace hoplite

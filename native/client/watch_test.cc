// SPDX-License-Identifier: Apache-2.0
// One thread that waits for many requests, beside threads that wait for one each.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "client/client.h"
#include "client/scripted_node_test.h"

namespace hoplite {
namespace {

constexpr Duration kForEver = 3600_s;  // a wait that nothing ends fails at the runner's limit

class WatchTest : public ::testing::Test {
 protected:
  WatchTest() {
    char path[] = "/tmp/hoplite-test-XXXXXX";
    HOPLITE_CHECK(::mkdtemp(path) != nullptr);
    directory_ = path;
    node_ = std::make_unique<ScriptedNode>(directory_ + "/node.sock");
    client_ = must(Client::attach(directory_ + "/node.sock"));
  }
  ~WatchTest() override {
    client_.reset();
    node_.reset();
    ::rmdir(directory_.c_str());
  }
  // Objects with an even number are there, others never.
  void answer_even() {
    node_->script([](const Command& c) -> std::optional<Reply> {
      const auto* get = std::get_if<GetCommand>(&c.body);
      if (get == nullptr || get->object.bytes[0] % 2 != 0) return std::nullopt;
      return small(0, 64);
    });
  }
  RequestHandle watched_get(std::uint8_t number) {
    auto get = must(client_->get(object_id(number)));
    EXPECT_TRUE(client_->watch(*get));
    return get;
  }
  std::optional<RequestId> next(Duration timeout) { return must(client_->next_finished(timeout)); }

  std::string directory_;
  std::unique_ptr<ScriptedNode> node_;
  std::unique_ptr<Client> client_;
};

TEST_F(WatchTest, TellsEachFinishedRequestOnce) {
  answer_even();
  const auto never = watched_get(1);
  const auto first = watched_get(2);
  const auto second = watched_get(4);
  EXPECT_EQ(next(kForEver), first->id());
  EXPECT_EQ(next(kForEver), second->id());
  EXPECT_EQ(next(1_ms), std::nullopt);
  EXPECT_FALSE(never->is_finished());
}

TEST_F(WatchTest, ARequestThatIsNotWatchedIsNotTold) {
  answer_even();
  auto plain = must(client_->get(object_id(2)));
  const auto watched = watched_get(4);
  EXPECT_EQ(next(kForEver), watched->id());
  EXPECT_EQ(next(1_ms), std::nullopt);
  EXPECT_TRUE(plain->is_finished());
}

TEST_F(WatchTest, AFinishedRequestIsToldAtOnceAlsoToAThreadThatWaitsAlready) {
  answer_even();
  auto get = must(client_->get(object_id(2)));
  ASSERT_TRUE(get->wait(kSoon));
  std::thread waiting([&] { EXPECT_EQ(next(kForEver), get->id()); });
  ASSERT_TRUE(client_->watch(*get));
  waiting.join();
}

TEST_F(WatchTest, ACancelEndsTheWaitsOfOtherThreads) {
  const auto watched = watched_get(1);
  std::thread watching([&] { EXPECT_EQ(next(kForEver), watched->id()); });
  auto single = must(client_->get(object_id(3)));
  std::thread waiting([&] {
    EXPECT_TRUE(single->wait(kForEver));
    EXPECT_EQ(single->take().error().code, Code::kCancelled);
  });
  watched->cancel();
  single->cancel();
  watching.join();
  waiting.join();
}

TEST_F(WatchTest, ADeadNodeFailsWhatIsWatchedAndThenTheWatch) {
  const auto first = watched_get(1);
  const auto second = watched_get(3);
  std::thread watching([&] {
    std::set<RequestId> finished{*next(kForEver), *next(kForEver)};
    EXPECT_EQ(finished, (std::set<RequestId>{first->id(), second->id()}));
    const auto end = client_->next_finished(kForEver);
    ASSERT_FALSE(end);
    EXPECT_EQ(end.error().code, Code::kNodeLost);
  });
  node_.reset();
  watching.join();
  EXPECT_EQ(first->take().error().code, Code::kNodeLost);
  EXPECT_EQ(client_->watch(*first).error().code, Code::kNodeLost);
}

TEST_F(WatchTest, AClosedClientEndsTheWatch) {
  std::thread watching([&] {
    const auto end = client_->next_finished(kForEver);
    ASSERT_FALSE(end);
    EXPECT_EQ(end.error().code, Code::kNodeLost);
  });
  client_->close();
  watching.join();
}

TEST_F(WatchTest, OneThreadWatchesWhileOthersWaitForTheirOwn) {
  answer_even();
  constexpr std::size_t kWatched = 300;
  std::mutex mutex;
  std::vector<RequestHandle> asked;
  std::set<RequestId> finished;
  std::thread watching([&] {
    while (finished.size() < kWatched) {
      if (const auto id = next(kForEver)) finished.insert(*id);
    }
  });
  std::vector<std::thread> threads;
  std::atomic<int> right{0};
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      for (std::size_t i = 0; i < kWatched / 3; ++i) {
        auto one = watched_get(2);
        {
          const std::lock_guard guard(mutex);
          asked.push_back(std::move(one));
        }
        auto own = must(client_->get(object_id(4)));
        if (own->wait(kForEver) && own->take()) ++right;
      }
    });
  }
  for (auto& each : threads) each.join();
  watching.join();
  EXPECT_EQ(right, static_cast<int>(kWatched));
  std::set<RequestId> expected;
  for (const RequestHandle& each : asked) expected.insert(each->id());
  EXPECT_EQ(finished, expected);
}

TEST_F(WatchTest, AllAreWaitedForOnTheCallersOwnThread) {
  answer_even();
  const std::array ids{object_id(2), object_id(4), object_id(6)};
  const auto all = must(client_->gather(ids));
  ASSERT_EQ(all.size(), ids.size());
  EXPECT_EQ(client_->wait_all(all, kForEver), ids.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i]->object(), ids[i]);
    EXPECT_TRUE(all[i]->take());
  }
  EXPECT_EQ(client_->wait_all({}, kForEver), 0U);
}

TEST_F(WatchTest, AWaitForAllEndsWithItsTimeOrTheFirstFailure) {
  answer_even();
  const std::array ids{object_id(1), object_id(2), object_id(3)};
  const auto all = must(client_->gather(ids));
  EXPECT_EQ(client_->wait_all(all, 1_ms), std::nullopt);
  EXPECT_EQ(client_->wait_all(all, Duration{0}), std::nullopt);
  std::thread waiting([&] { EXPECT_EQ(client_->wait_all(all, kForEver), 2U); });
  all[2]->cancel();
  waiting.join();
  EXPECT_FALSE(all[0]->is_finished());
  node_.reset();
  EXPECT_EQ(client_->wait_all(std::span(all).first(2), kForEver), 0U);
}

}  // namespace
}  // namespace hoplite

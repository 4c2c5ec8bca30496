// SPDX-License-Identifier: Apache-2.0
// The client against a scripted node: a LocalPort whose answers the test chooses.
#include "client/client.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "client/scripted_node_test.h"

namespace hoplite {
namespace {

std::vector<Part> one_part(DType dtype, const std::vector<std::byte>& data) {
  return {{dtype, data.size()}};
}

class ClientTest : public ::testing::Test {
 protected:
  ClientTest() {
    char path[] = "/tmp/hoplite-test-XXXXXX";
    HOPLITE_CHECK(::mkdtemp(path) != nullptr);
    directory_ = path;
    node_ = std::make_unique<ScriptedNode>(socket_path());
    client_ = must(Client::attach(socket_path()));
  }
  ~ClientTest() override {
    client_.reset();
    node_.reset();
    ::rmdir(directory_.c_str());
  }
  std::string socket_path() const { return directory_ + "/node.sock"; }
  Result<Outcome> finish(Result<RequestHandle> request) {
    if (!request) return request.error();
    if (!(*request)->wait(kSoon)) return Error{Code::kTimeout, "no answer"};
    return (*request)->take();
  }
  View fetch(std::uint8_t number) {
    return std::get<View>(must(finish(client_->get(object_id(number)))));
  }

  std::string directory_;
  std::unique_ptr<ScriptedNode> node_;
  std::unique_ptr<Client> client_;
};

TEST_F(ClientTest, KnowsItsNode) {
  EXPECT_EQ(client_->node_id(), NodeId{7});
  EXPECT_EQ(client_->node_incarnation(), Incarnation{2});
  EXPECT_TRUE(client_->is_alive());
}

TEST_F(ClientTest, WithoutANodeAttachingFailsAndNamesTheSocket) {
  auto client = Client::attach(directory_ + "/nobody.sock");
  ASSERT_FALSE(client);
  EXPECT_EQ(client.error().code, Code::kNodeLost);
  EXPECT_NE(client.error().text.find("nobody.sock"), std::string::npos);
}

TEST_F(ClientTest, ASmallPutCarriesItsBytes) {
  node_->script([](const Command&) { return Done{}; });
  const std::vector<std::byte> data(kInlineBytesMax, std::byte{5});
  auto outcome = finish(client_->put(object_id(1), Incarnation{4}, "l",
                                     one_part(DType::kFloat32, data), OneBuffer{data}));
  ASSERT_TRUE(outcome);
  EXPECT_TRUE(std::holds_alternative<Done>(*outcome));
  const auto put = std::get<PutCommand>(node_->commands<PutCommand>().at(0).body);
  EXPECT_EQ(put.payload, data);
  EXPECT_EQ(put.incarnation, Incarnation{4});
  EXPECT_EQ(put.meta.layout, "l");
}

TEST_F(ClientTest, ALargePutIsReservedThenWrittenInPartsThatAreAnnounced) {
  node_->script([](const Command& c) -> std::optional<Reply> {
    if (std::holds_alternative<PutCommand>(c.body)) return Reserved{{8192, 3'000'000}};
    const auto* wrote = std::get_if<WroteCommand>(&c.body);
    if (wrote != nullptr && wrote->upto_bytes == 3'000'000) return Done{};
    return std::nullopt;
  });
  std::vector<std::byte> data(3'000'000);
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>(i >> 10);
  auto put = must(client_->put(object_id(1), Incarnation{1}, "", one_part(DType::kOpaque, data),
                               OneBuffer{data}));
  ASSERT_TRUE(put->wait(kSoon));
  EXPECT_TRUE(std::holds_alternative<Reserved>(must(put->take())));
  ASSERT_TRUE(finish(client_->write(*put, OneBuffer{data})));
  const auto place = node_->arena().at({8192, data.size()});
  EXPECT_TRUE(std::equal(data.begin(), data.end(), place.begin()));
  std::uint64_t upto = 0;
  const auto announced = node_->commands<WroteCommand>();
  EXPECT_GE(announced.size(), 10U);
  for (const Command& each : announced) {
    EXPECT_GT(std::get<WroteCommand>(each.body).upto_bytes, upto);
    upto = std::get<WroteCommand>(each.body).upto_bytes;
  }
  EXPECT_EQ(upto, data.size());
  EXPECT_FALSE(client_->write(*put, OneBuffer{data}));  // once only
  put.reset();
  EXPECT_TRUE(node_->commands<CancelCommand>().empty());
}

TEST_F(ClientTest, AReservedPutThatIsDroppedUnwrittenIsTakenBack) {
  node_->script([](const Command&) { return Reserved{{0, 200'000}}; });
  const std::vector<std::byte> data(200'000);
  auto put = must(client_->put(object_id(1), Incarnation{1}, "", one_part(DType::kOpaque, data),
                               OneBuffer{data}));
  ASSERT_TRUE(put->wait(kSoon));
  const RequestId id = put->id();
  put.reset();
  ASSERT_TRUE(node_->wait_for<CancelCommand>(1));
  EXPECT_EQ(node_->commands<CancelCommand>()[0].request, id);
}

TEST_F(ClientTest, WritingSomethingElseThanWasReservedIsRefused) {
  node_->script([](const Command&) { return Reserved{{0, 200'000}}; });
  const std::vector<std::byte> data(200'000);
  auto put = must(client_->put(object_id(1), Incarnation{1}, "", one_part(DType::kOpaque, data),
                               OneBuffer{data}));
  auto early = client_->write(*put, OneBuffer{data});
  ASSERT_TRUE(put->wait(kSoon));
  auto wrong = client_->write(*put, OneBuffer{std::span(data).first(100)});
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().code, Code::kInvalidArgument);
}

TEST_F(ClientTest, ASmallObjectIsAnOwnedCopyWithoutAPin) {
  std::fill_n(node_->arena().at({64, 500}).begin(), 500, std::byte{9});
  node_->script([](const Command&) { return small(64, 500); });
  {
    View view = fetch(1);
    EXPECT_FALSE(view.is_mapped());
    EXPECT_EQ(view.bytes().size(), 500U);
    EXPECT_EQ(view.bytes()[499], std::byte{9});
    EXPECT_EQ(view.incarnation(), Incarnation{3});
    EXPECT_EQ(view.layout(), "layout");
  }
  ASSERT_TRUE(finish(client_->get(object_id(2))));
  EXPECT_TRUE(node_->commands<ReleaseCommand>().empty());
}

TEST_F(ClientTest, AnEmptyObjectIsAnEmptyView) {
  node_->script([](const Command&) { return small(0, 0); });
  EXPECT_TRUE(fetch(1).bytes().empty());
}

TEST_F(ClientTest, ALargeObjectIsMappedPrivatelyAndReleasedWithItsView) {
  const auto place = node_->arena().at({4096, 100'000});
  std::fill(place.begin(), place.end(), std::byte{1});
  node_->script([](const Command&) { return large(4096, 100'000); });
  {
    View view = fetch(1);
    EXPECT_TRUE(view.is_mapped());
    view.bytes()[0] = std::byte{200};
    EXPECT_EQ(place[0], std::byte{1});
    EXPECT_EQ(fetch(1).bytes()[0], std::byte{1});
  }
  ASSERT_TRUE(node_->wait_for<ReleaseCommand>(2));
  const auto release = std::get<ReleaseCommand>(node_->commands<ReleaseCommand>()[0].body);
  EXPECT_EQ(release.object, object_id(1));
  EXPECT_EQ(release.incarnation, Incarnation{3});
}

TEST_F(ClientTest, AViewIsTakenOnceAndOneThatNobodyTakesIsReleased) {
  node_->script([](const Command&) { return large(4096, 100'000); });
  auto get = must(client_->get(object_id(1)));
  ASSERT_TRUE(get->wait(kSoon));
  {
    const auto view = must(get->take());
  }
  EXPECT_FALSE(get->take());
  ASSERT_TRUE(node_->wait_for<ReleaseCommand>(1));
  auto dropped = must(client_->get(object_id(1)));
  ASSERT_TRUE(dropped->wait(kSoon));
  dropped.reset();
  EXPECT_TRUE(node_->wait_for<ReleaseCommand>(2));
}

TEST_F(ClientTest, AnAnswerThatComesAfterTheCancelIsReleased) {
  std::optional<Command> held;
  node_->script([&](const Command& c) -> std::optional<Reply> {
    if (std::holds_alternative<CancelCommand>(c.body)) return large(4096, 100'000);  // crossed it
    return std::nullopt;
  });
  auto get = must(client_->get(object_id(6)));
  EXPECT_FALSE(get->wait(1_ms));
  get->cancel();
  ASSERT_TRUE(get->wait(kSoon));
  EXPECT_EQ(get->take().error().code, Code::kCancelled);
  ASSERT_TRUE(node_->wait_for<CancelCommand>(1));
  while (node_->commands<ReleaseCommand>().empty()) {  // ends at the runner's limit
    ASSERT_TRUE(client_->is_alive());                  // reads what has come
  }
  EXPECT_EQ(std::get<ReleaseCommand>(node_->commands<ReleaseCommand>()[0].body).object,
            object_id(6));
}

TEST_F(ClientTest, AnErrorOfTheNodeIsTheRequestsError) {
  node_->script([](const Command&) { return Error{Code::kStoreFull, "full of x"}; });
  auto outcome = finish(client_->get(object_id(1)));
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().code, Code::kStoreFull);
  EXPECT_EQ(outcome.error().text, "full of x");
}

TEST_F(ClientTest, AReduceEndsWithItsMembers) {
  node_->script([](const Command& c) -> std::optional<Reply> {
    if (std::holds_alternative<ReduceCommand>(c.body)) return Reduced{{3, 1}};
    return std::nullopt;
  });
  ASSERT_TRUE(client_->reduce_source(object_id(1), 3, object_id(13), Incarnation{2}));
  ASSERT_TRUE(client_->reduce_source_failed(object_id(1), 2));
  auto outcome = must(finish(client_->reduce({object_id(1), ReduceOp::kMax, 4, 2})));
  EXPECT_EQ(std::get<Reduced>(outcome).members, (std::vector<std::uint32_t>{3, 1}));
  const auto sources = node_->commands<ReduceSourceCommand>();
  ASSERT_EQ(sources.size(), 2U);
  EXPECT_EQ(std::get<ReduceSourceCommand>(sources[0].body).source.object, object_id(13));
  EXPECT_TRUE(std::get<ReduceSourceCommand>(sources[1].body).source.failed);
  EXPECT_FALSE(client_->reduce({object_id(1), ReduceOp::kSum, 4, 5}));
  EXPECT_FALSE(client_->reduce({object_id(1), ReduceOp::kSum, 4, 0}));
}

TEST_F(ClientTest, AFailedReduceEndsWithItsLostSourcesAndCountsAsAFailure) {
  node_->script([](const Command& c) -> std::optional<Reply> {
    if (std::holds_alternative<ReduceCommand>(c.body)) return ReduceFailed{{0, 3}, "too few"};
    return std::nullopt;
  });
  const RequestHandle open = must(client_->get(object_id(2)));
  const std::vector<RequestHandle> both{open, must(client_->reduce({object_id(1), {}, 4, 3}))};
  EXPECT_EQ(client_->wait_all(both, kSoon), std::size_t{1});
  auto outcome = must(both[1]->take());
  EXPECT_EQ(std::get<ReduceFailed>(outcome).lost, (std::vector<std::uint32_t>{0, 3}));
  EXPECT_EQ(std::get<ReduceFailed>(outcome).text, "too few");
}

TEST_F(ClientTest, ManyThreadsShareOneReader) {
  std::fill_n(node_->arena().at({0, 4096}).begin(), 4096, std::byte{4});
  node_->script([](const Command& c) -> std::optional<Reply> {
    const auto* get = std::get_if<GetCommand>(&c.body);
    if (get == nullptr) return std::nullopt;
    return get->object.bytes[0] % 2 == 0 ? small(0, 64) : large(0, 100'000);
  });
  std::vector<std::thread> threads;
  std::atomic<int> right{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 100; ++i) {
        auto outcome = finish(client_->get(object_id(static_cast<std::uint8_t>(t + i))));
        if (outcome && std::get<View>(*outcome).bytes()[0] == std::byte{4}) ++right;
      }
    });
  }
  for (auto& each : threads) each.join();
  EXPECT_EQ(right, 400);
}

TEST_F(ClientTest, ASenderWhoseAnswersNobodyReadsReadsThemItself) {
  node_->script([](const Command&) { return small(0, kInlineBytesMax); });
  std::vector<RequestHandle> gets;
  for (int i = 0; i < 200; ++i) gets.push_back(must(client_->get(object_id(1))));
  for (auto& get : gets) ASSERT_TRUE(get->wait(kSoon));
}

TEST_F(ClientTest, WhenTheNodeDiesPendingRequestsFailAndViewsStay) {
  std::fill_n(node_->arena().at({0, 100'000}).begin(), 100'000, std::byte{6});
  node_->script([](const Command& c) -> std::optional<Reply> {
    if (std::get<GetCommand>(c.body).object == object_id(1)) return large(0, 100'000);
    return std::nullopt;
  });
  View view = fetch(1);
  auto pending = must(client_->get(object_id(2)));
  std::thread waiting([&] {
    EXPECT_TRUE(pending->wait(kSoon));
    EXPECT_EQ(pending->take().error().code, Code::kNodeLost);
  });
  node_.reset();
  waiting.join();
  EXPECT_FALSE(client_->is_alive());
  auto late = client_->get(object_id(3));
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code, Code::kNodeLost);
  EXPECT_EQ(view.bytes()[99'999], std::byte{6});
}

TEST_F(ClientTest, AClosedClientFailsItsRequestsAndKeepsItsViews) {
  node_->script([](const Command& c) -> std::optional<Reply> {
    const auto* get = std::get_if<GetCommand>(&c.body);
    if (get != nullptr && get->object == object_id(1)) return large(0, 100'000);
    return std::nullopt;
  });
  {
    View view = fetch(1);
    auto pending = must(client_->get(object_id(2)));
    client_->close();
    client_->close();
    ASSERT_TRUE(pending->wait(kSoon));
    EXPECT_EQ(pending->take().error().code, Code::kNodeLost);
    EXPECT_FALSE(client_->is_alive());
    EXPECT_FALSE(client_->get(object_id(3)));
    EXPECT_TRUE(node_->commands<ClientLostCommand>().empty());  // the view still pins
    pending.reset();
    client_.reset();
  }
  EXPECT_TRUE(node_->wait_for<ReleaseCommand>(1));
  EXPECT_TRUE(node_->wait_for<ClientLostCommand>(1));
}

// Runs `child` in a forked process; true when it returned true there.
bool in_child(const std::function<bool()>& child) {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(child() ? 0 : 1);
  int status = 0;
  return ::waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST_F(ClientTest, AForkedChildIsToldAndItsViewsStayReadable) {
  std::fill_n(node_->arena().at({0, 100'000}).begin(), 100'000, std::byte{6});
  node_->script([](const Command&) { return large(0, 100'000); });
  View view = fetch(1);
  EXPECT_TRUE(in_child([&] {
    const auto asked = client_->get(object_id(2));
    const bool is_told = !asked && asked.error().code == Code::kInvalidArgument &&
                         asked.error().text.find("fork") != std::string::npos;
    return is_told && !client_->is_alive() && view.bytes()[5] == std::byte{6};
  }));
  EXPECT_TRUE(client_->is_alive());
  EXPECT_EQ(node_->commands<GetCommand>().size(), 1U);
}

TEST_F(ClientTest, AViewFromBeforeAForkIsReleasedOnlyWithTheSocket) {
  node_->script([](const Command&) { return large(0, 100'000); });
  {
    View before = fetch(1);
    EXPECT_TRUE(in_child([] { return true; }));
    View after = fetch(2);
  }
  ASSERT_TRUE(node_->wait_for<ReleaseCommand>(1));
  ASSERT_TRUE(finish(client_->get(object_id(3))));
  EXPECT_EQ(std::get<ReleaseCommand>(node_->commands<ReleaseCommand>()[0].body).object,
            object_id(2));
  client_.reset();
  EXPECT_TRUE(node_->wait_for<ClientLostCommand>(1));
}

TEST_F(ClientTest, AChildWithoutViewsDoesNotKeepTheClientAlive) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t pid = ::fork();
  if (pid == 0) {  // outlives the parent's client
    char byte = 0;
    [[maybe_unused]] const auto got = ::read(ends[0], &byte, 1);
    ::_exit(0);
  }
  client_.reset();
  EXPECT_TRUE(node_->wait_for<ClientLostCommand>(1));
  ASSERT_EQ(::write(ends[1], "x", 1), 1);
  ASSERT_EQ(::waitpid(pid, nullptr, 0), pid);
  ::close(ends[0]);
  ::close(ends[1]);
}

}  // namespace
}  // namespace hoplite

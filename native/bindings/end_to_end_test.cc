// SPDX-License-Identifier: Apache-2.0
// Nodes and clients in one process, over real sockets on loopback: what the bindings stand on.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "client/client.h"
#include "node/node.h"

namespace hoplite {
namespace {

constexpr Duration kSoon = 10_s;

ObjectId object_id(std::uint8_t number) {
  ObjectId id;
  id.bytes.fill(number);
  return id;
}

std::vector<std::byte> bytes_of(const std::vector<float>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(float));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

std::vector<std::byte> pattern(std::size_t size, unsigned seed) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) {
    bytes[i] = static_cast<std::byte>((i * 2654435761U + seed) >> 13);
  }
  return bytes;
}

class Cluster : public ::testing::Test {
 protected:
  void SetUp() override {
    char path[] = "/tmp/hoplite-test-XXXXXX";
    ASSERT_NE(::mkdtemp(path), nullptr);
    directory_ = path;
  }
  void TearDown() override {
    clients_.clear();
    nodes_.clear();
    ::rmdir(directory_.c_str());
  }

  std::string socket_of(std::size_t rank) const {
    return directory_ + "/" + std::to_string(rank) + ".sock";
  }

  void start(std::size_t count, std::map<std::string, std::int64_t> overrides = {},
             std::size_t rails = 1) {
    for (std::size_t rank = 0; rank < count; ++rank) {
      NodeOptions options;
      options.node = NodeId{rank + 1};
      options.socket_path = socket_of(rank);
      options.listen.assign(rails, "127.0.0.1:0");
      options.arena_bytes = 256_MiB;
      options.secret = "shared by the cluster";
      options.overrides = overrides;
      auto node = Node::start(options);
      ASSERT_TRUE(node) << node.error().text;
      nodes_.push_back(std::move(*node));
    }
    announce(1);
    for (std::size_t rank = 0; rank < count; ++rank) {
      auto client = Client::attach(socket_of(rank));
      ASSERT_TRUE(client) << client.error().text;
      clients_.push_back(std::move(*client));
    }
  }

  void announce(std::uint64_t epoch) {
    std::vector<Member> members;
    for (const auto& node : nodes_) {
      if (node != nullptr) members.push_back({node->node_id(), node->incarnation(), node->rails()});
    }
    for (const auto& node : nodes_) {
      if (node != nullptr) node->set_view(Epoch{epoch}, members);
    }
  }

  Result<Outcome> finish(Result<RequestHandle> request) {
    if (!request) return request.error();
    if (!(*request)->wait(kSoon)) return Error{Code::kTimeout, "no answer"};
    return (*request)->take();
  }

  Result<Outcome> put(std::size_t rank, ObjectId id, const std::vector<std::byte>& data,
                      DType dtype = DType::kOpaque) {
    Client& client = *clients_[rank];
    const std::array<std::span<const std::byte>, 1> buffers{data};
    auto request = client.put(id, Incarnation{1}, "layout", {{dtype, data.size()}}, buffers);
    auto outcome = finish(request);
    if (!outcome || !std::holds_alternative<Reserved>(*outcome)) return outcome;
    return finish(client.write(**request, buffers));
  }

  void expect_bytes(Result<Outcome> outcome, const std::vector<std::byte>& expected) {
    ASSERT_TRUE(outcome) << outcome.error().text;
    auto* view = std::get_if<View>(&*outcome);
    ASSERT_NE(view, nullptr);
    ASSERT_EQ(view->bytes().size(), expected.size());
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), view->bytes().begin()));
    EXPECT_EQ(view->is_mapped(), expected.size() > kInlineBytesMax);
    EXPECT_EQ(view->layout(), "layout");
  }

  std::string directory_;
  std::vector<std::unique_ptr<Node>> nodes_;
  std::vector<std::unique_ptr<Client>> clients_;
};

TEST_F(Cluster, ASmallObjectPutOnOneNodeIsGotOnAll) {
  start(3);
  const auto data = pattern(1000, 1);
  ASSERT_TRUE(put(0, object_id(1), data));
  for (auto& client : clients_) expect_bytes(finish(client->get(object_id(1))), data);
}

TEST_F(Cluster, ALargeObjectPutOnOneNodeIsGotOnAll) {
  start(3);
  const auto data = pattern(9'000'001, 2);
  auto done = put(1, object_id(2), data);
  ASSERT_TRUE(done) << done.error().text;
  for (auto& client : clients_) expect_bytes(finish(client->get(object_id(2))), data);
}

TEST_F(Cluster, AGetMayComeBeforeThePut) {
  start(3);
  for (const std::size_t size : {std::size_t{10}, std::size_t{3'000'000}}) {
    const ObjectId id = object_id(static_cast<std::uint8_t>(size % 251));
    std::vector<RequestHandle> gets;
    for (auto& client : clients_) {
      auto get = client->get(id);
      ASSERT_TRUE(get);
      gets.push_back(*get);
    }
    const auto data = pattern(size, 3);
    ASSERT_TRUE(put(2, id, data));
    for (auto& get : gets) expect_bytes(finish(get), data);
  }
}

TEST_F(Cluster, TwoRailsCarryOneObject) {
  start(2, {}, 2);
  const auto data = pattern(40'000'000, 4);
  ASSERT_TRUE(put(0, object_id(4), data));
  expect_bytes(finish(clients_[1]->get(object_id(4))), data);
}

TEST_F(Cluster, WritesIntoAReceivedObjectStayInTheProcess) {
  start(2);
  const auto data = pattern(1'000'000, 5);
  ASSERT_TRUE(put(0, object_id(5), data));
  auto first = finish(clients_[1]->get(object_id(5)));
  ASSERT_TRUE(first) << first.error().text;
  auto mine = std::get<View>(*first).bytes();
  std::fill(mine.begin(), mine.end(), std::byte{0xff});
  expect_bytes(finish(clients_[1]->get(object_id(5))), data);
}

TEST_F(Cluster, AReduceSumsTheFirstSourcesThatAreConfirmed) {
  start(3);
  constexpr std::size_t kCount = 500'000;
  std::vector<std::vector<float>> sources;
  for (std::size_t i = 0; i < 4; ++i) {
    std::vector<float> values(kCount);
    std::iota(values.begin(), values.end(), static_cast<float>(i));
    sources.push_back(values);
    const auto id = object_id(static_cast<std::uint8_t>(10 + i));
    ASSERT_TRUE(put(i % 3, id, bytes_of(values), DType::kFloat32));
  }
  const ObjectId target = object_id(99);
  auto reduce = clients_[0]->reduce({target, ReduceOp::kSum, 4, 2});
  ASSERT_TRUE(reduce);
  ASSERT_TRUE(clients_[0]->reduce_source(target, 3, object_id(13)));
  ASSERT_TRUE(clients_[0]->reduce_source(target, 1, object_id(11)));
  auto outcome = finish(reduce);
  ASSERT_TRUE(outcome) << outcome.error().text;
  auto members = std::get<Reduced>(*outcome).members;
  std::sort(members.begin(), members.end());
  EXPECT_EQ(members, (std::vector<std::uint32_t>{1, 3}));
  std::vector<float> sum(kCount);
  for (std::size_t i = 0; i < kCount; ++i) sum[i] = sources[1][i] + sources[3][i];
  const auto expected = bytes_of(sum);
  for (auto& client : clients_) {
    auto got = finish(client->get(target));
    ASSERT_TRUE(got) << got.error().text;
    auto bytes = std::get<View>(*got).bytes();
    ASSERT_EQ(bytes.size(), expected.size());
    EXPECT_EQ(std::memcmp(bytes.data(), expected.data(), expected.size()), 0);
  }
}

TEST_F(Cluster, ADeletedObjectIsLostToLaterGets) {
  start(2);
  ASSERT_TRUE(put(0, object_id(6), pattern(200'000, 6)));
  ASSERT_TRUE(finish(clients_[1]->remove(object_id(6))));
  auto got = finish(clients_[1]->get(object_id(6), true));
  ASSERT_FALSE(got);
  EXPECT_EQ(got.error().code, Code::kObjectLost);
}

TEST_F(Cluster, AnObjectThatIsWrittenInPlaceIsGotOnAll) {
  start(2);
  const auto data = pattern(3'000'001, 8);
  Client& client = *clients_[0];
  auto early = clients_[1]->get(object_id(8));
  auto reserved = client.reserve(object_id(8), Incarnation{1}, "layout",
                                 {{DType::kOpaque, data.size()}}, data.size());
  ASSERT_TRUE(finish(reserved));
  auto unsealed = client.map(*reserved);
  ASSERT_TRUE(unsealed) << unsealed.error().text;
  std::copy(data.begin(), data.end(), (*unsealed)->bytes().begin());
  auto sealed = finish((*unsealed)->seal());
  ASSERT_TRUE(sealed) << sealed.error().text;
  expect_bytes(finish(early), data);
  expect_bytes(finish(client.get(object_id(8))), data);
  // After the seal the writer's changes stay private, and its memory keeps the object's bytes even
  // if the node reuses the range.
  (*unsealed)->bytes()[0] = ~data[0];
  expect_bytes(finish(client.get(object_id(8))), data);
  ASSERT_TRUE(finish(client.remove(object_id(8))));
  ASSERT_TRUE(put(0, object_id(9), pattern(3'000'001, 9)));
  const auto mine = (*unsealed)->bytes();
  EXPECT_TRUE(std::equal(data.begin() + 1, data.end(), mine.begin() + 1));
}

TEST_F(Cluster, ANodeThatStopsFailsItsClientsRequestsAndLeavesTheirViews) {
  start(1);
  const auto data = pattern(300'000, 7);
  ASSERT_TRUE(put(0, object_id(7), data));
  auto got = finish(clients_[0]->get(object_id(7)));
  ASSERT_TRUE(got);
  auto pending = clients_[0]->get(object_id(8));
  ASSERT_TRUE(pending);
  nodes_[0]->stop();
  auto failed = finish(pending);
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code, Code::kNodeLost);
  EXPECT_FALSE(clients_[0]->is_alive());
  EXPECT_EQ(std::memcmp(std::get<View>(*got).bytes().data(), data.data(), data.size()), 0);
}

}  // namespace
}  // namespace hoplite

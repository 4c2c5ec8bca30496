// SPDX-License-Identifier: Apache-2.0
// Large puts: several buffers, and writes that are stopped.
#include <gtest/gtest.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "client/client.h"
#include "client/scripted_node_test.h"
#include "wire/crc32c.h"

namespace hoplite {
namespace {

class WriteTest : public ::testing::Test {
 protected:
  WriteTest() {
    char path[] = "/tmp/hoplite-test-XXXXXX";
    HOPLITE_CHECK(::mkdtemp(path) != nullptr);
    directory_ = path;
    node_ = std::make_unique<ScriptedNode>(directory_ + "/node.sock");
    client_ = must(Client::attach(directory_ + "/node.sock"));
  }
  ~WriteTest() override {
    client_.reset();
    node_.reset();
    ::rmdir(directory_.c_str());
  }
  static ScriptedNode::Script reserves_and_seals(std::uint64_t size_bytes,
                                                 std::uint32_t block_bytes = 0) {
    return [size_bytes, block_bytes](const Command& c) -> std::optional<Reply> {
      if (std::holds_alternative<PutCommand>(c.body)) {
        return Reserved{{8192, size_bytes}, block_bytes};
      }
      const auto* wrote = std::get_if<WroteCommand>(&c.body);
      if (wrote != nullptr && wrote->upto_bytes == size_bytes) return Done{};
      return std::nullopt;
    };
  }
  std::string directory_;
  std::unique_ptr<ScriptedNode> node_;
  std::unique_ptr<Client> client_;
};

TEST_F(WriteTest, BuffersAreWrittenOneAfterTheOtherWithoutBeingJoined) {
  node_->script(reserves_and_seals(400'000));
  std::vector<std::vector<std::byte>> leaves;  // more than one pwritev(2) takes, some empty
  std::vector<std::byte> joined;
  for (std::size_t i = 0; joined.size() < 400'000; ++i) {
    const std::size_t size = std::min<std::size_t>(i % 7 * 1000, 400'000 - joined.size());
    leaves.emplace_back(size, static_cast<std::byte>(i));
    joined.insert(joined.end(), leaves.back().begin(), leaves.back().end());
  }
  const std::vector<std::span<const std::byte>> buffers(leaves.begin(), leaves.end());
  auto put = must(
      client_->put(object_id(1), Incarnation{1}, "", {{DType::kOpaque, joined.size()}}, buffers));
  ASSERT_TRUE(put->wait(kSoon));
  ASSERT_TRUE(must(client_->write(*put, buffers))->wait(kSoon));
  const auto place = node_->arena().at({8192, joined.size()});
  EXPECT_TRUE(std::equal(joined.begin(), joined.end(), place.begin()));
}

TEST_F(WriteTest, SeveralThreadsFillALargeRange) {
  constexpr std::size_t kSize = 100'000'007;
  constexpr std::uint32_t kBlock = 192 * 1024;  // no divisor of a part
  node_->script(reserves_and_seals(kSize, kBlock));
  std::vector<std::byte> data(kSize);
  for (std::size_t i = 0; i < kSize; ++i) data[i] = static_cast<std::byte>(i * 2654435761U >> 13);
  // Cut at odd places, so that parts begin and end within buffers.
  std::vector<std::span<const std::byte>> buffers;
  for (std::size_t at = 0; at < kSize; at += 999'983) {
    buffers.push_back(std::span(data).subspan(at, std::min<std::size_t>(999'983, kSize - at)));
  }
  auto put =
      must(client_->put(object_id(1), Incarnation{1}, "", {{DType::kOpaque, kSize}}, buffers));
  ASSERT_TRUE(put->wait(kSoon));
  ASSERT_TRUE(must(client_->write(*put, buffers))->wait(kSoon));
  const auto place = node_->arena().at({8192, kSize});
  EXPECT_TRUE(std::equal(data.begin(), data.end(), place.begin()));
  EXPECT_GE(node_->commands<WroteCommand>().size(), 16U);
  std::map<std::size_t, std::uint32_t> sums;
  for (const Command& each : node_->commands<WroteCommand>()) {
    const auto& wrote = std::get<WroteCommand>(each.body);
    for (std::size_t i = 0; i < wrote.sums.size(); ++i) {
      EXPECT_TRUE(sums.emplace(wrote.first_block.value + i, wrote.sums[i]).second) << "told twice";
    }
  }
  ASSERT_EQ(sums.size(), (kSize + kBlock - 1) / kBlock);
  for (const auto& [block, sum] : sums) {
    const auto bytes = std::span<const std::byte>(data).subspan(block * kBlock);
    EXPECT_EQ(sum, crc32c(bytes.first(std::min<std::size_t>(kBlock, bytes.size()))));
  }
}

// While it lives, no thread can start: the default stack does not fit into the address space.
class NoMoreThreads {
 public:
  NoMoreThreads() {
    pthread_attr_t wanted;
    HOPLITE_CHECK(::pthread_getattr_default_np(&before_) == 0);
    HOPLITE_CHECK(::pthread_getattr_default_np(&wanted) == 0);
    HOPLITE_CHECK(::pthread_attr_setstacksize(&wanted, std::size_t{1} << 50) == 0);
    HOPLITE_CHECK(::pthread_setattr_default_np(&wanted) == 0);
    ::pthread_attr_destroy(&wanted);
  }
  ~NoMoreThreads() {
    ::pthread_setattr_default_np(&before_);
    ::pthread_attr_destroy(&before_);
  }

 private:
  pthread_attr_t before_;
};

TEST_F(WriteTest, OneThreadWritesEverythingWhereNoOtherCanBeStarted) {
  constexpr std::size_t kSize = 64_MiB;
  node_->script(reserves_and_seals(kSize));
  const std::vector<std::byte> data(kSize, std::byte{7});
  auto put = must(
      client_->put(object_id(1), Incarnation{1}, "", {{DType::kOpaque, kSize}}, OneBuffer{data}));
  ASSERT_TRUE(put->wait(kSoon));
  const NoMoreThreads limit;
  EXPECT_THROW(std::thread([] {}).join(), std::system_error);
  ASSERT_TRUE(must(client_->write(*put, OneBuffer{data}))->wait(kSoon));
  const auto place = node_->arena().at({8192, kSize});
  EXPECT_TRUE(std::equal(data.begin(), data.end(), place.begin()));
}

TEST_F(WriteTest, AWriteThatIsCancelledStopsAndGivesTheRangeBackItself) {
  node_->script(reserves_and_seals(3'000'000));
  const std::vector<std::byte> data(3'000'000);
  auto put = must(client_->put(object_id(1), Incarnation{1}, "", {{DType::kOpaque, data.size()}},
                               OneBuffer{data}));
  ASSERT_TRUE(put->wait(kSoon));
  auto reserved = must(client_->map(put));  // holds the range as a writer does
  put->cancel();
  EXPECT_TRUE(node_->commands<CancelCommand>().empty());
  EXPECT_EQ(reserved->seal().error().code, Code::kCancelled);
  EXPECT_FALSE(client_->write(*put, OneBuffer{data}));
  reserved.reset();
  ASSERT_TRUE(node_->wait_for<CancelCommand>(1));
  EXPECT_EQ(node_->commands<CancelCommand>()[0].request, put->id());
}

TEST_F(WriteTest, AWriteStopsWhenItsCallerIsAskedTo) {
  constexpr std::uint64_t kSize = 4_MiB;
  node_->script(reserves_and_seals(kSize));
  const std::vector<std::byte> page(4096);
  // The same page again and again, a page per pwritev(2): enough calls for the clock to move on.
  std::vector<std::span<const std::byte>> buffers(kSize / page.size(), page);
  int asked = 0;
  for (int i = 0; asked == 0 && i < 1000; ++i) {
    auto put =
        must(client_->put(object_id(1), Incarnation{1}, "", {{DType::kOpaque, kSize}}, buffers));
    ASSERT_TRUE(put->wait(kSoon));
    auto written = client_->write(*put, buffers, [&asked] { return ++asked > 0; });
    if (asked == 0) continue;
    ASSERT_FALSE(written);
    EXPECT_EQ(written.error().code, Code::kCancelled);
    EXPECT_TRUE(node_->wait_for<CancelCommand>(1));
  }
}

}  // namespace
}  // namespace hoplite

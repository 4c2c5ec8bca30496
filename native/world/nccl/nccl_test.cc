// SPDX-License-Identifier: Apache-2.0
// Bonds of NCCL between members of one process, over the library that stands in for it.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "world/nccl/nccl_bond.h"
#include "world/nccl/nccl_library.h"
#include "world/nccl/nccl_thread.h"
#include "world/pipes/socket_pipe.h"
#include "world/progress.h"
#include "world/world.h"

namespace hoplite::worlds {
namespace {

using State = Operation::State;
constexpr Duration kLong = 10_s;
constexpr int kFloat = 7;

std::uintptr_t at(const void* address) { return reinterpret_cast<std::uintptr_t>(address); }

NcclTransfer transfer(NcclKind kind, int peer, std::vector<float>& data) {
  NcclTransfer made;
  made.kind = kind;
  made.peer = peer;
  made.dtype = kFloat;
  made.count = data.size();
  made.part_bytes = data.size() * sizeof(float);
  if (kind != NcclKind::kReceive) made.in = {at(data.data())};
  if (kind != NcclKind::kSend) made.out = {at(data.data())};
  return made;
}

class Nccl : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    const std::vector<std::string> names = {FAKE_NCCL};
    auto loaded = NcclLibrary::load(names, FAKE_NCCL, CudaUse::kBegin);
    ASSERT_TRUE(loaded) << loaded.error().text;
    library_ = *loaded;
  }
  static void TearDownTestSuite() { library_.reset(); }
  void SetUp() override { fault(""); }
  void TearDown() override {
    for (const auto& port : ports_) port->close();
    EXPECT_TRUE(threads_[0].queue()->settle());
    EXPECT_TRUE(threads_[1].queue()->settle());
    fault("");
  }

  static void fault(const char* name) { ::setenv("FAKE_NCCL", name, 1); }

  void meet() {
    std::array<int, 2> ends{};
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
    const NcclId id = *library_->unique_id();
    for (std::size_t rank = 0; rank < 2; ++rank) {
      ports_[rank] = std::move(*Progress::start({}));
      worlds_[rank] = *ports_[rank]->open_world("w", 1, Rank{static_cast<std::uint32_t>(rank)}, 2);
      ASSERT_TRUE(SocketPipe::prepare(ends[rank]));
      ASSERT_TRUE(
          worlds_[rank]->add_edge(Rank{static_cast<std::uint32_t>(1 - rank)},
                                  std::make_unique<SocketPipe>(Stream(UniqueFd(ends[rank])))));
      bonds_[rank] = std::make_shared<NcclBond>(library_, threads_[rank].queue(), worlds_[rank],
                                                NcclPlace{id, static_cast<int>(rank), 2, 0});
      joined_[rank] = bonds_[rank]->join();
    }
  }
  void join() {
    meet();
    for (std::size_t rank = 0; rank < 2; ++rank)
      EXPECT_EQ(state_of(rank, joined_[rank]), State::kDone);
  }
  State state_of(std::size_t rank, const OperationHandle& operation) {
    EXPECT_TRUE(worlds_[rank]->wait(*operation, kLong));
    return operation->state;
  }
  NcclBond::Issued issue(std::size_t rank, NcclTransfer made, std::optional<std::uint64_t> turn) {
    auto issued = bonds_[rank]->issue(std::move(made), turn);
    EXPECT_TRUE(issued) << issued.error().text;
    return *issued;
  }

  static std::shared_ptr<const NcclLibrary> library_;
  std::array<NcclThread, 2> threads_;
  std::array<std::unique_ptr<Progress>, 2> ports_;
  std::array<std::shared_ptr<World>, 2> worlds_;
  std::array<std::shared_ptr<NcclBond>, 2> bonds_;
  std::array<OperationHandle, 2> joined_;
};

std::shared_ptr<const NcclLibrary> Nccl::library_;

TEST_F(Nccl, TurnsAreTakenInOrderInWhateverOrderTheyCome) {
  join();
  std::vector<std::vector<float>> sent(20);
  std::vector<std::vector<float>> got(20, std::vector<float>(1000));
  std::vector<OperationHandle> operations;
  std::vector<OperationHandle> received;
  for (std::size_t i = 0; i < sent.size(); ++i) {
    sent[i].assign(1000, static_cast<float>(i));
    const auto [operation, turn] = issue(0, transfer(NcclKind::kSend, 1, sent[i]), std::nullopt);
    EXPECT_EQ(turn, i + 1);
    operations.push_back(operation);
  }
  for (std::size_t i = got.size(); i-- > 0;) {
    received.push_back(issue(1, transfer(NcclKind::kReceive, 0, got[i]), i + 1).operation);
  }
  for (const auto& operation : operations) EXPECT_EQ(state_of(0, operation), State::kDone);
  for (const auto& operation : received) EXPECT_EQ(state_of(1, operation), State::kDone);
  EXPECT_EQ(got, sent);
}

TEST_F(Nccl, ATurnIsHadOnce) {
  join();
  std::vector<float> data(1);
  [[maybe_unused]] const auto first = issue(1, transfer(NcclKind::kReceive, 0, data), 2);
  EXPECT_EQ(bonds_[1]->issue(transfer(NcclKind::kReceive, 0, data), 2).error().code,
            Code::kBadFrame);
  EXPECT_EQ(bonds_[1]->issue(transfer(NcclKind::kReceive, 0, data), 0).error().code,
            Code::kBadFrame);
}

TEST_F(Nccl, AStreamThatIsBeingCapturedIsRefused) {
  join();
  const auto capture =
      reinterpret_cast<void (*)(bool)>(::dlsym(::dlopen(FAKE_NCCL, RTLD_NOW), "fake_capture"));
  std::vector<float> data(1);
  NcclTransfer captured = transfer(NcclKind::kSend, 1, data);
  captured.after = 1;
  capture(true);
  const auto refused = bonds_[0]->issue(captured, std::nullopt);
  capture(false);
  EXPECT_NE(refused.error().text.find("is being captured into a CUDA graph"), std::string::npos);
}

TEST_F(Nccl, ManyThreadsIssueAtOnce) {
  join();
  std::vector<std::thread> callers;
  std::vector<std::vector<float>> data(8, std::vector<float>(5000, 1.0F));
  for (std::size_t i = 0; i < data.size(); ++i) {
    callers.emplace_back([&, i] {
      const std::size_t rank = i % 2;
      for (std::uint64_t turn = 0; turn < 5; ++turn) {
        const std::uint64_t own = turn * 4 + i / 2 + 1;
        const auto issued = issue(rank, transfer(NcclKind::kAllReduce, 0, data[i]), own);
        EXPECT_EQ(state_of(rank, issued.operation), State::kDone);
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  for (const auto& each : data) EXPECT_EQ(each, std::vector<float>(5000, 32.0F));
}

TEST_F(Nccl, WhatIsUnderWayEndsWithTheWorldAndNotBefore) {
  for (const bool is_closed : {false, true}) {
    join();
    std::vector<float> data(1000);
    const auto launched = issue(0, transfer(NcclKind::kReceive, 1, data), std::nullopt);
    const auto waiting = issue(0, transfer(NcclKind::kReceive, 1, data), 3);
    EXPECT_FALSE(worlds_[0]->wait(*launched.operation, 50_ms));
    if (is_closed) {
      worlds_[0]->close();
    } else {
      EXPECT_FALSE(worlds_[0]->cancel(*launched.operation));
    }
    EXPECT_EQ(state_of(0, launched.operation), State::kBroken);
    EXPECT_EQ(state_of(0, waiting.operation), State::kBroken);
    EXPECT_EQ(issue(0, transfer(NcclKind::kReceive, 1, data), std::nullopt).operation->state,
              State::kBroken);
    for (const auto& port : ports_) port->close();
  }
}

TEST_F(Nccl, AJoinThatFailsLeavesTheWorldAsItIs) {
  fault("init_fails");
  meet();
  EXPECT_EQ(state_of(0, joined_[0]), State::kBroken);
  EXPECT_NE(bonds_[0]->error().find("as the fake was told"), std::string::npos);
  EXPECT_FALSE(worlds_[0]->end());
}

TEST_F(Nccl, AJoinThatHangsEndsWithTheWorld) {
  fault("init_hangs");
  meet();
  EXPECT_FALSE(worlds_[0]->wait(*joined_[0], 50_ms));
  worlds_[0]->abort(Cause::kAborted, "");
  EXPECT_EQ(state_of(0, joined_[0]), State::kBroken);
}

TEST_F(Nccl, WhoLeavesWaitsForWhatIsUnderWay) {
  join();
  std::vector<float> data(1000);
  const auto receiving = issue(0, transfer(NcclKind::kReceive, 1, data), std::nullopt);
  const std::array leaving = {worlds_[0]->leave(), worlds_[1]->leave()};
  EXPECT_EQ(state_of(1, leaving[1]), State::kDone);
  EXPECT_FALSE(worlds_[0]->wait(*leaving[0], 50_ms));
  std::vector<float> sent(1000, 2.0F);
  const auto sending = issue(1, transfer(NcclKind::kSend, 0, sent), 1);
  EXPECT_EQ(state_of(1, sending.operation), State::kDone);
  EXPECT_EQ(state_of(0, receiving.operation), State::kDone);
  EXPECT_EQ(state_of(0, leaving[0]), State::kDone);
  EXPECT_EQ(data, sent);
}

TEST(NcclLibrary, SaysWhatIsMissing) {
  const std::vector<std::string> none = {"/nowhere/libnccl.so.2"};
  const auto without_cuda = NcclLibrary::load(none, "/nowhere/libcuda.so.1", CudaUse::kBegin);
  EXPECT_NE(without_cuda.error().text.find("the CUDA driver can't be loaded"), std::string::npos);
  const auto unused = NcclLibrary::load(none, "/nowhere/libcuda.so.1", CudaUse::kAsItIs);
  EXPECT_NE(unused.error().text.find("uses no GPU"), std::string::npos);
  const auto without_nccl = NcclLibrary::load(none, FAKE_NCCL, CudaUse::kBegin);
  EXPECT_NE(without_nccl.error().text.find("no NCCL (/nowhere/libnccl.so.2"), std::string::npos);
  const std::vector<std::string> other = {"libc.so.6"};
  const auto too_old = NcclLibrary::load(other, FAKE_NCCL, CudaUse::kBegin);
  EXPECT_NE(too_old.error().text.find("without ncclGetVersion is too old"), std::string::npos);
  const auto no_driver = NcclLibrary::load(other, "libc.so.6", CudaUse::kBegin);
  EXPECT_NE(no_driver.error().text.find("has no cuInit"), std::string::npos);
}

}  // namespace
}  // namespace hoplite::worlds

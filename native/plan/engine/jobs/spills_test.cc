// SPDX-License-Identifier: Apache-2.0
// The jobs that one engine gives its spill file, and its handling of the answers.
#include "plan/engine/one_engine_test.h"

namespace hoplite {
namespace {

constexpr std::uint64_t kSize = 400_KiB;  // two fit

class Spilling : public OneEngine {
 protected:
  Spilling() : OneEngine(1, NodeId{1}, WhenFull::kSpill) {}

  static ObjectId name(std::uint8_t n) {
    ObjectId id;
    id.bytes[0] = n;
    return id;
  }
  void put(std::uint8_t n, std::uint64_t bytes = kSize) {
    ask(PutCommand{name(n), Incarnation{1}, floats_meta(bytes), {}});
    ask(WroteCommand{name(n), Incarnation{1}, bytes});
  }
  void answer(const SpillJob& job, const std::string& error = "") {
    engine_.handle_io(SpillDone{job.spill, error}, now_);
    engine_.check_invariants();
  }
  // Returns the one job that the engine has asked for.
  SpillJob job(SpillWay way, std::uint8_t n) {
    const auto jobs = deeds<SpillJob>();
    EXPECT_EQ(jobs.size(), 1U);
    if (jobs.empty()) return {};
    EXPECT_EQ(jobs[0].way, way);
    EXPECT_EQ(jobs[0].object, name(n));
    return jobs[0];
  }
  template <typename T>
  std::vector<T> replies() {
    std::vector<T> found;
    for (const ReplyToClient& reply : deeds<ReplyToClient>()) {
      if (const auto* body = std::get_if<T>(&reply.reply)) found.push_back(*body);
    }
    return found;
  }
  // Three objects, of which the first is in the file alone.
  void fill(std::uint64_t first_bytes = kSize) {
    put(1, first_bytes);
    put(2);
    ask(PutCommand{name(3), Incarnation{1}, floats_meta(kSize), {}});
    answer(job(SpillWay::kWrite, 1));
    ask(WroteCommand{name(3), Incarnation{1}, kSize});
    deeds<SpillJob>();
  }
};

TEST_F(Spilling, WritesTheLongestIdleObjectForAPutThatFindsNoRoom) {
  put(1);
  put(2);
  deeds<SpillJob>();
  ask(PutCommand{name(3), Incarnation{1}, floats_meta(kSize), {}});
  const SpillJob first = job(SpillWay::kWrite, 1);
  EXPECT_EQ(first.arena.size_bytes, kSize);
  EXPECT_EQ(first.file, (Extent{0, kSize}));
  EXPECT_EQ(first.whole_bytes, kSize);
  answer(first);
  EXPECT_EQ(replies<Reserved>().size(), 1U);
  EXPECT_EQ(engine_.stats().spill_bytes, kSize);
  EXPECT_EQ(engine_.stats().evictions, 1U);
}

TEST_F(Spilling, ReadsBackForAGetAndNeedsNotWriteItAgain) {
  fill();
  ask(GetCommand{name(1)});
  answer(job(SpillWay::kWrite, 2));
  const SpillJob read = job(SpillWay::kRead, 1);
  EXPECT_EQ(read.file, (Extent{0, kSize}));
  answer(read);
  EXPECT_EQ(replies<Fetched>().size(), 1U);
  ask(ReleaseCommand{name(1), Incarnation{1}});
  ask(GetCommand{name(2)});  // evicts the first, of which the file still has all
  job(SpillWay::kRead, 2);
}

TEST_F(Spilling, KeepsWhatTheDiskDoesNotTakeAndSaysWhy) {
  put(1);
  put(2);
  ask(PutCommand{name(3), Incarnation{1}, floats_meta(kSize), {}});
  answer(job(SpillWay::kWrite, 1), "writing to /disk: No space left on device (errno 28)");
  EXPECT_EQ(job(SpillWay::kFree, 1).file, (Extent{0, kSize}));
  engine_.handle_timeout(now_ + kAdmissionGrace);
  const auto errors = replies<Error>();
  ASSERT_EQ(errors.size(), 1U);
  EXPECT_EQ(errors[0].code, Code::kStoreFull);
  EXPECT_NE(errors[0].text.find("Spilling failed: writing to /disk: No space"), std::string::npos);
  ask(GetCommand{name(1)});
  EXPECT_EQ(replies<Fetched>().size(), 1U) << "it is where it was";
  EXPECT_EQ(engine_.stats().spill_errors, 1U);
}

TEST_F(Spilling, AsksAgainWhetherADiskThatWasFullTakesMore) {
  put(1);
  put(2);
  ask(PutCommand{name(3), Incarnation{1}, floats_meta(kSize), {}});
  answer(job(SpillWay::kWrite, 1), "full");
  deeds<SpillJob>();
  engine_.handle_timeout(now_ + kAdmissionGrace);
  engine_.handle_command(
      {ClientId{1}, RequestId{99}, PutCommand{name(4), Incarnation{1}, floats_meta(kSize), {}}},
      now_ + kAdmissionGrace * 3);
  EXPECT_EQ(job(SpillWay::kWrite, 2).file, (Extent{0, kSize})) << "the first was tried last";
}

TEST_F(Spilling, GivesTheFilesRangeBackWithTheObject) {
  fill();
  ask(DeleteCommand{name(1), {}});
  EXPECT_EQ(job(SpillWay::kFree, 1).file, (Extent{0, kSize}));
  EXPECT_EQ(engine_.stats().spill_bytes, 0U);
}

TEST_F(Spilling, KeepsARangeThatIsBeingWrittenWhenItsObjectGoes) {
  put(1);
  put(2);
  ask(PutCommand{name(3), Incarnation{1}, floats_meta(kSize), {}});
  const SpillJob write = job(SpillWay::kWrite, 1);
  ask(DeleteCommand{name(1), {}});
  EXPECT_TRUE(replies<Reserved>().empty()) << "the disk still reads the range";
  answer(write);
  EXPECT_EQ(replies<Reserved>().size(), 1U);
  EXPECT_EQ(engine_.stats().spill_bytes, 0U);
}

TEST_F(Spilling, LosesWhatItCanNotReadBackAndSaysWhy) {
  fill();
  ask(DeleteCommand{name(2), {}});
  ask(GetCommand{name(1), true});
  SpillJob read;
  for (const SpillJob& each : deeds<SpillJob>()) {
    if (each.way == SpillWay::kRead) read = each;
  }
  ASSERT_EQ(read.object, name(1));
  answer(read, "reading from /disk: Input/output error (errno 5)");
  engine_.handle_timeout(now_ + kLostGrace * 2);
  const auto errors = replies<Error>();
  ASSERT_EQ(errors.size(), 1U);
  EXPECT_EQ(errors[0].code, Code::kObjectLost);
  EXPECT_NE(errors[0].text.find("it was here, but: reading from /disk"), std::string::npos);
}

// An owner of a reduce folds a source from the file when no other node has it.
class FoldingFromTheFile : public Spilling {
 protected:
  SpillJob begin() {
    fill(128_KiB);
    ask(DeleteCommand{name(2), {}});
    ask(DeleteCommand{name(3), {}});
    deeds<SpillJob>();
    ask(ReduceCommand{name(9), ReduceOp::kSum, 1, 1});
    ask(ReduceSourceCommand{name(9), ReduceSource{0, name(1), {}}});
    return job(SpillWay::kRead, 1);
  }
  // Returns the sources that the reduce's client hears are lost.
  std::vector<std::uint32_t> lost_sources() {
    engine_.handle_timeout(now_ + kLostGrace * 2);
    const auto failures = replies<ReduceFailed>();
    EXPECT_EQ(failures.size(), 1U);
    return failures.empty() ? std::vector<std::uint32_t>{} : failures[0].lost;
  }
};

TEST_F(FoldingFromTheFile, IsToldWhatCanNotBeReadBack) {
  answer(begin(), "reading from /disk: Input/output error (errno 5)");
  EXPECT_EQ(lost_sources(), std::vector<std::uint32_t>{0});
}

TEST_F(FoldingFromTheFile, IsToldWhatIsDeletedMeanwhile) {
  const SpillJob read = begin();
  ask(DeleteCommand{name(1), {}});
  answer(read);
  EXPECT_EQ(lost_sources(), std::vector<std::uint32_t>{0});
}

}  // namespace
}  // namespace hoplite

// SPDX-License-Identifier: Apache-2.0
// The checker of version channels sees each wrong answer, and takes right ones.
#include "sim/check/channel_checker.h"

#include <gtest/gtest.h>

#include <deque>
#include <string>

namespace hoplite::sim {
namespace {

constexpr std::size_t kMembers = 3;

class ChannelCheckerTest : public testing::Test {
 protected:
  static Version version(std::uint32_t counter, std::uint64_t n, const std::string& payload = "v") {
    return {{{Epoch{1}, counter}, n}, false, payload};
  }
  Request& ask(Verb verb) {
    Request& request = requests_.emplace_back();
    request.verb = verb;
    request.id = RequestId{requests_.size()};
    request.asked = now_ = now_ + 1_ms;
    return request;
  }
  std::string answer(Request& request) {
    request.answered = now_ = now_ + 1_ms;
    return checker_.check_answer(request).value_or("");
  }
  std::string publish(const Version& version) {
    Request& request = ask(Verb::kPublish);
    request.version = version;
    checker_.note_request(request, kMembers);
    return answer(request);
  }
  std::string take(std::uint32_t counter, std::uint32_t behind = 1) {
    Request& request = ask(Verb::kTakeTerm);
    checker_.note_request(request, kMembers);
    request.taken.term = {Epoch{1}, counter};
    request.taken.before = {Epoch{1}, counter - behind};
    return answer(request);
  }
  std::string watch(const Version& seen, const VersionNumber& newer_than = {}, bool waits = true) {
    Request& request = ask(Verb::kWatch);
    request.newer_than = newer_than;
    request.waits = waits;
    checker_.note_request(request, kMembers);
    request.version = seen;
    return answer(request);
  }

  ChannelChecker checker_;
  std::deque<Request> requests_;
  Instant now_{};
};

TEST_F(ChannelCheckerTest, SeesATermBeforeThatIsAnotherOne) {
  EXPECT_EQ(take(1), "");
  EXPECT_EQ(take(2), "");
  EXPECT_EQ(take(4, 3), "the term before it is another one");
}

TEST_F(ChannelCheckerTest, TakesWhatIsRight) {
  EXPECT_EQ(take(1), "");
  EXPECT_EQ(publish(version(1, 1)), "");
  EXPECT_EQ(publish(version(1, 1)), "") << "the same version again";
  EXPECT_EQ(watch(version(1, 1)), "");
  EXPECT_EQ(publish(version(1, 4)), "");
  EXPECT_EQ(watch(version(1, 4), version(1, 1).number), "");
  EXPECT_EQ(watch({}, version(1, 4).number, false), "");
  EXPECT_EQ(take(2), "");
  EXPECT_EQ(publish(version(2, 1)), "");
  EXPECT_EQ(checker_.published_count(), 4U);
}

TEST_F(ChannelCheckerTest, SeesAVersionThatGoesBackOrHasOtherContents) {
  publish(version(1, 2));
  EXPECT_NE(watch(version(1, 2), version(1, 2).number), "");
  EXPECT_NE(watch(version(1, 2, "other")), "");
  EXPECT_NE(watch(version(1, 3)), "") << "nobody has published it";
  EXPECT_NE(watch({}), "") << "it waits for one";
}

TEST_F(ChannelCheckerTest, SeesAVersionThatIsMissed) {
  publish(version(1, 1));
  publish(version(1, 2));
  EXPECT_NE(watch(version(1, 1), {}, false), "");
  EXPECT_NE(watch({}, version(1, 1).number, false), "");
  EXPECT_TRUE(checker_.has_newer({}, version(1, 1).number));
  EXPECT_FALSE(checker_.has_newer({}, version(1, 2).number));
}

TEST_F(ChannelCheckerTest, SeesAnOlderPublisherThatGoesOn) {
  EXPECT_EQ(take(1), "");
  EXPECT_EQ(take(2), "");
  EXPECT_NE(take(2), "") << "given twice";
  EXPECT_NE(take(1), "") << "given twice, and older";
  EXPECT_NE(publish(version(1, 9)), "") << "after a newer term was taken";
  EXPECT_EQ(publish(version(2, 1)), "");
  EXPECT_NE(publish(version(1, 10)), "") << "after a version of the newer term";
}

TEST_F(ChannelCheckerTest, PromisesNothingAfterAMajorityHasDied) {
  publish(version(1, 2));
  checker_.note_death();
  EXPECT_NE(watch({}, {}, false), "");
  checker_.note_death();
  EXPECT_EQ(watch({}, {}, false), "");
  EXPECT_FALSE(checker_.has_newer({}, {}));
}

}  // namespace
}  // namespace hoplite::sim

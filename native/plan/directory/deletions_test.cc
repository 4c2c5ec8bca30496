// SPDX-License-Identifier: Apache-2.0
// Lies and floods that a directory shard's deletions must outlive; what honest members do is in
// directory_test.cc.
#include "plan/directory/deletions.h"

#include <gtest/gtest.h>

#include <vector>

namespace hoplite {
namespace {

constexpr NodeId kA{2}, kB{3};
constexpr Instant kStart{1'000'000};

ObjectId object(std::uint8_t number) {
  ObjectId id{};
  id.bytes[0] = number;
  return id;
}

std::vector<ObjectId> answered(Deletions& deletions, NodeId to) {
  std::vector<ObjectId> objects;
  while (const auto parcel = deletions.poll_parcel()) {
    const auto* deleted = std::get_if<Deleted>(&parcel->body);
    if (deleted != nullptr && parcel->to == to) objects.push_back(deleted->object);
  }
  return objects;
}

TEST(Deletions, EndsTheOldestWhereAMemberAsksForMoreThanItMay) {
  EngineConfig config;
  config.deletes_max = 4;
  Deletions deletions(config);
  for (std::uint8_t number = 0; number < 5; ++number) {
    deletions.begin(kA, {object(number), Incarnation{1}}, Incarnation{1}, true, {{kB, false}},
                    kStart);
    deletions.check_invariants();
  }
  EXPECT_EQ(deletions.under_way_count(), 4U);
  EXPECT_EQ(answered(deletions, kA), std::vector<ObjectId>{object(0)});
  EXPECT_TRUE(deletions.contains(object(0))) << "what comes late is refused all the same";
}

TEST(Deletions, AwaitsAMemberAnewThatClaimsWhatWasDeletedBefore) {
  Deletions deletions(EngineConfig{});
  deletions.begin(kA, {object(1), Incarnation{1}}, Incarnation{1}, true, {}, kStart);
  EXPECT_EQ(answered(deletions, kA), std::vector<ObjectId>{object(1)});
  Claim late;
  late.object = object(1);
  late.incarnation = Incarnation{1};
  late.stripes.resize(1);
  EXPECT_FALSE(deletions.admit(kB, late, false, kStart));
  EXPECT_EQ(deletions.under_way_count(), 1U);
  late.incarnation = Incarnation{2};
  EXPECT_TRUE(deletions.admit(kB, late, false, kStart)) << "a later attempt";
  EXPECT_EQ(deletions.under_way_count(), 0U) << "so the older bytes are gone";
  deletions.check_invariants();
}

TEST(Deletions, KeepsTwoRequestsOfANodeHoweverManyItMakes) {
  Deletions deletions(EngineConfig{});
  for (std::uint32_t attempt = 0; attempt < 100; ++attempt) {
    deletions.begin(kA, {object(1), Incarnation{attempt}}, Incarnation{attempt}, true,
                    {{kB, false}}, kStart);
  }
  EXPECT_TRUE(answered(deletions, kA).empty());
  Claim nothing;
  nothing.object = object(1);
  EXPECT_FALSE(deletions.admit(kB, nothing, false, kStart));
  EXPECT_EQ(answered(deletions, kA).size(), 2U) << "of the newest attempt, and of all there are";
}

}  // namespace
}  // namespace hoplite

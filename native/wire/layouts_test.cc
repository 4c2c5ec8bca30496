// SPDX-License-Identifier: Apache-2.0
#include "wire/layouts.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "base/prng.h"
#include "wire/frame.h"

namespace hoplite::wire {
namespace {

Message claim_with(const std::string& layout) {
  Claim claim;
  claim.meta = {8, 8, {{DType::kFloat32, 8}}, layout};
  return {{}, {}, {}, claim};
}

// Returns the message as the reader decodes it, or nothing if it closes the connection.
std::optional<Message> through(const Message& message, Layouts& said, Layouts& heard,
                               std::size_t* bytes = nullptr) {
  std::vector<std::byte> frame;
  encode(message, 0, frame, &said);
  if (bytes != nullptr) *bytes = frame.size();
  const auto header = decode_header(frame);
  auto body = decode_body(*header, std::span(frame).subspan(kFrameHeaderBytes), &heard);
  if (!body) return std::nullopt;
  return std::get<Message>(std::move(*body));
}

TEST(Layouts, ALongOneTravelsOnce) {
  Layouts said;
  Layouts heard;
  const Message message = claim_with(std::string(50'000, 'x'));
  std::size_t first = 0;
  std::size_t second = 0;
  EXPECT_EQ(through(message, said, heard, &first), message);
  EXPECT_EQ(through(message, said, heard, &second), message);
  EXPECT_GT(first, 50'000U);
  EXPECT_LT(second, 200U);
}

// Some bytes of a frame would else be some hundred kilobytes of memory, for each of a turn's
// frames.
TEST(Layouts, MessagesThatNameOneByItsNumberShareIt) {
  Layouts said;
  Layouts heard;
  const Message message = claim_with(std::string(50'000, 'x'));
  std::set<const std::string*> texts;
  std::vector<Message> kept;
  for (int i = 0; i < 3; ++i) kept.push_back(*through(message, said, heard));
  for (const Message& each : kept) texts.insert(&std::get<Claim>(each.body).meta.layout.text());
  EXPECT_EQ(texts.size(), 1U);
}

TEST(Layouts, AShortOneAlwaysTravels) {
  Layouts said;
  const std::string layout(Layouts::kBytesMin - 1, 'x');
  said.add(layout);
  EXPECT_FALSE(said.number_of(layout));
}

TEST(Layouts, BothEndsForgetTheSameWhateverIsSaid) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Prng random(seed);
    Layouts said;
    Layouts heard;
    for (int i = 0; i < 200; ++i) {
      const auto size = 1 + random.below(i % 2 == 0 ? 200 : kLayoutBytesMax);
      const Message message =
          claim_with(std::string(size, static_cast<char>('a' + random.below(20))));
      ASSERT_EQ(through(message, said, heard), message);
    }
  }
}

TEST(Layouts, ANumberThatIsNotKnownEndsTheConnection) {
  Layouts said;
  Layouts never_heard;
  const Message message = claim_with(std::string(100, 'x'));
  Layouts heard;
  ASSERT_TRUE(through(message, said, heard));
  EXPECT_FALSE(through(message, said, never_heard));
  std::vector<std::byte> frame;
  encode(message, 0, frame, &said);
  EXPECT_FALSE(decode_body(*decode_header(frame), std::span(frame).subspan(kFrameHeaderBytes)))
      << "a client has no such numbers";
}

}  // namespace
}  // namespace hoplite::wire

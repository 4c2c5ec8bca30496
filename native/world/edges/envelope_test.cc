// SPDX-License-Identifier: Apache-2.0
#include "world/edges/envelope.h"

#include <gtest/gtest.h>

#include <functional>
#include <span>
#include <vector>

#include "wire/wire_doc_test.h"

namespace hoplite::worlds {
namespace {

using Data = std::vector<std::byte>;

Envelope example() {
  Envelope envelope{Verb::kMessage, 24, {}};
  envelope.content.key = MatchKey{9};
  envelope.content.operation = 4;
  envelope.content.size_bytes = 1024;
  envelope.content.dtype = "float32";
  envelope.content.shape = {16, 16};
  return envelope;
}

Data encode_to_data(const Envelope& envelope) {
  Data bytes;
  encode_envelope(envelope, bytes);
  return bytes;
}

TEST(Envelopes, TheExampleOfTheDocumentIsWhatTheCodeSpeaks) {
  EXPECT_EQ(encode_to_data(example()), hex_example(wire_doc(), "world"));
}

TEST(Envelopes, TheDocumentNamesEveryVerb) {
  const auto doc = wire_doc();
  const char* const names[] = {"Message", "Data", "Credit", "Goodbye", "Ending"};
  for (int verb = 1; verb <= 5; ++verb) EXPECT_TRUE(has_row(doc, verb, names[verb - 1])) << verb;
}

TEST(Envelopes, WhatIsEncodedIsDecoded) {
  const Data bytes = encode_to_data(example());
  const auto tail = tail_bytes(std::span(bytes).first(kEnvelopeBytes));
  ASSERT_TRUE(tail);
  ASSERT_EQ(*tail, bytes.size() - kEnvelopeBytes);
  const Envelope again = decode_envelope(bytes);
  EXPECT_EQ(again.verb, Verb::kMessage);
  EXPECT_EQ(again.payload_bytes, 24U);
  EXPECT_EQ(again.content.key, MatchKey{9});
  EXPECT_EQ(again.content.operation, 4);
  EXPECT_EQ(again.content.size_bytes, 1024U);
  EXPECT_EQ(again.content.dtype, "float32");
  EXPECT_EQ(again.content.shape, (std::vector<std::uint64_t>{16, 16}));
  EXPECT_FALSE(again.content.is_notice);
  Envelope notice = example();
  notice.content.is_notice = true;
  EXPECT_TRUE(decode_envelope(encode_to_data(notice)).content.is_notice);
}

// Each field that a stranger could lie with, one byte at a time.
TEST(Envelopes, WhatIsNoneIsRefusedBeforeAnythingIsAllocated) {
  const struct {
    const char* what;
    std::size_t at;
    std::byte value;
  } lies[] = {
      {"magic", 0, std::byte{0}},          {"no verb", 2, std::byte{0}},
      {"unknown verb", 2, std::byte{6}},   {"dtype of over 1,024 B", 5, std::byte{5}},
      {"65 dimensions", 6, std::byte{65}}, {"payload over 256 KiB", 10, std::byte{5}},
      {"unknown flag", 12, std::byte{2}},  {"message over 1 TiB", 31, std::byte{1}},
  };
  for (const auto& lie : lies) {
    Data bytes = encode_to_data(example());
    bytes[lie.at] = lie.value;
    EXPECT_FALSE(tail_bytes(std::span(bytes).first(kEnvelopeBytes))) << lie.what;
  }
  Data goodbye = encode_to_data({Verb::kGoodbye, 0, {}});
  EXPECT_TRUE(tail_bytes(std::span(goodbye).first(kEnvelopeBytes)));
  goodbye[12] = std::byte{1};
  EXPECT_FALSE(tail_bytes(std::span(goodbye).first(kEnvelopeBytes))) << "Goodbye with a flag";
  goodbye[12] = std::byte{0};
  goodbye[8] = std::byte{1};
  EXPECT_FALSE(tail_bytes(std::span(goodbye).first(kEnvelopeBytes))) << "Goodbye with a payload";
}

TEST(Envelopes, ContentIsNamedAsPeopleWrite) {
  EXPECT_EQ(content_text(example().content), "float32[16, 16] (1024 B)");
  EXPECT_EQ(content_text({}), "nothing[] (0 B)");
}

}  // namespace
}  // namespace hoplite::worlds

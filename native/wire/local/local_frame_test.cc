// SPDX-License-Identifier: Apache-2.0
#include "wire/local/local_frame.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/prng.h"
#include "wire/frame.h"

namespace hoplite {
namespace {

using ByteVector = std::vector<std::byte>;

ObjectId object(std::uint8_t first) {
  ObjectId id;
  id.bytes.fill(first);
  return id;
}
const ObjectMeta kMeta{70000, 8192, {{DType::kInt64, 70000}}, "layout"};

std::vector<ByteVector> all_encoded() {
  std::vector<ByteVector> all;
  const auto add = [&all](const auto&... values) { encode(values..., all.emplace_back()); };
  const auto add_command = [&](const CommandBody& body) {
    add(Command{ClientId{}, RequestId{77}, body});
  };
  const auto add_reply = [&](const Reply& reply) {
    add(LocalReply{RequestId{78}, reply}, std::uint64_t{0});
  };
  add(Attach{kWireVersion, 4242});
  add(Attached{ClientId{1}, NodeId{2}, Incarnation{3}, 64_MiB});
  add_command(PutCommand{object(1), Incarnation{2}, kMeta, {}});
  add_command(WroteCommand{object(1), Incarnation{2}, 12345, true, BlockIndex{7}, {1, 0, 3}});
  add_command(GetCommand{object(1), true, 123'456});
  add_command(ReleaseCommand{object(1), Incarnation{3}});
  add_command(DeleteCommand{object(1), Incarnation{3}});
  add_command(OrphanCommand{object(1), Incarnation{3}});
  add_command(KeepCommand{object(1), Incarnation{3}, 2});
  add_command(ReduceCommand{object(1), ReduceOp::kMean, 8, 4, true, true, Share{64, 8, 3}, kMeta});
  add_command(ReduceSourceCommand{object(1), {3, object(2), Incarnation{4}, true}});
  add_command(CancelCommand{object(1)});
  add_command(EchoCommand{});
  const Term term{Epoch{3}, 2};
  const Version version{{term, 5}, true, "which object"};
  add_command(TakeTermCommand{object(1)});
  add_command(PublishCommand{object(1), version});
  add_command(WatchCommand{object(1), {term, 4}, true});
  add_command(ListChannelsCommand{object(1)});
  const ChannelReader reader{4242, {term, 4}, 70, 7, 1'700'000'000'000'000};
  add_command(ReadCommand{object(1), reader});
  add_command(RebuildCommand{object(1),
                             Incarnation{2},
                             kMeta,
                             77,
                             {object(2), Incarnation{1}},
                             {{object(3), Incarnation{1}}, {object(4), Incarnation{2}}}});
  add_command(ExcerptCommand{
      {object(1), kMeta, {object(2), Incarnation{1}}, {{0, 64, 8, 32, 4}, {64, 0, 64, 0, 1}}},
      true});
  add_reply(Reserved{{4096, 70000}, 8192});
  add_reply(Fetched{Incarnation{2}, kMeta, {4096, 70000}, true, 65536});
  add_reply(Reduced{{1, 2, 5}});
  add_reply(Done{});
  add_reply(Error{Code::kObjectLost, "gone"});
  add_reply(ReduceFailed{{1, 5}, "needs 3 of 4 sources"});
  add_reply(TermTaken{term, {term, 4}, {Epoch{1}, 3}});
  add_reply(VersionSeen{version});
  add_reply(VersionRefused{{term, 4}, true, "taken"});
  add_reply(ChannelsListed{{{object(1), version, true, {reader, reader}}, {}}});
  return all;
}

Result<LocalFrame> decode(std::span<const std::byte> bytes) {
  auto header = decode_local_header(bytes);
  if (!header) return header.error();
  const auto rest = bytes.subspan(kLocalHeaderBytes);
  if (rest.size() < header->body_bytes) return Error{Code::kBadFrame, "short"};
  return decode_local_body(*header, rest.first(header->body_bytes));
}

ByteVector encode_again(const LocalFrame& frame, std::uint32_t payload_bytes) {
  ByteVector out;
  if (const auto* reply = std::get_if<LocalReply>(&frame)) {
    encode(*reply, payload_bytes, out);
  } else if (const auto* command = std::get_if<Command>(&frame)) {
    Command filled = *command;
    if (auto* put = std::get_if<PutCommand>(&filled.body)) put->payload.resize(payload_bytes);
    encode(filled, out);
  } else if (const auto* attach = std::get_if<Attach>(&frame)) {
    encode(*attach, out);
  } else {
    encode(std::get<Attached>(frame), out);
  }
  return out;
}

// A frame that decodes must encode to the same bytes.
void expect_canonical(const ByteVector& bytes) {
  auto frame = decode(bytes);
  if (!frame) return;
  auto header = decode_local_header(bytes);
  ByteVector again = encode_again(*frame, header->payload_bytes);
  ASSERT_LE(again.size(), bytes.size());
  ASSERT_EQ(again,
            ByteVector(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(again.size())));
}

TEST(LocalFrame, EveryFrameComesBackAsItWas) {
  const auto all = all_encoded();
  EXPECT_EQ(all.size(), std::variant_size_v<CommandBody> - 4 + std::variant_size_v<Reply> + 2);
  for (const ByteVector& bytes : all) {
    ASSERT_TRUE(decode(bytes));
    expect_canonical(bytes);
  }
}

TEST(LocalFrame, FieldsLandWhereTheyBelong) {
  ByteVector bytes;
  const ReduceSourceCommand said{object(1), {3, object(2), Incarnation{4}, true}};
  encode(Command{ClientId{9}, RequestId{5}, said}, bytes);
  auto frame = decode(bytes);
  ASSERT_TRUE(frame);
  const auto& command = std::get<Command>(*frame);
  EXPECT_EQ(command.client, ClientId{});  // the connection is the client
  EXPECT_EQ(command.request, RequestId{5});
  const auto& heard = std::get<ReduceSourceCommand>(command.body);
  EXPECT_EQ(heard.target, said.target);
  EXPECT_EQ(heard.source, said.source);
}

TEST(LocalFrame, AFailedReduceNamesItsLostSourcesBeyondTheEndOfItsText) {
  ReduceFailed said{{}, std::string(kErrorTextBytesMax + 1, 'x')};
  for (std::uint32_t index = 0; index < kReduceSourcesMax; ++index) said.lost.push_back(index);
  ByteVector bytes;
  encode(LocalReply{RequestId{5}, said}, 0, bytes);
  auto frame = decode(bytes);
  ASSERT_TRUE(frame);
  const auto& heard = std::get<ReduceFailed>(std::get<LocalReply>(*frame).reply);
  EXPECT_EQ(heard.lost, said.lost);
  EXPECT_EQ(heard.text.size(), kErrorTextBytesMax);
}

TEST(LocalFrame, AnInlinePutNamesItsPayload) {
  ByteVector bytes;
  encode(Command{{}, RequestId{1}, PutCommand{object(1), {}, kMeta, Bytes(1000)}}, bytes);
  auto header = decode_local_header(bytes);
  ASSERT_TRUE(header);
  EXPECT_EQ(header->payload_bytes, 1000U);
  EXPECT_EQ(bytes.size(), kLocalHeaderBytes + header->body_bytes);
}

TEST(LocalFrame, EveryOtherLengthIsRefused) {
  for (const ByteVector& whole : all_encoded()) {
    auto header = decode_local_header(whole);
    ASSERT_TRUE(header);
    const std::uint32_t right = header->body_bytes;
    ByteVector longer = whole;
    longer.push_back(std::byte{0});
    for (std::uint32_t size = 0; size <= right + 1; ++size) {
      header->body_bytes = size;
      const auto body = std::span<const std::byte>(longer).subspan(kLocalHeaderBytes, size);
      EXPECT_EQ(decode_local_body(*header, body).has_value(), size == right);
    }
  }
}

TEST(LocalFrame, FlippedAndRandomBytesNeverDecodeToWhatTheyDoNotSay) {
  Prng prng(11);
  const auto all = all_encoded();
  for (const ByteVector& whole : all) {
    for (std::size_t bit = 0; bit < whole.size() * 8; ++bit) {
      ByteVector flipped = whole;
      flipped[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
      expect_canonical(flipped);
    }
  }
  for (int round = 0; round < 20'000; ++round) {
    ByteVector bytes = all[prng.below(all.size())];
    for (std::uint64_t n = 1 + prng.below(6); n > 0; --n) {
      bytes[prng.below(bytes.size())] =
          static_cast<std::byte>(prng.chance(30) ? 0xff : prng.next());
    }
    expect_canonical(bytes);
  }
}

TEST(LocalFrame, HeadersThatLieAreRefused) {
  ByteVector good;
  encode(Command{{}, RequestId{1}, GetCommand{object(1), true}}, good);
  const auto code_with = [&good](std::size_t at, std::uint8_t value) {
    ByteVector bytes = good;
    bytes[at] = static_cast<std::byte>(value);
    auto header = decode_local_header(bytes);
    return header ? Code::kOk : header.error().code;
  };
  EXPECT_EQ(code_with(3, 'F'), Code::kBadFrame);    // the magic of the other kind of socket
  EXPECT_EQ(code_with(4, 1), Code::kWrongVersion);  // version
  EXPECT_EQ(code_with(6, 3), Code::kBadFrame);      // type
  EXPECT_EQ(code_with(6, 15), Code::kBadFrame);     // type
  EXPECT_EQ(code_with(7, 1), Code::kBadFrame);      // flags
  EXPECT_EQ(code_with(19, 1), Code::kBadFrame);     // 16 MiB of body
  EXPECT_EQ(code_with(20, 1), Code::kBadFrame);     // a get has no payload
}

}  // namespace
}  // namespace hoplite

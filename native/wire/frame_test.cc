// SPDX-License-Identifier: Apache-2.0
#include "wire/frame.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "base/prng.h"

namespace hoplite {
namespace {

using ByteVector = std::vector<std::byte>;

ObjectId object(std::uint8_t first) {
  ObjectId id;
  for (std::size_t i = 0; i < kObjectIdBytes; ++i)
    id.bytes[i] = static_cast<std::uint8_t>(first + i);
  return id;
}
const ObjectMeta kMeta{
    100001, 8192, {{DType::kFloat64, 64000}, {DType::kBool, 36001}}, "layout of two leaves"};
const ReduceSource kSource{3, object(9), Incarnation{2}, true, NodeId{4}, true};
const ReduceWant kWant{object(1),          ReduceOp::kMax, 8,    4,    1,
                       {kSource, kSource}, TargetEpoch{6}, true, true, true,
                       Share{900, 300, 2}, kMeta};

const PullStart kPullStart{object(1),
                           Incarnation{4},
                           TargetEpoch{6},
                           3,
                           StripeIndex{1},
                           17,
                           2,
                           true,
                           Extent{64, 4096},
                           512,
                           {{object(3), Incarnation{4}}},
                           ReduceOp::kMin,
                           true};

const Term kTerm{Epoch{3}, 2};
const Version kVersion{{kTerm, 5}, true, "which object"};

Claim one_claim(const ObjectId& id) {
  return Claim{id,
               Incarnation{4},
               TargetEpoch{6},
               kMeta,
               true,
               true,
               true,
               true,
               true,
               false,
               true,
               NodeId{7},
               3,
               true,
               {{StripeIndex{0}, StripeState::kReceiving, LeaseId{8}, NodeId{2}, 5},
                {StripeIndex{2}, StripeState::kComplete, LeaseId{9}, kNoNode, 4}}};
}

// One of every message, every field different from its default.
std::vector<PeerMessage> one_of_each_about_objects(const ObjectId& id) {
  const Incarnation life{4};
  const TargetEpoch target_epoch{6};
  const std::vector<StripeLease> leases = {{StripeIndex{2}, NodeId{5}, LeaseId{11}},
                                           {StripeIndex{0}, NodeId{6}, LeaseId{12}}};
  const ReduceState reduce_state{id,     target_epoch, ReducePhase::kFailed, {1},
                                 {2, 3}, NodeId{6},    Code::kReduceFailed,  "few"};
  return {
      one_claim(id),
      Delete{id, life},
      Locate{id, life, NodeId{3}, false, 700},
      kWant,
      ReduceReport{id,
                   target_epoch,
                   kMeta,
                   {StripeIndex{1}},
                   {7, 9},
                   {1, 4},
                   NodeId{6},
                   Code::kStoreFull,
                   "full"},
      ResyncDone{true, true},
      Grant{id, life, target_epoch, kMeta, 3, leases},
      Located{id, life, kMeta, NodeId{6}},
      Push{id, life, target_epoch, kMeta, {NodeId{1}, NodeId{2}}},
      PushTo{id, life, {NodeId{4}}},
      Lost{id, Code::kObjectLost, "no holders left"},
      Drop{id, life, false},
      ReduceOwn{id,
                target_epoch,
                ReduceOp::kMax,
                kMeta,
                Share{900, 300, 2},
                5,
                {StripeIndex{4}},
                8,
                4,
                true,
                true,
                {kSource},
                true,
                true,
                true},
      reduce_state,
      kPullStart,
      Credit{3},
      PullStop{},
      PullRefused{Code::kStoreFull},
      Orphan{id, life},
      Adopt{id, life, target_epoch, kMeta, NodeId{6}, 2},
      Standing{id, life, true, true, true},
      Progress{id, life, target_epoch, {{StripeIndex{1}, LeaseId{7}, 5}, {StripeIndex{3}, {}, 2}}},
      ResyncWanted{},
      Deleted{id, life},
  };
}

std::vector<PeerMessage> one_of_each(const ObjectId& id = object(1)) {
  std::vector<PeerMessage> all = one_of_each_about_objects(id);
  const std::vector<PeerMessage> of_channels = {
      ChannelClaim{id, kTerm, kVersion, true, {kTerm, 3}},
      ChannelQuestion{id, 7, ChannelAsk::kPublish, kVersion},
      VersionAck{id, 8},
      VersionOffer{id, 9, kTerm, kVersion, true},
      VersionNews{id, kVersion},
      ChannelAnswer{id, 10, ChannelOutcome::kTaken, kTerm, kVersion, {Epoch{2}, 4}},
      MakeExcerpt{{id, kMeta, {id, Incarnation{2}}, {{0, 64, 8, 32, 4}, {64, 0, 64, 0, 1}}}},
  };
  all.insert(all.end(), of_channels.begin(), of_channels.end());
  return all;
}

std::vector<LinkFrame> one_of_each_link_frame() {
  Nonce nonce{};
  nonce.fill(0xab);
  Mac mac{};
  mac.fill(0xcd);
  return {Hello{1, 2, NodeId{3}, Incarnation{4}, NodeId{5}, Incarnation{6}, ConnectionKind::kBulk,
                RailId{1}, 7, nonce},
          Welcome{1, 2, Incarnation{6}, nonce, mac},
          Proof{mac},
          CloseRail{RailId{2}},
          Goodbye{},
          Pulse{}};
}

Message message_of(const PeerMessage& body) {
  return {Epoch{0x1122334455667788}, TransferId{0x99}, TraceId{0xaabb}, body};
}

Result<Frame> decode(std::span<const std::byte> bytes) {
  if (bytes.size() < kFrameHeaderBytes) return Error{Code::kBadFrame, "short"};
  auto header = decode_header(bytes);
  if (!header) return header.error();
  const auto rest = bytes.subspan(kFrameHeaderBytes);
  if (rest.size() < header->body_bytes) return Error{Code::kBadFrame, "short"};
  return decode_body(*header, rest.first(header->body_bytes));
}

ByteVector encode_frame(const Frame& frame, std::uint64_t payload_bytes) {
  ByteVector out;
  if (const auto* message = std::get_if<Message>(&frame)) {
    encode(*message, payload_bytes, out);
  } else if (const auto* link_frame = std::get_if<LinkFrame>(&frame)) {
    encode(*link_frame, out);
  } else {
    const auto block = encode(std::get<BlockHeader>(frame));
    out.assign(block.begin(), block.end());
  }
  return out;
}

std::vector<ByteVector> all_encoded() {
  std::vector<ByteVector> all;
  for (const auto& body : one_of_each()) all.push_back(encode_frame(message_of(body), 0));
  for (const auto& frame : one_of_each_link_frame()) all.push_back(encode_frame(frame, 0));
  all.push_back(encode_frame(BlockHeader{Epoch{1}, TransferId{2}, TraceId{3}, object(4),
                                         Incarnation{5}, TargetEpoch{6}, 7, 8, 9},
                             0));
  return all;
}

// A frame that decodes must encode to the same bytes: the decoder invents no field.
void expect_canonical(const ByteVector& bytes) {
  auto frame = decode(bytes);
  if (!frame) return;
  auto header = decode_header(bytes);
  ByteVector again = encode_frame(*frame, header->payload_bytes);
  ASSERT_EQ(again,
            ByteVector(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(again.size())));
}

TEST(Frame, EveryMessageComesBackAsItWas) {
  const auto bodies = one_of_each();
  ASSERT_EQ(bodies.size(), std::variant_size_v<PeerMessage>);
  for (std::size_t i = 0; i < bodies.size(); ++i) {
    ASSERT_EQ(bodies[i].index(), i);
    const Message message = message_of(bodies[i]);
    auto frame = decode(encode_frame(message, 0));
    ASSERT_TRUE(frame) << i;
    EXPECT_EQ(std::get<Message>(*frame), message) << i;
  }
}

TEST(Frame, EveryLinkFrameComesBackAsItWas) {
  const auto frames = one_of_each_link_frame();
  ASSERT_EQ(frames.size(), std::variant_size_v<LinkFrame>);
  for (const auto& link_frame : frames) {
    auto frame = decode(encode_frame(link_frame, 0));
    ASSERT_TRUE(frame);
    EXPECT_EQ(std::get<LinkFrame>(*frame), link_frame);
  }
}

TEST(Frame, EmptyMessagesComeBackAsTheyWere) {
  for (const PeerMessage& body : {PeerMessage{Claim{}}, PeerMessage{ReduceWant{}},
                                  PeerMessage{ReduceState{}}, PeerMessage{Push{}}}) {
    const Message message{{}, {}, {}, body};
    auto frame = decode(encode_frame(message, 0));
    ASSERT_TRUE(frame);
    EXPECT_EQ(std::get<Message>(*frame), message);
  }
}

TEST(Frame, AGrantWithoutALeaseIsRefused) {
  Grant grant{object(1), Incarnation{1}, {}, kMeta, 3, {{StripeIndex{2}, NodeId{4}, LeaseId{5}}}};
  EXPECT_TRUE(decode(encode_frame(message_of(grant), 0)));
  grant.leases.clear();
  EXPECT_FALSE(decode(encode_frame(message_of(grant), 0)));
}

TEST(Frame, EveryShorterBodyIsRefused) {
  for (const ByteVector& whole : all_encoded()) {
    auto header = decode_header(whole);
    ASSERT_TRUE(header);
    for (std::uint32_t size = 0; size < header->body_bytes; ++size) {
      FrameHeader shorter = *header;
      shorter.body_bytes = size;
      if (header->type == FrameType::kBlock) continue;  // decode_header knows its only length
      EXPECT_FALSE(decode_body(shorter, std::span(whole).subspan(kFrameHeaderBytes, size)))
          << static_cast<int>(header->type) << " cut to " << size;
    }
  }
}

TEST(Frame, EveryLongerBodyIsRefused) {
  for (ByteVector whole : all_encoded()) {
    auto header = decode_header(whole);
    ASSERT_TRUE(header);
    if (header->type == FrameType::kBlock) continue;
    whole.push_back(std::byte{0});
    ++header->body_bytes;
    EXPECT_FALSE(decode_body(*header, std::span(whole).subspan(kFrameHeaderBytes)))
        << static_cast<int>(header->type);
  }
}

TEST(Frame, EveryFlippedBitIsRefusedOrMeansSomethingElse) {
  for (const ByteVector& whole : all_encoded()) {
    for (std::size_t bit = 0; bit < whole.size() * 8; ++bit) {
      ByteVector flipped = whole;
      flipped[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
      expect_canonical(flipped);
    }
  }
}

TEST(Frame, RandomBodiesNeverDecodeToWhatTheyDoNotSay) {
  Prng prng(7);
  const auto seeds = all_encoded();
  for (int round = 0; round < 20'000; ++round) {
    ByteVector bytes = seeds[prng.below(seeds.size())];
    for (std::uint64_t n = 1 + prng.below(6); n > 0; --n) {
      bytes[prng.below(bytes.size())] =
          static_cast<std::byte>(prng.chance(30) ? 0xff : prng.next());
    }
    expect_canonical(bytes);
  }
}

TEST(Frame, HeadersThatLieAreRefused) {
  ByteVector good;
  encode(message_of(Credit{1}), 0, good);
  const auto code_with = [&good](std::size_t at, std::uint8_t value) {
    ByteVector bytes = good;
    bytes[at] = static_cast<std::byte>(value);
    auto header = decode_header(bytes);
    return header ? Code::kOk : header.error().code;
  };
  EXPECT_EQ(code_with(0, 0x48), Code::kOk);
  EXPECT_EQ(code_with(0, 0x49), Code::kBadFrame);   // magic
  EXPECT_EQ(code_with(4, 1), Code::kWrongVersion);  // version
  EXPECT_EQ(code_with(6, 0), Code::kBadFrame);      // type
  EXPECT_EQ(code_with(6, 31), Code::kBadFrame);     // type
  EXPECT_EQ(code_with(6, 63), Code::kBadFrame);     // type
  EXPECT_EQ(code_with(7, 1), Code::kBadFrame);      // flags
  EXPECT_EQ(code_with(11, 1), Code::kBadFrame);     // 16 MiB of body
  EXPECT_EQ(code_with(12, 1), Code::kBadFrame);     // a payload where none may be
  EXPECT_EQ(code_with(6, 16), Code::kBadFrame);     // a block with a body of 4 bytes
}

TEST(Frame, AnEarlierVersionIsRefusedAndBothAreNamed) {
  ByteVector bytes;
  encode(message_of(Credit{1}), 0, bytes);
  bytes[4] = std::byte{1};
  auto header = decode_header(bytes);
  ASSERT_FALSE(header);
  EXPECT_EQ(header.error().code, Code::kWrongVersion);
  EXPECT_EQ(header.error().text,
            "the peer speaks wire version 1, this node 5; start both from the same release");
}

TEST(Frame, LengthsAreBoundedByType) {
  const auto is_possible = [](FrameType type, std::uint32_t body, std::uint32_t payload) {
    ByteVector bytes;
    encode(message_of(Credit{1}), 0, bytes);
    bytes[6] = static_cast<std::byte>(type);
    std::memcpy(bytes.data() + 8, &body, sizeof body);
    std::memcpy(bytes.data() + 12, &payload, sizeof payload);
    return decode_header(bytes).has_value();
  };
  EXPECT_TRUE(is_possible(FrameType::kBlock, kBlockBodyBytes, 1));
  EXPECT_TRUE(is_possible(FrameType::kBlock, kBlockBodyBytes, kBlockBytesMax));
  EXPECT_FALSE(is_possible(FrameType::kBlock, kBlockBodyBytes, 0));
  EXPECT_FALSE(is_possible(FrameType::kBlock, kBlockBodyBytes, kBlockBytesMax + 1));
  EXPECT_FALSE(is_possible(FrameType::kBlock, kBlockBodyBytes + 1, 1));
  EXPECT_TRUE(is_possible(FrameType::kPush, 100, kInlineBytesMax));
  EXPECT_FALSE(is_possible(FrameType::kPush, 100, kInlineBytesMax + 1));
  EXPECT_TRUE(is_possible(FrameType::kReduceOwn, kControlFrameBytesMax - kFrameHeaderBytes, 0));
  EXPECT_FALSE(
      is_possible(FrameType::kReduceOwn, kControlFrameBytesMax - kFrameHeaderBytes + 1, 0));
  EXPECT_FALSE(is_possible(FrameType::kReduceOwn, 0xffffffff, 0));
}

TEST(Frame, CountsThatCannotBeTrueAllocateNothing) {
  // A ReduceState without members; its first count follows object, epoch and phase.
  ByteVector bytes = encode_frame(message_of(ReduceState{}), 0);
  const std::size_t at = kFrameHeaderBytes + kObjectIdBytes + 4 + 1;
  for (const std::uint32_t count : {1U, 4096U, 4097U, 0x40000000U, 0xffffffffU}) {
    std::memcpy(bytes.data() + at, &count, sizeof count);
    EXPECT_FALSE(decode(bytes)) << count;
  }
}

TEST(Frame, TheLargestLegalMessagesFit) {
  ReduceOwn own;
  own.source_count = kReduceSourcesMax;
  own.members.assign(kReduceSourcesMax, kSource);
  own.owned.assign(kStripesMax, StripeIndex{0});
  Push push;
  push.meta.layout = std::string(kLayoutBytesMax, 'x');
  push.forward.assign(kViewMembersMax, NodeId{1});
  EXPECT_TRUE(decode(encode_frame(message_of(own), 0)));
  EXPECT_TRUE(decode(encode_frame(message_of(push), kInlineBytesMax)));
}

TEST(Frame, LongErrorTextsAreCutShort) {
  auto frame = decode(
      encode_frame(message_of(Lost{object(1), Code::kObjectLost, std::string(9999, 'x')}), 0));
  ASSERT_TRUE(frame);
  EXPECT_EQ(std::get<Lost>(std::get<Message>(*frame).body).text.size(), kErrorTextBytesMax);
}

TEST(Frame, BlocksOutsideOfAnyObjectAreRefused) {
  BlockHeader block;
  block.size_bytes = 8;
  block.offset = kObjectBytesMax - 8;
  EXPECT_TRUE(decode(encode_frame(block, 0)));
  ++block.offset;
  EXPECT_FALSE(decode(encode_frame(block, 0)));
  block.offset = ~std::uint64_t{0};
  EXPECT_FALSE(decode(encode_frame(block, 0)));
}

}  // namespace
}  // namespace hoplite

// SPDX-License-Identifier: Apache-2.0
#include "world/edges/envelope.h"

#include <bit>
#include <cstring>

#include "base/check.h"

namespace hoplite::worlds {
namespace {

constexpr std::uint16_t kMagic = 0x5748;  // "HW"
constexpr std::uint32_t kNotice = 1;      // a flag

struct Head {
  std::uint16_t magic = kMagic;
  std::uint8_t verb = 0;
  std::uint8_t operation = 0;
  std::uint16_t dtype_bytes = 0;
  std::uint16_t dimensions = 0;
  std::uint32_t payload_bytes = 0;
  std::uint32_t flags = 0;
  std::uint64_t key = 0;
  std::uint64_t size_bytes = 0;
};
static_assert(sizeof(Head) == kEnvelopeBytes && std::endian::native == std::endian::little,
              "the struct is the wire format");

Head read_head(std::span<const std::byte> bytes) {
  Head head;
  std::memcpy(&head, bytes.data(), sizeof head);
  return head;
}

bool has_payload(std::uint8_t verb) {
  return verb == static_cast<std::uint8_t>(Verb::kMessage) ||
         verb == static_cast<std::uint8_t>(Verb::kData);
}

}  // namespace

Result<std::size_t> tail_bytes(std::span<const std::byte> bytes) {
  HOPLITE_CHECK(bytes.size() == kEnvelopeBytes);
  const Head head = read_head(bytes);
  const bool is_known = head.verb >= static_cast<std::uint8_t>(Verb::kMessage) &&
                        head.verb <= static_cast<std::uint8_t>(Verb::kEnding);
  const std::uint32_t payload_max = has_payload(head.verb) ? kPayloadBytesMax : 0;
  const std::uint32_t flags_max =
      head.verb == static_cast<std::uint8_t>(Verb::kMessage) ? kNotice : 0;
  if (head.magic != kMagic || !is_known || head.flags > flags_max ||
      head.payload_bytes > payload_max || head.dtype_bytes > kDTypeBytesMax ||
      head.dimensions > kDimensionsMax || head.size_bytes > kMessageBytesMax) {
    return Error{Code::kBadFrame, "what came is no envelope of a world"};
  }
  return head.dtype_bytes + head.dimensions * sizeof(std::uint64_t);
}

Envelope decode_envelope(std::span<const std::byte> bytes) {
  const Head head = read_head(bytes);
  const std::span<const std::byte> tail = bytes.subspan(kEnvelopeBytes);
  HOPLITE_CHECK(tail.size() == head.dtype_bytes + head.dimensions * sizeof(std::uint64_t));
  Envelope envelope;
  envelope.verb = static_cast<Verb>(head.verb);
  envelope.payload_bytes = head.payload_bytes;
  Content& content = envelope.content;
  content.key = MatchKey{head.key};
  content.operation = head.operation;
  content.is_notice = head.flags == kNotice;
  content.size_bytes = head.size_bytes;
  content.dtype.assign(reinterpret_cast<const char*>(tail.data()), head.dtype_bytes);
  content.shape.resize(head.dimensions);
  if (head.dimensions > 0) {
    std::memcpy(content.shape.data(), tail.data() + head.dtype_bytes,
                tail.size() - head.dtype_bytes);
  }
  return envelope;
}

void encode_envelope(const Envelope& envelope, std::vector<std::byte>& bytes) {
  const Content& content = envelope.content;
  HOPLITE_CHECK(content.dtype.size() <= kDTypeBytesMax);
  HOPLITE_CHECK(content.shape.size() <= kDimensionsMax);
  HOPLITE_CHECK(envelope.payload_bytes <= kPayloadBytesMax);
  Head head;
  head.verb = static_cast<std::uint8_t>(envelope.verb);
  head.operation = content.operation;
  head.dtype_bytes = static_cast<std::uint16_t>(content.dtype.size());
  head.dimensions = static_cast<std::uint16_t>(content.shape.size());
  head.payload_bytes = envelope.payload_bytes;
  head.flags = content.is_notice ? kNotice : 0;
  head.key = content.key.value;
  head.size_bytes = content.size_bytes;
  const auto append = [&](const void* data, std::size_t size) {
    const auto* const first = static_cast<const std::byte*>(data);
    bytes.insert(bytes.end(), first, first + size);
  };
  append(&head, sizeof head);
  append(content.dtype.data(), content.dtype.size());
  append(content.shape.data(), content.shape.size() * sizeof(std::uint64_t));
}

std::string content_text(const Content& content) {
  std::string text = content.dtype.empty() ? "nothing" : content.dtype;
  text += '[';
  for (const std::uint64_t size : content.shape) {
    if (text.back() != '[') text += ", ";
    text += std::to_string(size);
  }
  return text + "] (" + std::to_string(content.size_bytes) + " B)";
}

}  // namespace hoplite::worlds

// SPDX-License-Identifier: Apache-2.0
#include "wire/frame.h"

#include <string>
#include <utility>

#include "wire/frame_types.h"
#include "wire/link_fields.h"

namespace hoplite {
namespace {

using wire::Reader;
using wire::Writer;

constexpr std::uint32_t kMagic = 0x46504f48;  // "HOPF" as it lies on the wire

enum class Family { kUnknown, kLink, kBlock, kMessage };

constexpr Family family_of(FrameType type) {
  if (type >= FrameType::kHello && type <= FrameType::kPulse) return Family::kLink;
  if (type == FrameType::kBlock) return Family::kBlock;
  if (type >= FrameType::kClaim && type <= FrameType::kLastMessage) return Family::kMessage;
  return Family::kUnknown;
}

Error bad_frame(FrameType type, const char* what) {
  return {Code::kBadFrame, "frame of type " + std::to_string(static_cast<int>(type)) + ": " + what +
                               "; the connection is closed"};
}

// The fixed header, into memory that is there already: the hot path of a block.
std::byte* write_header(const FrameHeader& header, std::byte* out) {
  const auto put = [&out](auto value) {
    std::memcpy(out, &value, sizeof value);
    out += sizeof value;
  };
  put(kMagic);
  put(kWireVersion);
  put(static_cast<std::uint8_t>(header.type));
  put(std::uint8_t{0});  // flags: none are defined, others are refused
  put(header.body_bytes);
  put(header.payload_bytes);
  put(header.view_epoch.value);
  put(header.transfer.value);
  put(header.trace.value);
  return out;
}

// Appends a frame whose body length is known only once the body is written.
template <typename Body>
void append(FrameHeader header, const Body& body, std::vector<std::byte>& out,
            wire::Layouts* layouts = nullptr) {
  const std::size_t start = out.size();
  out.resize(start + kFrameHeaderBytes);
  Writer writer(out, layouts);
  wire::fields(writer, body);
  const std::size_t body_bytes = out.size() - start - kFrameHeaderBytes;
  HOPLITE_CHECK(kFrameHeaderBytes + body_bytes + header.payload_bytes <= kControlFrameBytesMax);
  header.body_bytes = static_cast<std::uint32_t>(body_bytes);
  write_header(header, out.data() + start);
}

// Reads `body` as the alternative of `Variant` whose type number is `type`.
template <typename Variant, std::size_t I = 0>
bool read_as(FrameType type, std::span<const std::byte> body, Variant& out,
             wire::Layouts* layouts = nullptr) {
  if constexpr (I == std::variant_size_v<Variant>) {
    return false;
  } else {
    using T = std::variant_alternative_t<I, Variant>;
    if (wire::type_of(T{}) != type) return read_as<Variant, I + 1>(type, body, out, layouts);
    Reader reader(body, layouts);
    wire::fields(reader, out.template emplace<I>());
    return reader.is_exhausted();
  }
}

bool may_have_payload(FrameType type) {
  return type == FrameType::kClaim || type == FrameType::kPush || type == FrameType::kLocated;
}

// Both lengths against what the type allows, before anything is allocated for them.
bool has_possible_lengths(const FrameHeader& header) {
  if (family_of(header.type) == Family::kBlock) {
    return header.body_bytes == kBlockBodyBytes && header.payload_bytes >= 1 &&
           header.payload_bytes <= kBlockBytesMax;
  }
  const std::uint64_t payload_max = may_have_payload(header.type) ? kInlineBytesMax : 0;
  return header.payload_bytes <= payload_max &&
         kFrameHeaderBytes + std::uint64_t{header.body_bytes} + header.payload_bytes <=
             kControlFrameBytesMax;
}

}  // namespace

void encode(const Message& message, std::uint64_t payload_bytes, std::vector<std::byte>& out,
            wire::Layouts* layouts) {
  std::visit(
      [&](const auto& body) {
        const FrameType type = wire::type_of(body);
        HOPLITE_CHECK(payload_bytes <= (may_have_payload(type) ? kInlineBytesMax : 0));
        append({type, 0, static_cast<std::uint32_t>(payload_bytes), message.view_epoch,
                message.transfer, message.trace},
               body, out, layouts);
      },
      message.body);
}

void encode(const LinkFrame& frame, std::vector<std::byte>& out) {
  std::visit([&](const auto& body) { append({wire::type_of(body), 0, 0, {}, {}, {}}, body, out); },
             frame);
}

std::array<std::byte, kBlockFrameBytes> encode(const BlockHeader& header) {
  std::array<std::byte, kBlockFrameBytes> frame;
  std::byte* out = write_header({FrameType::kBlock, kBlockBodyBytes, header.size_bytes,
                                 header.view_epoch, header.transfer, header.trace},
                                frame.data());
  const auto put = [&out](const auto& value) {
    std::memcpy(out, &value, sizeof value);
    out += sizeof value;
  };
  put(header.object.bytes);
  put(header.incarnation.value);
  put(header.target_epoch.value);
  put(header.offset);
  put(header.crc32c);
  return frame;
}

Result<FrameHeader> decode_header(std::span<const std::byte> bytes) {
  HOPLITE_CHECK(bytes.size() >= kFrameHeaderBytes);
  Reader reader(bytes.first(kFrameHeaderBytes));
  std::uint32_t magic = 0;
  std::uint16_t version = 0;
  std::uint8_t type = 0;
  std::uint8_t flags = 0;
  FrameHeader header;
  reader.number(magic);
  reader.number(version);
  reader.number(type);
  reader.number(flags);
  reader.number(header.body_bytes);
  reader.number(header.payload_bytes);
  wire::id(reader, header.view_epoch);
  wire::id(reader, header.transfer);
  wire::id(reader, header.trace);
  header.type = static_cast<FrameType>(type);
  if (magic != kMagic) return bad_frame(header.type, "the magic number is wrong");
  if (version != kWireVersion) {
    return Error{Code::kWrongVersion, "the peer speaks wire version " + std::to_string(version) +
                                          ", this node " + std::to_string(kWireVersion) +
                                          "; start both from the same release"};
  }
  if (family_of(header.type) == Family::kUnknown) return bad_frame(header.type, "unknown type");
  if (flags != 0) return bad_frame(header.type, "unknown flags");
  if (family_of(header.type) == Family::kLink &&
      (header.view_epoch != Epoch{} || header.transfer != TransferId{} ||
       header.trace != TraceId{})) {
    return bad_frame(header.type, "it belongs to no view, transfer or trace");
  }
  if (!has_possible_lengths(header)) return bad_frame(header.type, "impossible length");
  return header;
}

Result<BlockHeader> decode_block(const FrameHeader& header, std::span<const std::byte> body) {
  HOPLITE_CHECK(header.type == FrameType::kBlock && body.size() == header.body_bytes);
  BlockHeader block;
  block.view_epoch = header.view_epoch;
  block.transfer = header.transfer;
  block.trace = header.trace;
  block.size_bytes = header.payload_bytes;
  Reader reader(body);
  wire::fields(reader, block.object);
  wire::id(reader, block.incarnation);
  wire::id(reader, block.target_epoch);
  reader.number(block.offset);
  reader.number(block.crc32c);
  if (!reader.is_exhausted() || block.offset > kObjectBytesMax - block.size_bytes) {
    return bad_frame(header.type, "offset outside of any object");
  }
  return block;
}

Result<Frame> decode_body(const FrameHeader& header, std::span<const std::byte> body,
                          wire::Layouts* layouts) {
  HOPLITE_CHECK(body.size() == header.body_bytes);
  switch (family_of(header.type)) {
    case Family::kBlock: {
      auto block = decode_block(header, body);
      if (!block) return block.error();
      return Frame{*block};
    }
    case Family::kLink: {
      LinkFrame frame;
      if (!read_as(header.type, body, frame)) break;
      return Frame{frame};
    }
    case Family::kMessage: {
      Message message{header.view_epoch, header.transfer, header.trace, {}};
      if (!read_as(header.type, body, message.body, layouts)) break;
      return Frame{std::move(message)};
    }
    case Family::kUnknown:
      break;
  }
  return bad_frame(header.type, "its body does not have the fields of this type");
}

}  // namespace hoplite

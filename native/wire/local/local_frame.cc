// SPDX-License-Identifier: Apache-2.0
#include "wire/local/local_frame.h"

#include <string>
#include <utility>

#include "wire/local/local_fields.h"

namespace hoplite {
namespace {

using wire::Reader;
using wire::Writer;

constexpr std::uint32_t kMagic = 0x4c504f48;  // "HOPL" as it lies on the wire

bool is_known(LocalType type) {
  return type == LocalType::kAttach || type == LocalType::kAttached ||
         (type >= LocalType::kPut && type <= LocalType::kLastCommand) ||
         (type >= LocalType::kReserved && type <= LocalType::kLastReply);
}
bool may_have_payload(LocalType type) {
  return type == LocalType::kPut || type == LocalType::kFetched;
}

Error bad_frame(LocalType type, const char* what) {
  return {Code::kBadFrame, "local frame of type " + std::to_string(static_cast<int>(type)) + ": " +
                               what + "; the connection is closed"};
}

template <typename Body>
void append(LocalType type, RequestId request, std::uint64_t payload_bytes, const Body& body,
            std::vector<std::byte>& out) {
  HOPLITE_CHECK(payload_bytes <= (may_have_payload(type) ? kInlineBytesMax : 0));
  const std::size_t start = out.size();
  out.resize(start + kLocalHeaderBytes);
  Writer writer(out);
  wire::fields(writer, body);
  const std::size_t body_bytes = out.size() - start - kLocalHeaderBytes;
  std::byte* at = out.data() + start;
  const auto put = [&at](auto value) {
    std::memcpy(at, &value, sizeof value);
    at += sizeof value;
  };
  put(kMagic);
  put(kWireVersion);
  put(static_cast<std::uint8_t>(type));
  put(std::uint8_t{0});  // flags: none are defined, others are refused
  put(request.value);
  put(static_cast<std::uint32_t>(body_bytes));
  put(static_cast<std::uint32_t>(payload_bytes));
}

template <typename T>
bool read_whole(std::span<const std::byte> body, T& value) {
  Reader reader(body);
  wire::fields(reader, value);
  return reader.is_exhausted();
}

// Reads `body` as the alternative of `Variant` whose type number is `type`.
template <typename Variant, std::size_t I = 0>
bool read_as(LocalType type, std::span<const std::byte> body, Variant& out) {
  if constexpr (I == std::variant_size_v<Variant>) {
    return false;
  } else {
    using T = std::variant_alternative_t<I, Variant>;
    if constexpr (!wire::is_inside<T>) {
      if (wire::type_of(T{}) == type) return read_whole(body, out.template emplace<I>());
    }
    return read_as<Variant, I + 1>(type, body, out);
  }
}

}  // namespace

void encode(const Attach& attach, std::vector<std::byte>& out) {
  append(LocalType::kAttach, {}, 0, attach, out);
}

void encode(const Attached& attached, std::vector<std::byte>& out) {
  append(LocalType::kAttached, {}, 0, attached, out);
}

void encode(const Command& command, std::vector<std::byte>& out) {
  std::visit(
      [&](const auto& body) {
        using T = std::remove_cvref_t<decltype(body)>;
        if constexpr (wire::is_inside<T>) {
          HOPLITE_CHECK(!wire::is_inside<T>);
        } else if constexpr (std::is_same_v<T, PutCommand>) {
          append(LocalType::kPut, command.request, body.payload.size(), body, out);
        } else {
          append(wire::type_of(body), command.request, 0, body, out);
        }
      },
      command.body);
}

void encode(const LocalReply& reply, std::uint64_t payload_bytes, std::vector<std::byte>& out) {
  std::visit(
      [&](const auto& body) {
        append(wire::type_of(body), reply.request, payload_bytes, body, out);
      },
      reply.reply);
}

Result<LocalHeader> decode_local_header(std::span<const std::byte> bytes) {
  HOPLITE_CHECK(bytes.size() >= kLocalHeaderBytes);
  Reader reader(bytes.first(kLocalHeaderBytes));
  std::uint32_t magic = 0;
  std::uint16_t version = 0;
  std::uint8_t type = 0;
  std::uint8_t flags = 0;
  LocalHeader header;
  reader.number(magic);
  reader.number(version);
  reader.number(type);
  reader.number(flags);
  wire::id(reader, header.request);
  reader.number(header.body_bytes);
  reader.number(header.payload_bytes);
  header.type = static_cast<LocalType>(type);
  if (magic != kMagic) return bad_frame(header.type, "the magic number is wrong");
  if (version != kWireVersion) {
    return Error{Code::kWrongVersion,
                 "the other end speaks wire version " + std::to_string(version) + ", this one " +
                     std::to_string(kWireVersion) + "; start both from the same release"};
  }
  if (!is_known(header.type)) return bad_frame(header.type, "unknown type");
  if (flags != 0) return bad_frame(header.type, "unknown flags");
  if (header.type <= LocalType::kAttached && header.request != RequestId{}) {
    return bad_frame(header.type, "it belongs to no request");
  }
  const std::uint64_t payload_max = may_have_payload(header.type) ? kInlineBytesMax : 0;
  if (header.payload_bytes > payload_max ||
      kLocalHeaderBytes + std::uint64_t{header.body_bytes} + header.payload_bytes >
          kControlFrameBytesMax) {
    return bad_frame(header.type, "impossible length");
  }
  return header;
}

Result<LocalFrame> decode_local_body(const LocalHeader& header, std::span<const std::byte> body) {
  HOPLITE_CHECK(body.size() == header.body_bytes);
  LocalFrame frame;
  bool is_whole = false;
  if (header.type == LocalType::kAttach) {
    is_whole = read_whole(body, frame.emplace<Attach>());
  } else if (header.type == LocalType::kAttached) {
    is_whole = read_whole(body, frame.emplace<Attached>());
  } else if (header.type <= LocalType::kLastCommand) {
    auto& command = frame.emplace<Command>();
    command.request = header.request;
    is_whole = read_as(header.type, body, command.body);
  } else {
    auto& reply = frame.emplace<LocalReply>();
    reply.request = header.request;
    is_whole = read_as(header.type, body, reply.reply);
  }
  if (is_whole) return {std::move(frame)};
  return bad_frame(header.type, "its body does not have the fields of this type");
}

}  // namespace hoplite

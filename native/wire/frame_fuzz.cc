// SPDX-License-Identifier: Apache-2.0
// libFuzzer: whatever a peer or a client sends, decoding is total, and what decodes encodes to the
// bytes it came from: nothing is believed that was not said. `make fuzz` gives it its time.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "base/check.h"
#include "wire/frame.h"
#include "wire/local/local_fields.h"
#include "wire/local/local_frame.h"

namespace hoplite {
namespace {

using ByteVector = std::vector<std::byte>;

void expect_prefix(std::span<const std::byte> input, const ByteVector& again) {
  HOPLITE_CHECK(again.size() <= input.size());
  HOPLITE_CHECK(std::equal(again.begin(), again.end(), input.begin()));
}

void peer_frame(std::span<const std::byte> input) {
  if (input.size() < kFrameHeaderBytes) return;
  auto header = decode_header(input);
  if (!header) return;
  const auto rest = input.subspan(kFrameHeaderBytes);
  if (rest.size() < header->body_bytes) return;
  auto frame = decode_body(*header, rest.first(header->body_bytes));
  if (!frame) return;
  ByteVector again;
  if (const auto* message = std::get_if<Message>(&*frame)) {
    encode(*message, header->payload_bytes, again);
  } else if (const auto* link_frame = std::get_if<LinkFrame>(&*frame)) {
    encode(*link_frame, again);
  } else {
    const auto block = encode(std::get<BlockHeader>(*frame));
    again.assign(block.begin(), block.end());
  }
  expect_prefix(input, again);
}

void local_frame(std::span<const std::byte> input) {
  if (input.size() < kLocalHeaderBytes) return;
  auto header = decode_local_header(input);
  if (!header) return;
  const auto rest = input.subspan(kLocalHeaderBytes);
  if (rest.size() < header->body_bytes) return;
  auto frame = decode_local_body(*header, rest.first(header->body_bytes));
  if (!frame) return;
  ByteVector again;
  if (const auto* reply = std::get_if<LocalReply>(&*frame)) {
    encode(*reply, header->payload_bytes, again);
  } else if (auto* command = std::get_if<Command>(&*frame)) {
    if (auto* put = std::get_if<PutCommand>(&command->body)) {
      put->payload.resize(header->payload_bytes);
    }
    encode(*command, again);
  } else if (const auto* attach = std::get_if<Attach>(&*frame)) {
    encode(*attach, again);
  } else {
    encode(std::get<Attached>(*frame), again);
  }
  expect_prefix(input, again);
}

// One frame of every kind, with nothing in it: what the mutations start from.
template <typename Variant, typename Encode>
void add_each(Encode encode_one, std::vector<ByteVector>& frames) {
  [&]<std::size_t... I>(std::index_sequence<I...>) {
    (encode_one(std::variant_alternative_t<I, Variant>{}, frames.emplace_back()), ...);
  }(std::make_index_sequence<std::variant_size_v<Variant>>{});
}

std::vector<ByteVector> one_of_each() {
  std::vector<ByteVector> frames;
  add_each<PeerMessage>(
      [](const auto& body, ByteVector& out) { encode(Message{{}, {}, {}, body}, 0, out); }, frames);
  add_each<LinkFrame>([](const auto& body, ByteVector& out) { encode(LinkFrame{body}, out); },
                      frames);
  add_each<CommandBody>(
      [](const auto& body, ByteVector& out) {
        using T = std::remove_cvref_t<decltype(body)>;
        if constexpr (!wire::is_inside<T>) encode(Command{{}, RequestId{1}, body}, out);
      },
      frames);
  add_each<Reply>(
      [](const auto& body, ByteVector& out) { encode(LocalReply{RequestId{1}, body}, 0, out); },
      frames);
  encode(Attach{}, frames.emplace_back());
  encode(Attached{}, frames.emplace_back());
  BlockHeader header;
  header.size_bytes = 1;
  const auto block = encode(header);
  frames.emplace_back(block.begin(), block.end());
  std::erase(frames, ByteVector{});  // of what no client says
  return frames;
}

// Most mutations would end at the header: lets it say how long the body is.
void mend_length(std::span<std::uint8_t> frame) {
  const bool is_local = frame.size() > 3 && frame[3] == 'L';
  const std::size_t header_bytes = is_local ? kLocalHeaderBytes : kFrameHeaderBytes;
  const std::size_t length_at = is_local ? 16 : 8;
  if (frame.size() < header_bytes) return;
  const auto body_bytes = static_cast<std::uint32_t>(frame.size() - header_bytes);
  std::memcpy(frame.data() + length_at, &body_bytes, sizeof body_bytes);
}

}  // namespace
}  // namespace hoplite

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max_size);

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t max_size, unsigned seed) {
  static const auto frames = hoplite::one_of_each();
  if (size < hoplite::kLocalHeaderBytes || seed % 64 == 0) {
    const auto& fresh = frames[seed / 64 % frames.size()];
    size = std::min(fresh.size(), max_size);
    std::memcpy(data, fresh.data(), size);
  }
  size = LLVMFuzzerMutate(data, size, max_size);
  if (seed % 4 != 1) hoplite::mend_length(std::span(data, size));
  return size;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto input = std::as_bytes(std::span(data, size));
  hoplite::peer_frame(input);
  hoplite::local_frame(input);
  return 0;
}

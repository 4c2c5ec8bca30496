// libFuzzer: whatever a peer or a client sends, decoding is total, and what decodes encodes to the
// bytes it came from: nothing is believed that was not said. `.ci/run fuzz` gives it its time.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/check.h"
#include "wire/frame.h"
#include "wire/local_frame.h"

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

}  // namespace
}  // namespace hoplite

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto input = std::as_bytes(std::span(data, size));
  hoplite::peer_frame(input);
  hoplite::local_frame(input);
  return 0;
}

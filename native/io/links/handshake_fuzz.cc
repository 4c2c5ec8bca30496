// SPDX-License-Identifier: Apache-2.0
// libFuzzer: a stranger without the secret says anything to either side of a handshake; it never
// gets through.
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "io/links/handshake.h"
#include "wire/frame.h"

namespace hoplite {
namespace {

// Hears frame after frame until one is refused, as a connection does.
void feed(Handshake& handshake, std::span<const std::byte> input) {
  while (input.size() >= kFrameHeaderBytes) {
    auto header = decode_header(input);
    if (!header || input.size() - kFrameHeaderBytes < header->body_bytes) return;
    auto frame = decode_body(*header, input.subspan(kFrameHeaderBytes, header->body_bytes));
    const auto* link_frame = frame ? std::get_if<LinkFrame>(&*frame) : nullptr;
    if (link_frame == nullptr || !handshake.handle_frame(*link_frame)) return;
    static_cast<void>(handshake.poll_frame());
    HOPLITE_CHECK(handshake.state() != Handshake::State::kDone);
    input = input.subspan(kFrameHeaderBytes + header->body_bytes);
  }
}

}  // namespace
}  // namespace hoplite

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace hoplite;
  static const Identity self{NodeId{5}, Incarnation{6}, "secret"};
  const auto input = std::as_bytes(std::span(data, size));
  Handshake listener(self);
  feed(listener, input);
  Hello hello;
  hello.to = NodeId{7};
  hello.to_incarnation = Incarnation{6};
  Handshake dialler(self, hello);
  static_cast<void>(dialler.poll_frame());
  feed(dialler, input);
  return 0;
}

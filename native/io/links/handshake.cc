// SPDX-License-Identifier: Apache-2.0
#include "io/links/handshake.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <variant>
#include <vector>

#include "base/check.h"
#include "wire/frame.h"

namespace hoplite {
namespace {

using Buffer = std::vector<std::byte>;

void append(Buffer& out, std::string_view label) {
  for (const char letter : label) out.push_back(static_cast<std::byte>(letter));
}

void append(Buffer& out, NodeId node) {
  for (int shift = 0; shift < 64; shift += 8) {
    out.push_back(static_cast<std::byte>((node.value >> shift) & 0xff));
  }
}

Mac mac(const void* key, std::size_t key_bytes, const Buffer& text) {
  Mac result{};
  unsigned int size = 0;
  const unsigned char* made = ::HMAC(EVP_sha256(), key, static_cast<int>(key_bytes),
                                     reinterpret_cast<const unsigned char*>(text.data()),
                                     text.size(), result.data(), &size);
  HOPLITE_CHECK(made != nullptr && size == result.size());
  return result;
}

Error refusal(Code code, const Hello& hello, const std::string& why) {
  return {code, "connection between node " + std::to_string(hello.from.value) + " and node " +
                    std::to_string(hello.to.value) + " refused: " + why};
}

}  // namespace

Mac pair_ticket(const std::string& secret, NodeId a, NodeId b) {
  Buffer text;
  append(text, "hoplite ticket");
  append(text, std::min(a, b));
  append(text, std::max(a, b));
  return mac(secret.data(), secret.size(), text);
}

Mac welcome_proof(const Mac& ticket, const Hello& hello, const Welcome& welcome,
                  const Bytes& binding) {
  Welcome unproven = welcome;
  unproven.proof = {};
  Buffer text;
  append(text, "hoplite welcome");
  encode(LinkFrame{hello}, text);
  encode(LinkFrame{unproven}, text);
  text.insert(text.end(), binding.begin(), binding.end());
  return mac(ticket.data(), ticket.size(), text);
}

Mac hello_proof(const Mac& ticket, const Hello& hello, const Welcome& welcome,
                const Bytes& binding) {
  Buffer text;
  append(text, "hoplite proof");
  encode(LinkFrame{hello}, text);
  encode(LinkFrame{welcome}, text);
  text.insert(text.end(), binding.begin(), binding.end());
  return mac(ticket.data(), ticket.size(), text);
}

bool are_equal(const Mac& a, const Mac& b) {
  return ::CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

Nonce random_nonce() {
  Nonce nonce{};
  HOPLITE_CHECK(::RAND_bytes(nonce.data(), static_cast<int>(nonce.size())) == 1);
  return nonce;
}

Handshake::Handshake(const Identity& self, Hello hello)
    : self_(&self), state_(State::kAwaitWelcome), hello_(hello) {
  hello_.from = self.node;
  hello_.from_incarnation = self.incarnation;
  hello_.nonce = random_nonce();
  frame_ = hello_;
}

Handshake::Handshake(const Identity& self) : self_(&self), state_(State::kAwaitHello) {}

std::optional<LinkFrame> Handshake::poll_frame() { return std::exchange(frame_, std::nullopt); }

// Each state takes exactly one kind of frame; everything else is an error.
Result<void> Handshake::handle_frame(const LinkFrame& frame) {
  if (state_ == State::kAwaitHello && std::holds_alternative<Hello>(frame)) {
    return handle_hello(*std::get_if<Hello>(&frame));
  }
  if (state_ == State::kAwaitWelcome && std::holds_alternative<Welcome>(frame)) {
    return handle_welcome(*std::get_if<Welcome>(&frame));
  }
  if (state_ == State::kAwaitProof && std::holds_alternative<Proof>(frame)) {
    return handle_proof(*std::get_if<Proof>(&frame));
  }
  return Error{Code::kBadFrame, "handshake: a frame that does not come now"};
}

Result<void> Handshake::handle_hello(const Hello& hello) {
  hello_ = hello;
  if (hello.wire_version != kWireVersion) {
    return refusal(Code::kWrongVersion, hello,
                   "it speaks wire version " + std::to_string(hello.wire_version) + ", we " +
                       std::to_string(kWireVersion));
  }
  if (hello.to != self_->node) {
    return refusal(Code::kUnauthenticated, hello,
                   "this is node " + std::to_string(self_->node.value));
  }
  if (hello.from == kNoNode || hello.from >= hello.to) {
    return refusal(Code::kUnauthenticated, hello, "only the smaller node id dials");
  }
  welcome_ = {};
  welcome_.incarnation = self_->incarnation;
  welcome_.nonce = random_nonce();
  const Mac ticket = pair_ticket(self_->secret, hello.from, hello.to);
  welcome_.proof = welcome_proof(ticket, hello, welcome_, binding_);
  frame_ = welcome_;
  // The dialler looks for another incarnation of this node. The answer proves that the other one is
  // over.
  state_ =
      hello.to_incarnation == self_->incarnation ? State::kAwaitProof : State::kOtherIncarnation;
  return {};
}

Result<void> Handshake::handle_welcome(const Welcome& welcome) {
  if (welcome.wire_version != kWireVersion) {
    return refusal(Code::kWrongVersion, hello_,
                   "it speaks wire version " + std::to_string(welcome.wire_version) + ", we " +
                       std::to_string(kWireVersion));
  }
  const Mac ticket = pair_ticket(self_->secret, hello_.from, hello_.to);
  if (!are_equal(welcome.proof, welcome_proof(ticket, hello_, welcome, binding_))) {
    return refusal(Code::kUnauthenticated, hello_,
                   "the listening node has another cluster's secret");
  }
  welcome_ = welcome;
  if (welcome.incarnation != hello_.to_incarnation) {
    state_ = State::kOtherIncarnation;
    return {};
  }
  frame_ = Proof{hello_proof(ticket, hello_, welcome, binding_)};
  state_ = State::kDone;
  return {};
}

Result<void> Handshake::handle_proof(const Proof& proof) {
  const Mac ticket = pair_ticket(self_->secret, hello_.from, hello_.to);
  if (!are_equal(proof.proof, hello_proof(ticket, hello_, welcome_, binding_))) {
    return refusal(Code::kUnauthenticated, hello_,
                   "the dialling node has another cluster's secret");
  }
  state_ = State::kDone;
  return {};
}

}  // namespace hoplite

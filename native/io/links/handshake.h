// SPDX-License-Identifier: Apache-2.0
// The handshake of one connection between two nodes: Hello ->, <- Welcome, Proof ->. Each side
// proves that it has the ticket of this pair of nodes, which is derived from the cluster's secret.
// Neither ticket nor secret travels. Nonces make every proof new; the proofs cover every field of
// both frames. Owns no descriptor: frames in, frames out. Reactor thread only.
// docs/internals/wire.md.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "base/result.h"
#include "io/sockets/tls.h"
#include "plan/messages.h"

namespace hoplite {

struct Identity {  // of this node
  NodeId node;
  Incarnation incarnation;
  std::string secret;
  std::optional<TlsContext> tls = std::nullopt;  // set if connections are encrypted
};

[[nodiscard]] Mac pair_ticket(const std::string& secret, NodeId a, NodeId b);
// `binding` identifies the TLS session that carries the frames; it is empty without TLS. A relay
// between two nodes has two sessions, so a proof that it passes on fits neither.
[[nodiscard]] Mac welcome_proof(const Mac& ticket, const Hello& hello, const Welcome& welcome,
                                const Bytes& binding = {});
[[nodiscard]] Mac hello_proof(const Mac& ticket, const Hello& hello, const Welcome& welcome,
                              const Bytes& binding = {});
[[nodiscard]] bool are_equal(const Mac& a, const Mac& b);  // in constant time
[[nodiscard]] Nonce random_nonce();

class Handshake {
 public:
  enum class State : std::uint8_t {
    kAwaitHello,
    kAwaitWelcome,
    kAwaitProof,
    kDone,
    // the peer is proven, but one of the two nodes is another incarnation than expected
    kOtherIncarnation,
  };

  // The dialler's side. It fills in the nonce and the identity of `hello`.
  Handshake(const Identity& self, Hello hello);
  // The listener's side.
  explicit Handshake(const Identity& self);

  // Returns the frame to send now: first the dialler's Hello, then the answer to each handle_frame.
  // Ask after kOtherIncarnation as well: the listener then has a last answer.
  [[nodiscard]] std::optional<LinkFrame> poll_frame();
  // Binds the proofs to a TLS session. REQUIRES: no frame was handled yet.
  void bind(Bytes binding) { binding_ = std::move(binding); }
  // Returns an error, whose text names the peer and the cause, if the caller must close the
  // connection.
  [[nodiscard]] Result<void> handle_frame(const LinkFrame& frame);

  [[nodiscard]] State state() const { return state_; }
  [[nodiscard]] const Hello& hello() const { return hello_; }  // valid after kAwaitHello
  // Returns the incarnation that answered. REQUIRES: the dialler's side, in kDone or
  // kOtherIncarnation.
  [[nodiscard]] Incarnation peer_incarnation() const { return welcome_.incarnation; }

 private:
  [[nodiscard]] Result<void> handle_hello(const Hello& hello);
  [[nodiscard]] Result<void> handle_welcome(const Welcome& welcome);
  [[nodiscard]] Result<void> handle_proof(const Proof& proof);

  const Identity* self_;  // outlives every connection
  State state_;
  Hello hello_;
  Welcome welcome_;
  Bytes binding_;
  std::optional<LinkFrame> frame_;
};

}  // namespace hoplite

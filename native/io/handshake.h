// How one connection between two nodes starts: Hello ->, <- Welcome, Proof ->. Each side proves
// that it has the ticket of this pair of nodes, which is derived from the cluster's secret; neither
// of them travels. Nonces make every proof new; the proofs cover every field of both frames. Owns
// no descriptor: frames in, frames out. Reactor thread only. docs/wire.md.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "base/result.h"
#include "io/tls.h"
#include "plan/messages.h"

namespace hoplite {

struct Identity {  // of this node
  NodeId node;
  Incarnation incarnation;
  std::string secret;
  std::optional<TlsContext> tls = std::nullopt;  // if connections are to be encrypted
};

[[nodiscard]] Mac pair_ticket(const std::string& secret, NodeId a, NodeId b);
// `binding` is of the TLS session that they travel in: a proof passed on by somebody in between,
// who has two sessions, fits neither. Empty without TLS.
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
    kOtherLife,  // proven: another incarnation than the expected one answers, or was meant
  };

  // The dialler's side. `hello` without nonce and identity, which are filled in.
  Handshake(const Identity& self, Hello hello);
  // The listener's side.
  explicit Handshake(const Identity& self);

  // Returns the frame to send now: the dialler's Hello before anything, then answers to
  // handle_frame. Also to be asked after kOtherLife.
  [[nodiscard]] std::optional<LinkFrame> poll_frame();
  // What the proofs are bound to; to be said before the first frame is handled.
  void bind(Bytes binding) { binding_ = std::move(binding); }
  // An error (whose text names the peer and the cause) means: close.
  [[nodiscard]] Result<void> handle_frame(const LinkFrame& frame);

  [[nodiscard]] State state() const { return state_; }
  [[nodiscard]] const Hello& hello() const { return hello_; }  // valid after kAwaitHello
  // Who answered (the dialler, from kDone or kOtherLife on).
  [[nodiscard]] Incarnation answered() const { return welcome_.incarnation; }

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

// SPDX-License-Identifier: Apache-2.0
// TLS 1.3 between nodes, by OpenSSL, if the option data_tls is set. Both ends show a certificate
// that the cluster's authority has signed. One session belongs to one connection. It encrypts bytes
// into records, which wait here until the kernel takes them, so no write is ever half done. It
// decrypts the records that arrive. It owns no descriptor. One thread at a time; decision 15b.
#pragma once

#include <openssl/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/result.h"
#include "base/units.h"
#include "wire/frame.h"

namespace hoplite {

struct TlsFiles {  // their contents, as PEM
  std::string certificate, key, authority;
};

// How far a session may read from the kernel beyond the bytes that the caller wants. kNone: at most
// to the end of a record. kAllowed: all that has arrived. kInHand: reads nothing from the kernel.
enum class ReadAhead : std::uint8_t { kNone, kAllowed, kInHand };

class TlsSession {
 public:
  enum class Side : std::uint8_t { kDials, kListens };
  // The errno that ended the connection; 0: the peer closed it.
  struct End {
    int number = 0;
  };

  TlsSession(SSL_CTX* context, Side side, std::uint64_t rekey_bytes);
  ~TlsSession();
  TlsSession(const TlsSession&) = delete;
  TlsSession& operator=(const TlsSession&) = delete;

  // True if the TLS handshake is complete and, as far as this end can know, both certificates are
  // proven.
  [[nodiscard]] bool is_open() const { return is_open_; }
  [[nodiscard]] bool has_unsent() const { return unsent_bytes() > 0; }
  // True if bytes that were read from the kernel are still unread here; no poller reports them.
  [[nodiscard]] bool has_unread() const;
  [[nodiscard]] std::optional<End> end() const { return end_; }
  // The same 32 bytes at both ends of this session, and of no other. REQUIRES: is_open().
  [[nodiscard]] Bytes binding() const;

  // Like writev and readv on `fd`; 0: none at present. An error of kPeerLost is the connection's
  // end.
  [[nodiscard]] Result<std::size_t> send(int fd, std::span<const iovec> parts);
  // REQUIRES: after a call that may read ahead, the caller repeats it until has_unread() is false,
  // before it uses another session in this thread.
  [[nodiscard]] Result<std::size_t> receive(int fd, std::span<const iovec> parts, ReadAhead ahead);
  [[nodiscard]] Result<void> flush(int fd);

 private:
  friend struct TlsBytes;  // what OpenSSL calls
  [[nodiscard]] std::size_t unsent_bytes() const { return out_.size() - out_sent_; }
  [[nodiscard]] Result<void> advance_handshake();
  [[nodiscard]] Result<void> write(std::span<const std::byte> record);
  [[nodiscard]] Error failure();
  [[nodiscard]] std::size_t pull(std::span<std::byte> into);  // 0: nothing now, or end_

  SSL* ssl_;
  std::uint64_t rekey_bytes_;
  std::uint64_t written_bytes_ = 0;  // by the current key
  bool is_open_ = false;
  int fd_ = -1;  // of the call in progress
  ReadAhead ahead_ = ReadAhead::kInHand;
  std::span<const std::byte> unread_;  // of the thread's own buffer
  Bytes out_;
  std::size_t out_sent_ = 0;
  std::optional<End> end_;
};

// The certificate, key and settings of all sessions of a node.
class TlsContext {
 public:
  // A key of AES-GCM is good for 2^24.5 records of 16 KiB (RFC 8446, 5.5); this is a sixth of that.
  static constexpr std::uint64_t kRekeyBytes = 64_GiB;

  // kInvalidArgument says what is wrong with which file.
  [[nodiscard]] static Result<TlsContext> open(const TlsFiles& files,
                                               std::uint64_t rekey_bytes = kRekeyBytes);
  [[nodiscard]] std::unique_ptr<TlsSession> begin(TlsSession::Side side) const;

 private:
  struct Free {
    void operator()(SSL_CTX* context) const;
  };
  using Owned = std::unique_ptr<SSL_CTX, Free>;
  TlsContext(Owned context, std::uint64_t rekey_bytes);

  Owned context_;
  std::uint64_t rekey_bytes_;
};

// True if these first bytes of a connection are a TLS record: no frame begins like that.
[[nodiscard]] bool is_tls(std::span<const std::byte> first);
// Returns the answer of a node without TLS to a peer with TLS: the TLS alert "protocol version".
[[nodiscard]] std::span<const std::byte> no_tls_alert();

}  // namespace hoplite

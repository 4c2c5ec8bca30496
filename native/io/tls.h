// TLS 1.3 between nodes, by OpenSSL, where the option data_tls asks for it: both ends show a
// certificate that our authority has signed. A session is one connection's; it turns what is to be
// sent into records, which wait here until the kernel has taken them, so that no write is ever half
// done, and opens those that come. It owns no descriptor. One thread at a time; decision 15b.
// SPDX-License-Identifier: Apache-2.0
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

struct TlsFiles {  // what is in them: PEM
  std::string certificate, key, authority;
};

// How far the kernel is read ahead of what is asked for: at most to the end of a record, as far as
// there is something, or not at all: what is in hand must do.
enum class ReadAhead : std::uint8_t { kNone, kAllowed, kInHand };

class TlsSession {
 public:
  enum class Side : std::uint8_t { kDials, kListens };
  // Which errno ended the connection; 0: the peer closed it.
  struct End {
    int number = 0;
  };

  TlsSession(SSL_CTX* context, Side side, std::uint64_t rekey_bytes);
  ~TlsSession();
  TlsSession(const TlsSession&) = delete;
  TlsSession& operator=(const TlsSession&) = delete;

  // The greeting is over, and either end has proven its certificate as far as this one can know.
  [[nodiscard]] bool is_open() const { return is_open_; }
  [[nodiscard]] bool has_unsent() const { return unsent_bytes() > 0; }
  // Of what was read from the kernel there is more: no poller will tell of it.
  [[nodiscard]] bool has_unread() const;
  [[nodiscard]] std::optional<End> end() const { return end_; }
  // The same 32 bytes at both ends of this session, and of no other. REQUIRES: is_open().
  [[nodiscard]] Bytes binding() const;

  // As writev and readv, by `fd`; 0: nothing now. Errors of kPeerLost are the connection's end.
  [[nodiscard]] Result<std::size_t> send(int fd, std::span<const iovec> parts);
  // REQUIRES: if it may read ahead, it is called until has_unread() is false, before any other
  // session of this thread is.
  [[nodiscard]] Result<std::size_t> receive(int fd, std::span<const iovec> parts, ReadAhead ahead);
  [[nodiscard]] Result<void> flush(int fd);

 private:
  friend struct TlsBytes;  // what OpenSSL calls
  [[nodiscard]] std::size_t unsent_bytes() const { return out_.size() - out_sent_; }
  [[nodiscard]] Result<void> greet();
  [[nodiscard]] Result<void> write(std::span<const std::byte> record);
  [[nodiscard]] Error failure();
  [[nodiscard]] std::size_t pull(std::span<std::byte> into);  // 0: nothing now, or end_

  SSL* ssl_;
  std::uint64_t rekey_bytes_;
  std::uint64_t written_bytes_ = 0;  // by the present key
  bool is_open_ = false;
  int fd_ = -1;  // of the call that is under way
  ReadAhead ahead_ = ReadAhead::kInHand;
  std::span<const std::byte> unread_;  // of the thread's own buffer
  Bytes out_;
  std::size_t out_sent_ = 0;
  std::optional<End> end_;
};

// What all sessions of a node are made with.
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

// Whether these first bytes of a connection are a record of TLS: no frame of ours begins like that.
[[nodiscard]] bool is_tls(std::span<const std::byte> first);
// What a node without TLS says to who greets it so, in TLS's words: an alert, "protocol version".
[[nodiscard]] std::span<const std::byte> no_tls_here();

}  // namespace hoplite

// SPDX-License-Identifier: Apache-2.0
// The byte stream of one connection between nodes, plain or by TLS. Owns the descriptor. Partial
// reads and writes are the normal case. One thread at a time.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <span>

#include "base/result.h"
#include "io/sockets/tls.h"
#include "io/sockets/unique_fd.h"

namespace hoplite {

class Stream {
 public:
  Stream() = default;
  explicit Stream(UniqueFd fd, std::unique_ptr<TlsSession> tls = nullptr)
      : fd_(std::move(fd)), tls_(std::move(tls)) {}

  [[nodiscard]] int fd() const { return fd_.value(); }
  [[nodiscard]] TlsSession* tls() const { return tls_.get(); }
  // REQUIRES: nothing was sent or received yet.
  void secure(std::unique_ptr<TlsSession> tls) { tls_ = std::move(tls); }
  // Takes the TLS session out, for a thread that gets a copy of the descriptor.
  [[nodiscard]] std::unique_ptr<TlsSession> release_tls() { return std::move(tls_); }

  [[nodiscard]] bool is_open() const { return tls_ == nullptr || tls_->is_open(); }
  // True if send() has accepted bytes that the kernel has not taken yet; flush() sends them.
  [[nodiscard]] bool has_unsent() const { return tls_ != nullptr && tls_->has_unsent(); }
  [[nodiscard]] bool has_unread() const { return tls_ != nullptr && tls_->has_unread(); }
  [[nodiscard]] bool is_ready() const { return is_open() && !has_unsent(); }  // for send()
  // Returns the errno that ended the stream, 0 if the peer closed it, or nothing while it is open.
  [[nodiscard]] std::optional<int> end() const { return end_; }
  [[nodiscard]] Bytes binding() const { return tls_ ? tls_->binding() : Bytes{}; }

  [[nodiscard]] Result<void> flush();
  // Returns how many bytes were accepted; 0: none at present. REQUIRES: is_ready().
  [[nodiscard]] Result<std::size_t> send(std::span<iovec> parts);
  // Returns how many bytes arrived; 0: none at present. The stream's end is kPeerLost. See
  // TlsSession about has_unread.
  [[nodiscard]] Result<std::size_t> receive(std::span<iovec> parts, ReadAhead ahead);

 private:
  UniqueFd fd_;
  std::unique_ptr<TlsSession> tls_;
  std::optional<int> end_;
};

}  // namespace hoplite

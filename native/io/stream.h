// The bytes of one connection between nodes: as they are, or by TLS. Owns the descriptor. Partial
// reads and writes are the normal case. One thread at a time. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <span>

#include "base/result.h"
#include "io/tls.h"
#include "io/unique_fd.h"

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
  // The session goes with a copy of the descriptor to another thread.
  [[nodiscard]] std::unique_ptr<TlsSession> release_tls() { return std::move(tls_); }

  [[nodiscard]] bool is_open() const { return tls_ == nullptr || tls_->is_open(); }
  // What was taken and the kernel has not; flush() sends it.
  [[nodiscard]] bool has_unsent() const { return tls_ != nullptr && tls_->has_unsent(); }
  [[nodiscard]] bool has_unread() const { return tls_ != nullptr && tls_->has_unread(); }
  [[nodiscard]] bool is_ready() const { return is_open() && !has_unsent(); }  // for send()
  // The errno that ended it, 0 if the peer closed it; nothing as long as it goes on.
  [[nodiscard]] std::optional<int> end() const { return end_; }
  [[nodiscard]] Bytes binding() const { return tls_ ? tls_->binding() : Bytes{}; }

  [[nodiscard]] Result<void> flush();
  // How many bytes were taken; 0: none now. REQUIRES: is_ready().
  [[nodiscard]] Result<std::size_t> send(std::span<iovec> parts);
  // How many bytes came; 0: none now. The stream's end is kPeerLost. See TlsSession about
  // has_unread.
  [[nodiscard]] Result<std::size_t> receive(std::span<iovec> parts, ReadAhead ahead);

 private:
  UniqueFd fd_;
  std::unique_ptr<TlsSession> tls_;
  std::optional<int> end_;
};

}  // namespace hoplite

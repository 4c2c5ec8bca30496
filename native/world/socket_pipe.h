// An edge by a stream socket, between hosts by TCP: its bytes as they are, or by TLS.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "io/stream.h"
#include "world/pipe.h"

namespace hoplite::worlds {

class SocketPipe final : public Pipe {
 public:
  // Makes the socket non-blocking, and TCP send small messages at once.
  [[nodiscard]] static Result<void> prepare(int fd);
  // REQUIRES: a session of TLS that the stream has is open.
  explicit SocketPipe(Stream stream);

  [[nodiscard]] Result<std::size_t> write(std::span<iovec> parts) override;
  void flush() override;
  [[nodiscard]] bool has_unsent() const override { return stream_.has_unsent(); }
  [[nodiscard]] Result<std::size_t> read(std::span<iovec> parts) override;
  [[nodiscard]] std::size_t read_ahead_bytes() const override;
  [[nodiscard]] int fd() const override { return stream_.fd(); }
  [[nodiscard]] bool await(Interest interest, std::uint64_t enough) override;
  [[nodiscard]] Interest interest_of(Interest awaited) const override { return awaited; }
  void handle_ready() override {}
  void finish() override;
  [[nodiscard]] bool took_all() const override { return !has_failed_; }
  [[nodiscard]] const char* name() const override { return stream_.tls() ? "tls" : "tcp"; }

 private:
  [[nodiscard]] Error ended(Error error);

  Stream stream_;
  int wakes_at_bytes_ = 1;   // that have come
  bool has_failed_ = false;  // instead of being closed: a reset, if the peer has not taken all
};

}  // namespace hoplite::worlds

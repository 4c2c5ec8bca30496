// SPDX-License-Identifier: Apache-2.0
// An edge by a stream socket, which is TCP between hosts. The bytes go plain or by TLS.
#pragma once

#include "io/sockets/stream.h"
#include "world/pipes/pipe.h"

namespace hoplite::worlds {

class SocketPipe final : public Pipe {
 public:
  // Makes the socket non-blocking and turns off TCP's delay of small messages.
  [[nodiscard]] static Result<void> prepare(int fd);
  // REQUIRES: the stream's TLS session, if it has one, is open.
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
  [[nodiscard]] bool has_delivered_all() const override { return !has_failed_; }
  [[nodiscard]] const char* name() const override { return stream_.tls() ? "tls" : "tcp"; }

 private:
  [[nodiscard]] Error handle_end(Error error);

  Stream stream_;
  int wakes_at_bytes_ = 1;  // SO_RCVLOWAT of the socket
  // True if the connection failed instead of being closed. A peer that closes without having taken
  // all bytes resets it.
  bool has_failed_ = false;
};

}  // namespace hoplite::worlds

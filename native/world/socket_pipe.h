// An edge by a stream socket: between hosts by TCP. SPDX-License-Identifier: Apache-2.0
#pragma once

#include "io/unique_fd.h"
#include "world/pipe.h"

namespace hoplite::worlds {

class SocketPipe final : public Pipe {
 public:
  // Makes the socket non-blocking, and TCP send small messages at once.
  [[nodiscard]] static Result<void> prepare(int fd);
  explicit SocketPipe(UniqueFd socket) : socket_(std::move(socket)) {}

  [[nodiscard]] Result<std::size_t> write(std::span<iovec> parts) override;
  [[nodiscard]] Result<std::size_t> read(std::span<iovec> parts) override;
  [[nodiscard]] std::size_t read_ahead_bytes() const override;
  [[nodiscard]] int fd() const override { return socket_.value(); }
  [[nodiscard]] bool await(Interest interest, std::uint64_t enough) override;
  [[nodiscard]] Interest interest_of(Interest awaited) const override { return awaited; }
  void handle_ready() override {}
  void finish() override;
  [[nodiscard]] bool took_all() const override { return !has_failed_; }
  [[nodiscard]] const char* name() const override { return "tcp"; }

 private:
  UniqueFd socket_;
  int wakes_at_bytes_ = 1;   // that have come
  bool has_failed_ = false;  // instead of being closed: a reset, if the peer has not taken all
};

}  // namespace hoplite::worlds

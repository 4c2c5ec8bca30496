// SPDX-License-Identifier: Apache-2.0
// The handles of worlds in Python: a world, and its operations. Used by worlds*.cc only. Every
// function needs the GIL, and releases it where it may wait.
#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "bindings/convert.h"
#include "bindings/lifetime.h"
#include "world/progress.h"
#include "world/world.h"

namespace hoplite::worlds {

// A borrowed buffer of a Python object that may be written to, or only read.
class LentBytes {
 public:
  LentBytes(nb::handle owner, int flags) {
    if (PyObject_GetBuffer(owner.ptr(), &buffer_, flags) != 0) throw nb::python_error();
  }
  ~LentBytes() {
    if (buffer_.obj != nullptr) PyBuffer_Release(&buffer_);
  }
  LentBytes(LentBytes&& other) noexcept : buffer_(std::exchange(other.buffer_, Py_buffer{})) {}
  LentBytes& operator=(LentBytes&&) = delete;
  [[nodiscard]] std::span<std::byte> bytes() const {
    return {static_cast<std::byte*>(buffer_.buf), static_cast<std::size_t>(buffer_.len)};
  }

 private:
  Py_buffer buffer_{};
};

struct PyReceived : Handle {
  OperationHandle operation;

  explicit PyReceived(OperationHandle done) : operation(std::move(done)) {}
};

struct PyCompletions : Handle {
  std::shared_ptr<Completions> completions;
  PyCompletions() : completions(std::make_shared<Completions>(unwrap(Doorbell::open()))) {}
};

// An operation keeps its world alive, and a world keeps the port alive.
struct PyWorld : Handle {
  std::shared_ptr<Progress> progress;
  std::shared_ptr<World> world;

  PyWorld(std::shared_ptr<Progress> port, std::shared_ptr<World> opened)
      : progress(std::move(port)), world(std::move(opened)) {}
};

class PyOperation : public Handle {
 public:
  PyOperation(const PyWorld& world, OperationHandle operation, std::optional<LentBytes> lent)
      : world_(world), operation_(std::move(operation)), lent_(std::move(lent)) {}
  PyOperation(PyOperation&&) noexcept = default;
  PyOperation& operator=(PyOperation&&) = delete;
  ~PyOperation() {
    if (operation_ != nullptr) cancel();
  }

  [[nodiscard]] int state() {
    const auto now = operation_->state.load();
    if (now != Operation::State::kPending) lent_.reset();
    return static_cast<int>(now);
  }

  bool wait(double timeout_s) {
    constexpr std::int64_t kSliceNs = 50'000'000;  // between looks at Python's signals
    std::int64_t left = to_duration(timeout_s).ns;
    while (true) {
      const std::int64_t slice = std::min(left, kSliceNs);
      const bool has_ended = [&] {
        const WithoutGil released;
        return world_.world->wait(*operation_, Duration{slice});
      }();
      if (has_ended) return true;
      left -= slice;
      if (left <= 0) return false;
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
    }
  }

  nb::object received_data() {
    if (state() != static_cast<int>(Operation::State::kDone)) return nb::none();
    if (operation_->data == nullptr) return nb::none();
    return nb::cast(PyReceived(operation_));
  }

  bool cancel() {
    if (state() != static_cast<int>(Operation::State::kPending)) return false;
    if (world_.progress->is_forked()) return false;  // it is the parent's
    const WithoutGil released;
    return world_.world->cancel(*operation_);
  }

  [[nodiscard]] bool has_moved() {
    const WithoutGil released;
    return world_.world->has_moved(*operation_);
  }

  bool notify(const PyCompletions& completions, std::uint64_t token) {
    const WithoutGil released;
    return world_.world->notify(*operation_, completions.completions, token);
  }

 private:
  PyWorld world_;
  OperationHandle operation_;
  std::optional<LentBytes> lent_;  // until it has ended
};

}  // namespace hoplite::worlds

// How long what Python has lives: handles, calls without the GIL, memory as buffers, and what all
// of them do at the process's end. Used by all of bindings; every function needs the GIL, which
// guards what is static here too. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <utility>

namespace hoplite {

namespace nb = nanobind;

// The base of what Python has objects of. It counts them: nanobind lists as leaked those that are
// left when the interpreter has ended.
struct Handle {
  static inline std::size_t alive = 0;
  Handle() { ++alive; }
  Handle(const Handle& /*other*/) { ++alive; }
  Handle(Handle&& /*other*/) noexcept { ++alive; }
  Handle& operator=(const Handle&) = default;
  Handle& operator=(Handle&&) = default;
  ~Handle() { --alive; }
};

// Lets go of the GIL while it lives. It counts as a handle, because the end of the process waits
// for calls: a thread that takes the GIL after the interpreter's end is unwound, which ends the
// process.
struct WithoutGil : Handle {
  nb::gil_scoped_release released;
};

// True from the end of the process on: nothing new begins, and daemon threads may still run.
inline bool is_ending = false;

// Memory that a handle and the buffers of it share. To unmap takes 0.2 s per GiB: without the GIL,
// but not at the end, when nothing waits for a daemon thread that is without it.
template <typename Memory>
std::shared_ptr<Memory> shared(std::unique_ptr<Memory> memory, bool is_mapped) {
  return {memory.release(), [is_mapped](Memory* last) {
            std::unique_ptr<Memory> dropped(last);
            std::optional<WithoutGil> released;
            if (is_mapped && !is_ending) released.emplace();
            dropped.reset();
          }};
}

// Fills `buffer` with bytes that `owner` keeps. The buffer holds a capsule of the owner and no
// handle: an array that outlives the interpreter, in a daemon thread's frame, is no leaked handle.
inline int fill_buffer(std::shared_ptr<void> owner, std::span<std::byte> bytes, Py_buffer* buffer,
                       int flags) {
  using Kept = std::shared_ptr<void>;
  static std::byte nothing{};  // an empty object has no address, and a buffer must have one
  const nb::capsule capsule(
      std::make_unique<Kept>(std::move(owner)).release(),
      [](void* kept) noexcept { const std::unique_ptr<Kept> dropped(static_cast<Kept*>(kept)); });
  return PyBuffer_FillInfo(buffer, capsule.ptr(), bytes.empty() ? &nothing : bytes.data(),
                           static_cast<Py_ssize_t>(bytes.size()), 0, flags);
}

// For hoplite_ray/ending.py.
inline void bind_lifetime(nb::module_& m) {
  m.def(
      "handles", [] { return Handle::alive; },
      "Return how many objects of these classes there are, and calls that go on in other threads.");
  m.def(
      "begin_end", [] { is_ending = true; },
      "Say that the process ends: what daemon threads still do is refused, or kept short.");
  m.def(
      "ignore_leaks", [] { nb::set_leak_warnings(false); },
      "Say nothing of handles that are left at the process's end.");
}

}  // namespace hoplite

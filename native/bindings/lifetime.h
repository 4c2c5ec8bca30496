// SPDX-License-Identifier: Apache-2.0
// Lifetime of the objects that Python holds: handles, calls without the GIL, memory as buffers, and
// their behaviour at the end of the process. Used by all of bindings. Every function needs the GIL,
// which also guards the static variables here.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <utility>

namespace hoplite {

namespace nb = nanobind;

// The base of every C++ object that Python holds. It counts them, because nanobind reports the ones
// that are left after the interpreter's end as leaked.
struct Handle {
  static inline std::size_t alive = 0;
  Handle() { ++alive; }
  Handle(const Handle& /*other*/) { ++alive; }
  Handle(Handle&& /*other*/) noexcept { ++alive; }
  Handle& operator=(const Handle&) = default;
  Handle& operator=(Handle&&) = default;
  ~Handle() { --alive; }
};

// Releases the GIL during its lifetime. It counts as a handle, because the end of the process waits
// for calls: a thread that takes the GIL after the interpreter's end is unwound, which kills the
// process.
struct WithoutGil : Handle {
  nb::gil_scoped_release released;
};

// True once the process ends: no new call begins, and daemon threads may still run.
inline bool is_ending = false;

// Memory that a handle and its buffers share. Unmapping takes 0.2 s per GiB, so it releases the
// GIL, except at the end of the process, which doesn't wait for a daemon thread without the GIL.
template <typename Memory>
std::shared_ptr<Memory> share(std::unique_ptr<Memory> memory, bool is_mapped) {
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

// For hoplite_ray/process_end.py.
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

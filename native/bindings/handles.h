// What a client hands out to Python: requests, and memory as buffers. Used by module.cc only; every
// function needs the GIL, and lets go of it where it may wait, map or unmap.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <variant>

#include "bindings/convert.h"
#include "client/client.h"

namespace hoplite {

using namespace nb::literals;

// ---- Fetched: a received object as a buffer

// Unmapping 1 GiB that was looked at takes 0.1 to 0.2 s: mappings go without the GIL.
struct PyFetched {
  View view;

  explicit PyFetched(View fetched) : view(std::move(fetched)) {}
  PyFetched(PyFetched&&) noexcept = default;
  PyFetched& operator=(PyFetched&&) = delete;
  ~PyFetched() {
    if (!view.is_mapped()) return;
    const nb::gil_scoped_release released;
    const View dropped = std::move(view);
  }
};

inline int fill_buffer(PyObject* self, std::span<std::byte> bytes, Py_buffer* buffer, int flags) {
  static std::byte nothing{};  // an empty object has no address, and a buffer must have one
  return PyBuffer_FillInfo(buffer, self, bytes.empty() ? &nothing : bytes.data(),
                           static_cast<Py_ssize_t>(bytes.size()), 0, flags);
}

inline int export_fetched(PyObject* self, Py_buffer* buffer, int flags) {
  return fill_buffer(self, nb::inst_ptr<PyFetched>(nb::handle(self))->view.bytes(), buffer, flags);
}

inline PyType_Slot fetched_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(export_fetched)},
                                      {0, nullptr}};

inline nb::bytes to_bytes(const std::string& text) { return nb::bytes(text.data(), text.size()); }

// ---- Request

struct PyRequest {
  RequestHandle handle;  // of a large put: first its reservation, from write() on its sealing

  bool wait(double timeout_s) {
    const RequestHandle waited = handle;  // another thread may write() meanwhile
    const Duration timeout = to_duration(timeout_s);
    const nb::gil_scoped_release released;
    return waited->wait(timeout);
  }

  // None for what only ends, Fetched for a get, the members' indices for a reduce.
  nb::object result() {
    auto outcome = [&] {
      const RequestHandle taken = handle;
      const nb::gil_scoped_release released;  // it maps the object
      return taken->take();
    }();
    if (!outcome) raise_error(outcome.error());
    if (auto* view = std::get_if<View>(&*outcome)) return nb::cast(PyFetched(std::move(*view)));
    if (auto* reduced = std::get_if<Reduced>(&*outcome)) return nb::cast(reduced->members);
    return nb::none();
  }

  void cancel() {
    const RequestHandle cancelled = handle;
    const nb::gil_scoped_release released;
    cancelled->cancel();
  }
};

inline PyRequest wrap(Result<RequestHandle> handle) { return {unwrap(std::move(handle))}; }

// ---- Unsealed: a reserved range as a buffer

struct PyUnsealed {
  std::unique_ptr<Unsealed> range;

  explicit PyUnsealed(std::unique_ptr<Unsealed> mapped) : range(std::move(mapped)) {}
  PyUnsealed(PyUnsealed&&) noexcept = default;
  PyUnsealed& operator=(PyUnsealed&&) = delete;
  ~PyUnsealed() {
    if (range == nullptr) return;
    const nb::gil_scoped_release released;
    range.reset();
  }

  PyRequest seal() {
    auto sealing = [&] {
      const nb::gil_scoped_release released;
      return range->seal();
    }();
    return wrap(std::move(sealing));
  }
};

inline int export_unsealed(PyObject* self, Py_buffer* buffer, int flags) {
  const auto bytes = nb::inst_ptr<PyUnsealed>(nb::handle(self))->range->bytes();
  return fill_buffer(self, bytes, buffer, flags);
}

inline PyType_Slot unsealed_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(export_unsealed)},
                                       {0, nullptr}};

inline void bind_handles(nb::module_& m) {
  nb::class_<PyFetched>(m, "Fetched", nb::type_slots(fetched_slots),
                        "A received object; a writable buffer that is private to this process.")
      .def_prop_ro("layout", [](PyFetched& self) { return to_bytes(self.view.layout()); })
      .def_prop_ro("incarnation", [](PyFetched& self) { return self.view.incarnation().value; })
      .def_prop_ro("size_bytes", [](PyFetched& self) { return self.view.bytes().size(); })
      .def_prop_ro("is_mapped", [](PyFetched& self) { return self.view.is_mapped(); });
  nb::class_<PyRequest>(m, "Request", "One pending operation of a client.")
      .def("wait", &PyRequest::wait, "timeout_s"_a,
           "Wait; True when the request is finished, either way.")
      .def("result", &PyRequest::result, nb::sig("def result(self) -> None | Fetched | list[int]"),
           "Return how it ended, or raise. A Fetched can be taken once.")
      .def("cancel", &PyRequest::cancel, "Give blocks, waits and an unwritten range back.")
      .def_prop_ro(
          "id", [](PyRequest& self) { return self.handle->id().value; },
          "Its number among the client's requests; write() begins another one.");
  nb::class_<PyUnsealed>(m, "Unsealed", nb::type_slots(unsealed_slots),
                         "The range of a reserved object; a writable buffer, and shared with the "
                         "node until it is sealed. Dropped unsealed, the put is cancelled.")
      .def("seal", &PyUnsealed::seal,
           "Let everybody get the object: the request ends when they may. What is written from now "
           "on stays in this process.")
      .def_prop_ro("size_bytes", [](PyUnsealed& self) { return self.range->bytes().size(); });
}

}  // namespace hoplite

// SPDX-License-Identifier: Apache-2.0
// The handles of a client in Python: requests, and memory as buffers. Used by module.cc only. Every
// function needs the GIL, and releases it where it may wait, map or unmap.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <variant>

#include "bindings/convert.h"
#include "bindings/lifetime.h"
#include "bindings/versions.h"
#include "client/client.h"

namespace hoplite {

using namespace nb::literals;

// ---- Fetched: a received object as a buffer

struct PyFetched : Handle {
  std::shared_ptr<View> view;

  explicit PyFetched(View fetched) {
    const bool is_mapped = fetched.is_mapped();
    view = share(std::make_unique<View>(std::move(fetched)), is_mapped);
  }
};

inline int export_fetched(PyObject* self, Py_buffer* buffer, int flags) {
  const auto& view = nb::inst_ptr<PyFetched>(nb::handle(self))->view;
  return fill_buffer(view, view->bytes(), buffer, flags);
}

inline PyType_Slot fetched_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(export_fetched)},
                                      {0, nullptr}};

// Calls `act` without the GIL.
template <typename Act>
auto call_without_gil(Act act) {
  const WithoutGil released;
  return act();
}

inline nb::bytes to_bytes(const std::string& text) { return nb::bytes(text.data(), text.size()); }

// ---- Request

[[noreturn]] inline void raise_reduce_error(const ReduceFailed& failed) {
  const nb::object type = error_class(Code::kReduceFailed);
  const nb::object error = type(to_text(failed.text), "lost"_a = failed.lost);
  PyErr_SetObject(type.ptr(), error.ptr());
  throw nb::python_error();
}

struct PyRequest : Handle {
  RequestHandle handle;  // of a large put: first its reservation, from write() on its sealing

  explicit PyRequest(RequestHandle request) : handle(std::move(request)) {}

  bool wait(double timeout_s) {
    const RequestHandle waited = handle;  // another thread may write() meanwhile
    const Duration timeout = to_duration(timeout_s);
    return call_without_gil([&] { return waited->wait(timeout); });
  }

  // Returns None for a put, a write, a delete or a publication, Fetched for a get, the members'
  // indices for a reduce, tuples for the other requests about channels.
  nb::object result() {
    const RequestHandle finished = handle;
    auto outcome = call_without_gil([&] { return finished->take(); });  // it maps the object
    if (!outcome) raise_error(outcome.error());
    if (auto* view = std::get_if<View>(&*outcome)) return nb::cast(PyFetched(std::move(*view)));
    if (auto* reduced = std::get_if<Reduced>(&*outcome)) return nb::cast(reduced->members);
    if (auto* failed = std::get_if<ReduceFailed>(&*outcome)) raise_reduce_error(*failed);
    if (auto* taken = std::get_if<TermTaken>(&*outcome)) return to_tuple(*taken);
    if (auto* seen = std::get_if<VersionSeen>(&*outcome)) return to_tuple(seen->version);
    if (auto* refused = std::get_if<VersionRefused>(&*outcome)) raise_refusal(*refused);
    if (auto* listed = std::get_if<ChannelsListed>(&*outcome)) return to_list(listed->rows);
    return nb::none();
  }

  void cancel() {
    call_without_gil([cancelled = handle] { cancelled->cancel(); });
  }
};

inline PyRequest wrap(Result<RequestHandle> handle) { return PyRequest(unwrap(std::move(handle))); }

// ---- Unsealed: a reserved range as a buffer

struct PyUnsealed : Handle {
  std::shared_ptr<Unsealed> range;

  explicit PyUnsealed(std::unique_ptr<Unsealed> mapped) : range(share(std::move(mapped), true)) {}

  PyRequest seal() {
    return wrap(call_without_gil([sealed = range] { return sealed->seal(); }));
  }
  void report(std::uint64_t upto_bytes) {
    unwrap(call_without_gil([written = range, upto_bytes] { return written->report(upto_bytes); }));
  }
};

inline int export_unsealed(PyObject* self, Py_buffer* buffer, int flags) {
  const auto& range = nb::inst_ptr<PyUnsealed>(nb::handle(self))->range;
  return fill_buffer(range, range->bytes(), buffer, flags);
}

inline PyType_Slot unsealed_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(export_unsealed)},
                                       {0, nullptr}};

inline void bind_handles(nb::module_& m) {
  nb::class_<PyFetched>(m, "Fetched", nb::type_slots(fetched_slots),
                        "A received object; a writable buffer that is private to this process.")
      .def_prop_ro("layout", [](PyFetched& self) { return to_bytes(self.view->layout()); })
      .def_prop_ro("incarnation", [](PyFetched& self) { return self.view->incarnation().value; })
      .def_prop_ro("size_bytes", [](PyFetched& self) { return self.view->bytes().size(); })
      .def_prop_ro("block_bytes", [](PyFetched& self) { return self.view->block_bytes(); })
      .def_prop_ro("is_mapped", [](PyFetched& self) { return self.view->is_mapped(); })
      .def_prop_ro("ready_bytes", [](PyFetched& self) { return self.view->ready_bytes(); })
      .def_prop_ro("place", [](PyFetched& self) { return self.view->place(); });
  nb::class_<PyRequest>(m, "Request", "One pending operation of a client.")
      .def("wait", &PyRequest::wait, "timeout_s"_a,
           "Wait; True when the request is finished, either way.")
      .def("result", &PyRequest::result,
           nb::sig("def result(self) -> None | Fetched | list[typing.Any] | "
                   "tuple[typing.Any, ...]"),
           "Return how it ended, or raise. A Fetched can be taken once.")
      .def("cancel", &PyRequest::cancel, "Give blocks, waits and an unwritten range back.")
      .def_prop_ro(
          "id", [](PyRequest& self) { return self.handle->id().value; },
          "Its number among the client's requests; write() begins another one.");
  nb::class_<PyUnsealed>(m, "Unsealed", nb::type_slots(unsealed_slots),
                         "The range of a reserved object; a writable buffer, and shared with the "
                         "node until it is sealed. Dropped unsealed, the put is cancelled.")
      .def("seal", &PyUnsealed::seal,
           "Let all clients get the object: the request ends when they may. What is written from "
           "now on stays in this process.")
      .def("report", &PyUnsealed::report, "upto_bytes"_a,
           "Let the other nodes have the first bytes, which stay as they are.")
      .def_prop_ro("size_bytes", [](PyUnsealed& self) { return self.range->bytes().size(); });
}

}  // namespace hoplite

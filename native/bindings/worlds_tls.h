// SPDX-License-Identifier: Apache-2.0
// TLS of connections that Python begins and worlds go on with: a session is greeted and introduced
// here, and then moves to an edge or a watch. Used by worlds.cc only; every function needs the GIL,
// which is what makes a session one thread's at a time.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "bindings/convert.h"
#include "bindings/lifetime.h"
#include "io/sockets/tls.h"

namespace hoplite::worlds {

using namespace nb::literals;

class PyTlsEnd : public Handle {
 public:
  explicit PyTlsEnd(std::unique_ptr<TlsSession> tls) : session_(std::move(tls)) {}

  nb::bytes receive(int fd, std::size_t size_bytes) {
    Bytes into(size_bytes);
    const iovec part{into.data(), into.size()};
    const std::size_t got = unwrap(session().receive(fd, {&part, 1}, ReadAhead::kNone));
    return nb::bytes(into.data(), got);
  }
  std::size_t send(int fd, const nb::bytes& data) {
    const iovec part{const_cast<void*>(data.data()), data.size()};
    return unwrap(open_session().send(fd, {&part, 1}));
  }
  void flush(int fd) { unwrap(session().flush(fd)); }
  bool is_open() { return session().is_open(); }
  bool has_unsent() { return session().has_unsent(); }
  nb::bytes binding() {
    const Bytes made = open_session().binding();
    return nb::bytes(made.data(), made.size());
  }
  // For C++ to go on with.
  std::unique_ptr<TlsSession> release() {
    [[maybe_unused]] const TlsSession& checked = open_session();
    return std::move(session_);
  }

 private:
  TlsSession& session() {
    if (session_ == nullptr) {
      raise_error({Code::kInvalidArgument, "this session has moved on; use what has it"});
    }
    return *session_;
  }
  TlsSession& open_session() {
    if (!session().is_open()) {
      raise_error({Code::kInvalidArgument, "this session is not open; receive until it is"});
    }
    return *session_;
  }
  std::unique_ptr<TlsSession> session_;
};

struct PyTlsContext : Handle {
  TlsContext context;

  PyTlsContext(std::string certificate, std::string key, std::string authority)
      : context(unwrap(
            TlsContext::open({std::move(certificate), std::move(key), std::move(authority)}))) {}
  PyTlsEnd begin(bool dials) {
    return PyTlsEnd(context.begin(dials ? TlsSession::Side::kDials : TlsSession::Side::kListens));
  }
};

inline std::unique_ptr<TlsSession> release_session(PyTlsEnd* session) {
  return session == nullptr ? nullptr : session->release();
}

inline void bind_tls(nb::module_& m) {
  nb::class_<PyTlsEnd>(
      m, "TlsEnd",
      "One end of TLS over a connection; once it is open an edge or a watch may take "
      "it over.")
      .def("receive", &PyTlsEnd::receive, "fd"_a, "size_bytes"_a,
           "Greet as far as that goes, and return at most so many bytes; none: nothing now.")
      .def("send", &PyTlsEnd::send, "fd"_a, "data"_a,
           "Return how many bytes were taken; some of them may be unsent.")
      .def("flush", &PyTlsEnd::flush, "fd"_a, "Send what is unsent, as far as that goes.")
      .def_prop_ro("is_open", &PyTlsEnd::is_open, "Whether the greeting is over.")
      .def_prop_ro("has_unsent", &PyTlsEnd::has_unsent)
      .def_prop_ro("binding", &PyTlsEnd::binding,
                   "32 bytes that both ends of this session have, and no other session.");
  nb::class_<PyTlsContext>(m, "TlsContext", "What sessions of TLS begin with: the texts of PEM.")
      .def(nb::init<std::string, std::string, std::string>(), "certificate"_a, "key"_a,
           "authority"_a)
      .def("begin", &PyTlsContext::begin, nb::kw_only(), "dials"_a);
}

}  // namespace hoplite::worlds

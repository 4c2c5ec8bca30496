// SPDX-License-Identifier: Apache-2.0
#include "bindings/worlds.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/convert.h"
#include "bindings/handles.h"
#include "bindings/lifetime.h"
#include "bindings/worlds_handles.h"
#include "bindings/worlds_nccl.h"
#include "bindings/worlds_tls.h"
#include "world/pipes/fake_pipe.h"
#include "world/pipes/ring_pipe.h"
#include "world/pipes/socket_pipe.h"
#include "world/progress.h"
#include "world/world.h"

namespace hoplite::worlds {
namespace {

using namespace nb::literals;

int export_received(PyObject* self, Py_buffer* buffer, int flags) {
  const OperationHandle& operation = nb::inst_ptr<PyReceived>(nb::handle(self))->operation;
  return fill_buffer(operation, {operation->data.get(), operation->content.size_bytes}, buffer,
                     flags);
}

PyType_Slot received_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(export_received)},
                                {0, nullptr}};

// Returns None if the operation is complete already.
nb::object wrap_operation(const PyWorld& world, Result<OperationHandle> result,
                          std::optional<LentBytes> lent) {
  OperationHandle operation = unwrap(std::move(result));
  if (operation == nullptr) return nb::none();
  return nb::cast(PyOperation(world, std::move(operation), std::move(lent)));
}

std::uint8_t to_operation(int number) {
  return static_cast<std::uint8_t>(to_enum<std::uint8_t>(number, 256, "operation"));
}

nb::object send(const PyWorld& self, std::uint32_t rank, std::uint64_t key, int operation,
                std::string dtype, std::vector<std::uint64_t> shape, const nb::handle& data,
                bool is_notice) {
  LentBytes lent(data, PyBUF_SIMPLE);
  Content content;
  content.key = MatchKey{key};
  content.operation = to_operation(operation);
  content.is_notice = is_notice;
  content.size_bytes = lent.bytes().size();
  if (dtype.size() > kDTypeBytesMax || shape.size() > kDimensionsMax) {
    raise_error({Code::kInvalidArgument,
                 "the dtype's name or the shape is too long for a message; "
                 "send a view of another dtype or shape"});
  }
  content.dtype = std::move(dtype);
  content.shape = std::move(shape);
  auto sent = [&] {
    const WithoutGil released;
    return self.world->send(Rank{rank}, std::move(content), lent.bytes());
  }();
  return wrap_operation(self, std::move(sent), std::move(lent));
}

nb::object receive(const PyWorld& self, std::uint32_t rank, std::uint64_t key, int operation,
                   std::string dtype, const nb::handle& into) {
  LentBytes lent(into, PyBUF_WRITABLE);
  Wanted wanted{MatchKey{key}, to_operation(operation), std::move(dtype), lent.bytes()};
  auto received = [&] {
    const WithoutGil released;
    return self.world->receive(Rank{rank}, std::move(wanted));
  }();
  return wrap_operation(self, std::move(received), std::move(lent));
}

nb::object receive_new(const PyWorld& self, std::uint32_t rank, std::uint64_t key, int operation) {
  Wanted wanted{MatchKey{key}, to_operation(operation), "", std::nullopt};
  auto received = [&] {
    const WithoutGil released;
    return self.world->receive(Rank{rank}, std::move(wanted));
  }();
  return wrap_operation(self, std::move(received), std::nullopt);
}

void add_edge(const PyWorld& self, std::uint32_t rank, std::uint64_t watch, int fd, int memory,
              bool is_first, PyTlsEnd* tls) {
  UniqueFd socket(fd);
  UniqueFd shared(memory);
  std::unique_ptr<TlsSession> session = release_session(tls);
  auto added = [&]() -> Result<void> {
    const WithoutGil released;
    std::unique_ptr<Pipe> pipe;
    if (shared.is_open()) {
      auto ring = RingPipe::open(std::move(socket), std::move(shared),
                                 is_first ? RingSide::kFirst : RingSide::kSecond);
      if (!ring) return ring.error();
      pipe = std::move(*ring);
    } else {
      if (auto prepared = SocketPipe::prepare(socket.value()); !prepared) return prepared.error();
      pipe = std::make_unique<SocketPipe>(Stream(std::move(socket), std::move(session)));
    }
    if (auto edge = self.world->add_edge(Rank{rank}, std::move(pipe)); !edge) return edge;
    self.progress->add_dependent(self.world, Rank{rank}, WatchId{watch});
    return {};
  }();
  unwrap(std::move(added));
}

struct PyFakeWire : Handle {
  std::shared_ptr<FakeWire> wire;
  PyFakeWire() : wire(unwrap(FakeWire::open())) {}
};

FakeSide side_of(bool is_first) { return is_first ? FakeSide::kFirst : FakeSide::kSecond; }

void end_fake(PyFakeWire& self, bool at_first, int cause) {
  const std::array<Code, 4> codes = {Code::kOk, Code::kPeerLost, Code::kSystem, Code::kTimeout};
  const int number = to_enum<int>(cause, static_cast<int>(codes.size()), "cause");
  if (number == 0) raise_error({Code::kInvalidArgument, "an end has a cause, 1 to 3"});
  self.wire->end(side_of(at_first), codes.at(static_cast<std::size_t>(number)));
}

void add_fake_edge(const PyWorld& self, std::uint32_t rank, const PyFakeWire& wire, bool is_first) {
  unwrap(
      self.world->add_edge(Rank{rank}, std::make_unique<FakePipe>(wire.wire, side_of(is_first))));
}

// A peer's text may be invalid UTF-8, or end amid a character.
nb::str to_text(const std::string& text) {
  return nb::steal<nb::str>(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
}

using PyEvent = std::tuple<int, std::uint64_t, std::uint64_t, int, int, nb::str, std::int64_t>;

std::vector<PyEvent> take_events(Progress& progress) {
  std::vector<PyEvent> rows;
  for (WorldEvent& event : progress.take_events()) {
    rows.emplace_back(static_cast<int>(event.kind), event.world, event.watch.value,
                      event.rank ? static_cast<int>(event.rank->value) : -1, event.cause,
                      to_text(event.text), event.at.ns);
  }
  return rows;
}

struct PyPort : Handle {
  std::shared_ptr<Progress> progress;

  PyPort(double suspect_s, double dead_s, double cut_s) {
    auto started = [&] {
      const WithoutGil released;
      LivenessLimits limits;
      limits.suspect = to_duration(suspect_s);
      limits.dead = to_duration(dead_s);
      limits.cut = to_duration(cut_s);
      return Progress::start(limits);
    }();
    progress = unwrap(std::move(started));
  }
};

void bind_fake(nb::module_& m) {
  nb::class_<PyFakeWire>(m, "FakeWire", "What is between two members of one process, for tests.")
      .def(nb::init<>())
      .def(
          "hold", [](PyFakeWire& self) { self.wire->hold(); },
          "From now on, what is written waits.")
      .def(
          "release", [](PyFakeWire& self) { self.wire->release(); }, "Let everything through.")
      .def(
          "deliver",
          [](PyFakeWire& self, bool to_first, std::uint64_t size_bytes) {
            return self.wire->deliver(side_of(to_first), size_bytes);
          },
          nb::kw_only(), "to_first"_a, "size_bytes"_a,
          "Let so many bytes through to one end; returns how many there were.")
      .def("end", &end_fake, nb::kw_only(), "at_first"_a, "cause"_a,
           "One end finds that the other has died (1), is cut off (2) or frozen (3).");
}

void bind_port(nb::module_& m) {
  nb::class_<PyPort>(m, "WorldPort",
                     "All worlds of this process: one thread that moves their "
                     "bytes, one that sees processes die. For any thread.")
      .def(nb::init<double, double, double>(), nb::kw_only(), "suspect_s"_a, "dead_s"_a, "cut_s"_a)
      .def(
          "watch",
          [](PyPort& self, int fd, PyTlsEnd* tls) {
            UniqueFd connection(fd);
            Stream stream(std::move(connection), release_session(tls));
            return unwrap(self.progress->watch(std::move(stream))).value;
          },
          "fd"_a, nb::kw_only(), "tls"_a.none() = nb::none(),
          "Take over a connection whose other end is watched as well; its number.")
      .def(
          "forget",
          [](PyPort& self, std::uint64_t watch) { self.progress->forget(WatchId{watch}); },
          "watch"_a, "Say Goodbye on it and close it.")
      .def(
          "open_world",
          [](PyPort& self, std::string name, std::uint64_t epoch, std::uint32_t rank,
             std::uint32_t size) {
            return PyWorld(self.progress, unwrap(self.progress->open_world(std::move(name), epoch,
                                                                           Rank{rank}, size)));
          },
          "name"_a, "epoch"_a, "rank"_a, "size"_a)
      .def_prop_ro("events_fd", [](PyPort& self) { return self.progress->events_fd(); })
      .def(
          "take_events", [](PyPort& self) { return take_events(*self.progress); },
          "Return (kind, world, watch, rank, cause, text, monotonic_ns) of each event.")
      .def(
          "close",
          [](PyPort& self) {
            const WithoutGil released;
            self.progress->close();
          },
          "Close all worlds and end the threads. Idempotent.");
}

void bind_transfers(nb::class_<PyWorld>& edges) {
  edges
      .def("send", &send, "rank"_a, "key"_a, "operation"_a, "dtype"_a, "shape"_a, "data"_a,
           nb::kw_only(), "is_notice"_a = false,
           nb::sig("def send(self, rank: int, key: int, operation: int, dtype: str, shape: "
                   "collections.abc.Sequence[int], data: object, *, is_notice: bool = False) -> "
                   "WorldOperation | None"),
           "Send a buffer, or in one a notice of where it lies. None: it is done.")
      .def("receive", &receive, "rank"_a, "key"_a, "operation"_a, "dtype"_a, "into"_a,
           nb::sig("def receive(self, rank: int, key: int, operation: int, dtype: str, into: "
                   "object) -> WorldOperation | None"),
           "Receive into a buffer; a notice comes beside it. None: it is done.")
      .def("receive_new", &receive_new, "rank"_a, "key"_a, "operation"_a,
           nb::sig("def receive_new(self, rank: int, key: int, operation: int) -> WorldOperation"),
           "Receive what comes, into memory of its own.");
}

void bind_edges(nb::module_& m) {
  nb::class_<PyWorld> edges(m, "WorldEdges", "One world: this member's edges to the others.");
  bind_transfers(edges);
  edges
      .def("add_edge", &add_edge, "rank"_a, "watch"_a, "fd"_a, nb::kw_only(), "memory"_a = -1,
           "is_first"_a = false, "tls"_a.none() = nb::none(),
           "Take over a connection to a member, with its TLS, and memory that both share, if there "
           "is any.")
      .def("add_fake_edge", &add_fake_edge, "rank"_a, "wire"_a, nb::kw_only(), "is_first"_a,
           "Reach a member of this process by a wire whose faults are decided elsewhere.")
      .def(
          "abort",
          [](PyWorld& self, int cause, const std::string& text) {
            const Cause known = to_enum<Cause>(cause, kCauseCount, "cause");
            const WithoutGil released;
            self.world->abort(known, text);
          },
          "cause"_a, "text"_a, "Break it at once; the others hear of it.")
      .def(
          "leave",
          [](PyWorld& self) {
            auto leaving = [&] {
              const WithoutGil released;
              return self.world->leave();
            }();
            return PyOperation(self, std::move(leaving), std::nullopt);
          },
          "Say Goodbye after all that is to be sent; done when it has reached the others.")
      .def(
          "end",
          [](PyWorld& self) -> std::optional<std::tuple<int, int, nb::str>> {
            const auto end = [&] {
              const WithoutGil released;
              return self.world->end();
            }();
            if (!end) return std::nullopt;
            return std::tuple(static_cast<int>(end->cause), static_cast<int>(end->rank.value),
                              to_text(end->text));
          },
          "Return (cause, rank, text) once it is broken.")
      .def(
          "transport",
          [](PyWorld& self, std::uint32_t rank) {
            const char* const name = self.world->transport(Rank{rank});
            return std::string(name == nullptr ? "" : name);
          },
          "rank"_a)
      .def(
          "close",
          [](PyWorld& self) {
            const WithoutGil released;
            self.world->close();
          },
          "Give all descriptors and memory back; what is pending is broken. Idempotent.")
      .def_prop_ro("number", [](PyWorld& self) { return self.world->number(); })
      .def_prop_ro(
          "is_seen_off", [](PyWorld& self) { return self.world->is_goodbye_delivered(); },
          "After leave or an end: whether all have our last word, or are gone.")
      .def_prop_ro("has_left", [](PyWorld& self) {
        std::vector<std::uint32_t> ranks;
        for (const Rank rank : self.world->departed_ranks()) ranks.push_back(rank.value);
        return ranks;
      });
}

void bind_operations(nb::module_& m) {
  nb::class_<PyReceived>(m, "Received", nb::type_slots(received_slots),
                         "What a member sent; a writable buffer.")
      .def_prop_ro("dtype", [](PyReceived& self) { return to_text(self.operation->content.dtype); })
      .def_prop_ro("is_notice", [](PyReceived& self) { return self.operation->content.is_notice; })
      .def_prop_ro(
          "shape",
          [](PyReceived& self) {
            const std::vector<std::uint64_t>& shape = self.operation->content.shape;
            nb::list sizes;
            for (const std::uint64_t size : shape) sizes.append(size);
            return nb::tuple(sizes);
          },
          nb::for_getter(nb::sig("def shape(self) -> tuple[int, ...]")));
  nb::class_<PyCompletions>(m, "Completions", "Where an event loop hears of what has ended.")
      .def(nb::init<>())
      .def_prop_ro("fd", [](PyCompletions& self) { return self.completions->fd(); })
      .def(
          "take", [](PyCompletions& self) { return self.completions->take(); },
          "Return the tokens of all operations that have ended since.")
      .def(
          "push", [](PyCompletions& self, std::uint64_t token) { self.completions->push(token); },
          "token"_a, "Have a token come out, for what has ended elsewhere.");
  nb::class_<PyOperation>(m, "WorldOperation",
                          "One send, receive or leave under way. Dropping it cancels it; its "
                          "buffer is the caller's again when its state is not 0.")
      .def_prop_ro("state", &PyOperation::state, "0 pending, 1 done, 2 broken, 3 cancelled.")
      .def("wait", &PyOperation::wait, "timeout_s"_a, "Wait; True when it has ended, either way.")
      .def("received", &PyOperation::received_data,
           nb::sig("def received(self) -> Received | None"),
           "What a receive_new has brought, once it is done.")
      .def("cancel", &PyOperation::cancel, "Take it back; False: it had ended before.")
      .def_prop_ro("has_moved", &PyOperation::has_moved, "Whether any of its bytes have.")
      .def("notify", &PyOperation::notify, "completions"_a, "token"_a,
           "Have the token come out there when it ends; False: it has ended already.");
}

}  // namespace

void bind_worlds(nb::module_& m) {
  m.attr("WORLD_MEMORY_BYTES") = kRingsBytes;
  bind_tls(m);
  bind_operations(m);
  bind_fake(m);
  bind_edges(m);
  bind_port(m);
  bind_nccl(m);
}

}  // namespace hoplite::worlds

// SPDX-License-Identifier: Apache-2.0
// hoplite_ray._native: convert, release the GIL, call, map the error. Nothing else. The reactor
// thread of NativeNode never takes the GIL.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/convert.h"
#include "bindings/deltas.h"
#include "bindings/handles.h"
#include "bindings/kernels.h"
#include "bindings/lifetime.h"
#include "bindings/rows.h"
#include "bindings/worlds.h"
#include "client/client.h"
#include "node/node.h"

namespace hoplite {
namespace {

using namespace nb::literals;

// ---- Client

using PyParts = std::vector<std::pair<int, std::uint64_t>>;
// source_bytes, offset, reader; layout and parts of the result.
using PyShare = std::tuple<std::uint64_t, std::uint64_t, std::uint32_t, nb::bytes, PyParts>;

std::vector<Part> to_parts(const PyParts& parts) {
  std::vector<Part> converted;
  for (const auto& [dtype, size_bytes] : parts) {
    converted.push_back({to_enum<DType>(dtype, kDTypeCount, "dtype"), size_bytes});
  }
  return converted;
}

using PyAttempt = std::pair<nb::bytes, std::uint32_t>;
using PyRuns = std::tuple<std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t,
                          std::uint64_t>;  // the fields of StridedRuns

Attempt to_attempt(const PyAttempt& attempt) {
  return {to_object_id(attempt.first), Incarnation{attempt.second}};
}

struct PyClient : Handle {
  std::unique_ptr<Client> client;

  explicit PyClient(const std::string& socket_path) {
    if (is_ending) raise_error({Code::kNodeLost, "this process ends; it can't attach to a node"});
    auto attached = [&] {
      const WithoutGil released;
      return Client::attach(socket_path);
    }();
    client = unwrap(std::move(attached));
  }

  // Calls `act` without the GIL.
  template <typename Act>
  auto without_gil(Act act) {
    const WithoutGil no_gil;
    return act(*client);
  }

  PyRequest put(const nb::bytes& object_id, std::uint32_t incarnation, const nb::bytes& layout,
                const PyParts& parts, const nb::sequence& data) {
    const ObjectId object = to_object_id(object_id);
    std::vector<Part> runs = to_parts(parts);
    std::string description(layout.c_str(), layout.size());
    const BorrowedBuffers buffers(data);
    return wrap(without_gil([&](Client& c) {
      return c.put(object, Incarnation{incarnation}, std::move(description), std::move(runs),
                   buffers.spans());
    }));
  }

  void write(PyRequest& request, const nb::sequence& data) {
    const BorrowedBuffers buffers(data);
    const RequestHandle put = request.handle;
    bool is_interrupted = false;  // by a signal whose Python handler has raised
    auto sealing = without_gil([&](Client& c) {
      return c.write(*put, buffers.spans(), [&is_interrupted] {
        const nb::gil_scoped_acquire gil;
        return is_interrupted = PyErr_CheckSignals() != 0;
      });
    });
    if (is_interrupted) throw nb::python_error();
    request.handle = unwrap(std::move(sealing));
  }

  PyRequest reserve(const nb::bytes& object_id, std::uint32_t incarnation, const nb::bytes& layout,
                    const PyParts& parts, std::uint64_t size_bytes) {
    const ObjectId object = to_object_id(object_id);
    std::vector<Part> runs = to_parts(parts);
    std::string description(layout.c_str(), layout.size());
    return wrap(without_gil([&](Client& c) {
      return c.reserve(object, Incarnation{incarnation}, std::move(description), std::move(runs),
                       size_bytes);
    }));
  }

  PyUnsealed map(PyRequest& request) {
    const RequestHandle put = request.handle;
    return PyUnsealed(unwrap(without_gil([&](Client& c) { return c.map(put); })));
  }

  PyRequest get(const nb::bytes& object_id, bool exists, std::optional<std::uint64_t> upto_bytes) {
    const ObjectId object = to_object_id(object_id);
    const std::uint64_t upto = upto_bytes.value_or(kAllBytes);
    return wrap(without_gil([&](Client& c) { return c.get(object, exists, upto); }));
  }

  PyRequest rebuild(const nb::bytes& object_id, std::uint32_t incarnation, const nb::bytes& layout,
                    const PyParts& parts, std::uint32_t block_bytes, std::uint32_t crc32c,
                    const PyAttempt& base, const std::vector<PyAttempt>& deltas) {
    RebuildCommand recipe{.object = to_object_id(object_id),
                          .incarnation = Incarnation{incarnation},
                          .meta = {},
                          .crc32c = crc32c,
                          .base = to_attempt(base),
                          .deltas = {}};
    recipe.meta.parts = to_parts(parts);
    for (const Part& part : recipe.meta.parts) recipe.meta.size_bytes += part.size_bytes;
    recipe.meta.block_bytes = block_bytes;
    recipe.meta.layout = std::string(layout.c_str(), layout.size());
    for (const PyAttempt& delta : deltas) recipe.deltas.push_back(to_attempt(delta));
    return wrap(without_gil([&](Client& c) { return c.rebuild(std::move(recipe)); }));
  }

  PyRequest excerpt(const nb::bytes& object_id, const PyAttempt& source, const nb::bytes& layout,
                    const PyParts& parts, const std::vector<PyRuns>& runs, bool exists) {
    Excerpt wanted{to_object_id(object_id), {}, to_attempt(source), {}};
    wanted.meta.parts = to_parts(parts);
    for (const Part& part : wanted.meta.parts) wanted.meta.size_bytes += part.size_bytes;
    wanted.meta.layout = std::string(layout.c_str(), layout.size());
    for (const auto& [into, from, run_bytes, stride_bytes, count] : runs)
      wanted.runs.push_back({into, from, run_bytes, stride_bytes, count});
    return wrap(without_gil([&](Client& c) { return c.excerpt(std::move(wanted), exists); }));
  }

  std::vector<PyRequest> gather(const std::vector<nb::bytes>& object_ids, bool exist) {
    std::vector<ObjectId> objects(object_ids.size());
    std::transform(object_ids.begin(), object_ids.end(), objects.begin(), to_object_id);
    auto handles = unwrap(without_gil([&](Client& c) { return c.gather(objects, exist); }));
    std::vector<PyRequest> requests;
    requests.reserve(handles.size());
    for (RequestHandle& handle : handles) requests.emplace_back(std::move(handle));
    return requests;
  }

  std::optional<std::size_t> wait_all(const std::vector<PyRequest*>& requests, double timeout_s) {
    std::vector<RequestHandle> handles;
    handles.reserve(requests.size());
    for (const PyRequest* request : requests) handles.push_back(request->handle);
    const Duration timeout = to_duration(timeout_s);
    return without_gil([&](Client& c) { return c.wait_all(handles, timeout); });
  }

  PyRequest remove(const nb::bytes& object_id, std::uint32_t upto) {
    const ObjectId object = to_object_id(object_id);
    return wrap(without_gil([&](Client& c) { return c.remove(object, Incarnation{upto}); }));
  }

  PyRequest keep(const nb::bytes& object_id, std::uint32_t incarnation, std::uint8_t copies) {
    const ObjectId object = to_object_id(object_id);
    return wrap(
        without_gil([&](Client& c) { return c.keep(object, Incarnation{incarnation}, copies); }));
  }

  PyRequest orphan(const nb::bytes& object_id, std::uint32_t upto) {
    const ObjectId object = to_object_id(object_id);
    return wrap(without_gil([&](Client& c) { return c.orphan(object, Incarnation{upto}); }));
  }

  PyRequest echo() {
    return wrap(without_gil([](Client& c) { return c.echo(); }));
  }

  PyRequest reduce(const nb::bytes& target, int op, std::uint32_t source_count, std::uint32_t count,
                   bool everywhere, bool deterministic, const std::optional<PyShare>& share) {
    ReduceCommand wanted{.target = to_object_id(target),
                         .op = to_enum<ReduceOp>(op, kReduceOpCount, "op"),
                         .source_count = source_count,
                         .count = count,
                         .everywhere = everywhere,
                         .deterministic = deterministic};
    if (share) {
      const auto& [source_bytes, offset, reader, layout, parts] = *share;
      wanted.share = {source_bytes, offset, reader};
      wanted.meta.parts = to_parts(parts);
      for (const Part& part : wanted.meta.parts) wanted.meta.size_bytes += part.size_bytes;
      wanted.meta.layout = std::string(layout.c_str(), layout.size());
    }
    return wrap(without_gil([&](Client& c) { return c.reduce(wanted); }));
  }

  PyRequest take_term(const nb::bytes& channel) {
    const ObjectId id = to_object_id(channel);
    return wrap(without_gil([&](Client& c) { return c.take_term(id); }));
  }

  PyRequest publish(const nb::bytes& channel, const PyVersionNumber& number,
                    const nb::bytes& payload, bool is_end) {
    const ObjectId id = to_object_id(channel);
    Version version{to_version_number(number), is_end, {payload.c_str(), payload.size()}};
    return wrap(without_gil([&](Client& c) { return c.publish(id, std::move(version)); }));
  }

  PyRequest watch_channel(const nb::bytes& channel, const PyVersionNumber& newer_than, bool waits) {
    const ObjectId id = to_object_id(channel);
    const VersionNumber number = to_version_number(newer_than);
    return wrap(without_gil([&](Client& c) { return c.watch_channel(id, number, waits); }));
  }

  PyRequest list_channels(const nb::bytes& after) {
    const ObjectId last = to_object_id(after);
    return wrap(without_gil([&](Client& c) { return c.list_channels(last); }));
  }

  void note_read(const nb::bytes& channel, const PyVersionNumber& number, std::uint32_t process,
                 std::uint64_t version, std::uint64_t ordinal, std::uint64_t time_us) {
    const ReadCommand read{to_object_id(channel),
                           {process, to_version_number(number), version, ordinal, time_us}};
    unwrap(without_gil([&](Client& c) { return c.note_read(read); }));
  }

  void watch(PyRequest& request) {
    const RequestHandle watched = request.handle;
    unwrap(without_gil([&](Client& c) { return c.watch(*watched); }));
  }

  std::optional<std::uint64_t> next_finished(double timeout_s) {
    const Duration timeout = to_duration(timeout_s);
    const auto id = unwrap(without_gil([&](Client& c) { return c.next_finished(timeout); }));
    return id ? std::optional(id->value) : std::nullopt;
  }

  void reduce_source(const nb::bytes& target, std::uint32_t index, const nb::bytes& object_id,
                     std::uint32_t incarnation, bool confirmed) {
    const ObjectId into = to_object_id(target);
    const ObjectId source = to_object_id(object_id);
    unwrap(without_gil([&](Client& c) {
      return c.reduce_source(into, index, source, Incarnation{incarnation}, confirmed);
    }));
  }

  void reduce_source_failed(const nb::bytes& target, std::uint32_t index) {
    const ObjectId into = to_object_id(target);
    unwrap(without_gil([&](Client& c) { return c.reduce_source_failed(into, index); }));
  }
};

// ---- NativeNode

using PyMember = std::tuple<std::uint64_t, std::uint32_t, std::vector<std::string>>;
using PyEvent = std::tuple<std::string, std::uint64_t, std::uint32_t>;

struct PyNode : Handle {
  NodeOptions options;
  std::unique_ptr<Node> node;

  Node& running_node() {
    if (node == nullptr)
      raise_error({Code::kInvalidArgument, "the node is not started; call start()"});
    return *node;
  }

  void start() {
    if (node != nullptr)
      raise_error({Code::kInvalidArgument, "the node is started; make another one"});
    auto result = [&] {
      const WithoutGil released;
      return Node::start(options);
    }();
    node = unwrap(std::move(result));
  }

  void set_view(std::uint64_t epoch, const std::vector<PyMember>& members) {
    std::vector<Member> converted;
    converted.reserve(members.size());
    for (const auto& [node_id, incarnation, rails] : members) {
      converted.push_back({NodeId{node_id}, Incarnation{incarnation}, rails});
    }
    Node& self = running_node();
    const WithoutGil released;
    self.set_view(Epoch{epoch}, std::move(converted));
  }

  std::optional<PyEvent> next_event(double timeout_s) {
    Node& self = running_node();
    const Duration timeout = to_duration(timeout_s);
    const auto event = [&] {
      const WithoutGil released;
      return self.next_event(timeout);
    }();
    if (!event) return std::nullopt;
    return PyEvent{event_name(event->kind), event->node.value, event->incarnation.value};
  }

  nb::list objects(std::uint64_t limit, const std::vector<nb::bytes>& object_ids) {
    Node& self = running_node();
    ListCommand command{limit, 0};
    command.named.resize(object_ids.size());
    std::transform(object_ids.begin(), object_ids.end(), command.named.begin(), to_object_id);
    const auto rows = [&] {
      const WithoutGil released;
      return self.list(command).objects;
    }();
    nb::list listed;
    for (const ObjectRow& row : rows) listed.append(to_dict(row));
    return listed;
  }

  nb::list transfers(std::uint64_t limit) {
    Node& self = running_node();
    const auto rows = [&] {
      const WithoutGil released;
      return self.list({0, limit}).transfers;
    }();
    nb::list listed;
    for (const TransferRow& row : rows) listed.append(to_dict(row));
    return listed;
  }

  nb::object channels(const nb::bytes& after) {
    Node& self = running_node();
    ListCommand command{0, 0, kChannelRowsMax};
    command.channels_after = to_object_id(after);
    const auto rows = [&] {
      const WithoutGil released;
      return self.list(command).channels;
    }();
    return to_list(rows);
  }

  nb::dict moments(const nb::bytes& object_id, int digits) {
    Node& self = running_node();
    const ObjectPrefix prefix = to_prefix(object_id, digits);
    const auto told = [&] {
      const WithoutGil released;
      return self.list({0, 0, 0, prefix}).remembered;
    }();
    nb::list listed;
    for (const Moment& moment : told.moments) listed.append(to_dict(moment));
    nb::dict all;
    all["moments"] = std::move(listed);
    all["kept_max"] = told.kept_max;
    all["forgotten"] = told.forgotten;
    all["oldest_ns"] = told.oldest.ns;
    return all;
  }

  void stop() {
    if (node == nullptr) return;
    const WithoutGil released;
    node->stop();
  }
};

void construct_node(PyNode* self, std::uint64_t node_id, std::uint32_t incarnation,
                    std::string socket_path, std::vector<std::string> listen,
                    std::uint64_t arena_bytes, const nb::bytes& secret,
                    std::map<std::string, std::int64_t> options, std::string spill_directory,
                    std::tuple<std::string, std::string, std::string> tls) {
  NodeOptions given;
  given.node = NodeId{node_id};
  given.incarnation = Incarnation{incarnation};
  given.socket_path = std::move(socket_path);
  given.listen = std::move(listen);
  given.arena_bytes = arena_bytes;
  given.spill_directory = std::move(spill_directory);
  given.secret = std::string(secret.c_str(), secret.size());
  given.overrides = std::move(options);
  given.tls = std::make_from_tuple<TlsFiles>(std::move(tls));
  new (self) PyNode{{}, std::move(given), nullptr};
}

std::vector<std::string> error_classes() { return {kErrorClasses.begin(), kErrorClasses.end()}; }

void bind_node(nb::module_& m) {
  nb::class_<PyNode>(m, "NativeNode", "One node: owns the reactor thread and the arena.")
      .def("__init__", &construct_node, nb::kw_only(), "node_id"_a, "incarnation"_a,
           "socket_path"_a, "listen"_a, "arena_bytes"_a, "secret"_a, "options"_a,
           "spill_directory"_a = "", "tls"_a = std::tuple("", "", ""))
      .def("start", &PyNode::start, "Open sockets and arena and start the reactor thread.")
      .def(
          "rails", [](PyNode& self) { return self.running_node().rails(); },
          "Return the addresses of the rails.")
      .def("set_view", &PyNode::set_view, "epoch"_a, "members"_a,
           "Tell the node its members: (node id, incarnation, rails), oldest first.")
      .def(
          "next_event", &PyNode::next_event, "timeout_s"_a,
          "Wait for the next event, (\"peer_dead\" or \"drained\", node id, incarnation), or None.")
      .def(
          "stats", [](PyNode& self) { return self.running_node().stats(); },
          "Return the published counters by name.")
      .def(
          "drain", [](PyNode& self) { self.running_node().drain(); },
          "Hand over what only this node keeps; (\"drained\", node id, incarnation) follows.")
      .def("objects", &PyNode::objects, "limit"_a = 1000, "object_ids"_a = nb::make_tuple(),
           nb::sig("def objects(self, limit: int = 1000, "
                   "object_ids: collections.abc.Sequence[bytes] = ()) "
                   "-> list[dict[str, typing.Any]]"),
           "Return what is here, the largest first; or what of these objects is.")
      .def("transfers", &PyNode::transfers, "limit"_a = 1000,
           nb::sig("def transfers(self, limit: int = 1000) -> list[dict[str, typing.Any]]"),
           "Return what comes in, stripe by stripe, the largest first.")
      .def("channels", &PyNode::channels, "after"_a,
           nb::sig("def channels(self, after: bytes) -> list[dict[str, typing.Any]]"),
           "Return a page of the live version channels, those after that id, with their readers "
           "here.")
      .def("moments", &PyNode::moments, "object_id"_a, "digits"_a,
           nb::sig("def moments(self, object_id: bytes, digits: int) -> dict[str, typing.Any]"),
           "Return what the node remembers of objects whose ids begin with so many hex digits, and "
           "of the deaths of nodes.")
      .def("stop", &PyNode::stop, "Say goodbye to all peers and join the thread. Idempotent.");
}

// The gets of a client, and the waits for them.
void bind_gets(nb::class_<PyClient>& client) {
  client
      .def("get", &PyClient::get, "object_id"_a, "exists"_a = false, "upto_bytes"_a = nb::none(),
           "Get an object, which need not exist yet unless the caller knows that it `exists`. With "
           "`upto_bytes` it ends when as many leading bytes are here.")
      .def("rebuild", &PyClient::rebuild, "object_id"_a, nb::kw_only(), "incarnation"_a, "layout"_a,
           "parts"_a, "block_bytes"_a, "crc32c"_a, "base"_a, "deltas"_a,
           "Get an object that was put. A node that has all of the base makes it of the base and "
           "the deltas, the oldest first; any other node fetches it whole. Base and deltas are "
           "(object id, incarnation).")
      .def(
          "excerpt", &PyClient::excerpt, "object_id"_a, nb::kw_only(), "source"_a, "layout"_a,
          "parts"_a, "runs"_a, "exists"_a = false,
          "Get an object that is made of runs of `source`, (object id, incarnation), by a node "
          "that has it. A run is offset in the object, offset in the source, bytes, bytes from one "
          "to the next in the source, and their number. Without runs: ask what the source is.")
      .def("gather", &PyClient::gather, "object_ids"_a, "exist"_a = false,
           "Get several objects; the node is asked for all of them at once.")
      .def("wait_all", &PyClient::wait_all, "requests"_a, "timeout_s"_a,
           "Wait until all have finished (their number), or one has failed (its place among them); "
           "None after the timeout.");
}

void bind_client(nb::module_& m) {
  nb::class_<PyClient> client(m, "Client", "This process's attachment to its own node.");
  client.def(nb::init<const std::string&>(), "socket_path"_a)
      .def("put", &PyClient::put, "object_id"_a, "incarnation"_a, "layout"_a, "parts"_a, "data"_a,
           nb::sig("def put(self, object_id: bytes, incarnation: int, layout: bytes, "
                   "parts: collections.abc.Sequence[tuple[int, int]], "
                   "data: collections.abc.Sequence[typing_extensions.Buffer]) -> Request"),
           "Put an object of (dtype, bytes) parts, whose bytes are those of `data` one after the "
           "other; above INLINE_BYTES_MAX the request ends when write() may be called.")
      .def("write", &PyClient::write, "request"_a, "data"_a,
           nb::sig("def write(self, request: Request, "
                   "data: collections.abc.Sequence[typing_extensions.Buffer]) -> None"),
           "Write a reserved object; `request` then ends when it is sealed. Answers signals; if "
           "their handler raises, the put is cancelled.")
      .def("reserve", &PyClient::reserve, "object_id"_a, "incarnation"_a, "layout"_a, "parts"_a,
           "size_bytes"_a,
           "Reserve the range of a large object; the request ends when map() may be called.")
      .def("map", &PyClient::map, "request"_a,
           "Map the range that was reserved, to write into it.");
  bind_gets(client);
  client
      .def("delete", &PyClient::remove, "object_id"_a, "upto"_a = 0,
           "Delete an object everywhere; with `upto`, its incarnations up to that one.")
      .def("orphan", &PyClient::orphan, "object_id"_a, "upto"_a = 0,
           "Say that an object's owner has died: it may be read until its memory is needed.")
      .def("keep", &PyClient::keep, "object_id"_a, "incarnation"_a, "copies"_a,
           "Have several nodes keep an object that was put here, until it is deleted.")
      .def("echo", &PyClient::echo,
           "Ask for an answer that comes behind those that the node can give now.")
      .def("reduce", &PyClient::reduce, "target"_a, nb::kw_only(), "op"_a, "source_count"_a,
           "count"_a, "everywhere"_a = false, "deterministic"_a = false, "share"_a = nb::none(),
           "Combine the first `count` confirmed sources into `target`; of each its `share` only: "
           "bytes of a source, offset in it, the source on whose node it is folded, layout and "
           "parts.")
      .def("reduce_source", &PyClient::reduce_source, "target"_a, "index"_a, "object_id"_a,
           "incarnation"_a = 0, "confirmed"_a = true,
           "Confirm a source, in the order of arrival; or let the node do so once it is there.")
      .def("reduce_source_failed", &PyClient::reduce_source_failed, "target"_a, "index"_a,
           "Say that a source will never come.")
      .def("take_term", &PyClient::take_term, "channel"_a,
           "Take the newest term of a channel, which ends all older ones: (term, number of the "
           "newest version).")
      .def("publish", &PyClient::publish, "channel"_a, "number"_a, "payload"_a, "is_end"_a = false,
           "Publish a version; the request ends once it is visible.")
      .def("watch_channel", &PyClient::watch_channel, "channel"_a,
           "newer_than"_a = PyVersionNumber(0, 0, 0), "wait"_a = true,
           "Wait for a newer version, (number, is_end, payload); without `wait` ask the home.")
      .def("list_channels", &PyClient::list_channels, "after"_a, "List a page of live channels.")
      .def("note_read", &PyClient::note_read, "channel"_a, "number"_a, "process"_a, "version"_a,
           "ordinal"_a, "time_us"_a, "Tell the node what this process has read last.")
      .def("watch", &PyClient::watch, "request"_a,
           "Let next_finished() tell when the request has finished.")
      .def("next_finished", &PyClient::next_finished, "timeout_s"_a,
           "Wait for any watched request; its id, or None after the timeout. Raises NodeLostError "
           "once the client is closed or its node gone, and every id has been told.")
      .def(
          "close", [](PyClient& self) { self.without_gil([](Client& c) { c.close(); }); },
          "Detach; pending requests end. Idempotent.")
      .def_prop_ro("node_id", [](PyClient& self) { return self.client->node_id().value; })
      .def_prop_ro("node_incarnation",
                   [](PyClient& self) { return self.client->node_incarnation().value; })
      .def_prop_ro("is_alive", [](PyClient& self) { return self.client->is_alive(); });
}

}  // namespace
}  // namespace hoplite

NB_MODULE(_native, m) {
  m.doc() = "The native core: convert, release the GIL, call, map the error.";
  m.attr("INLINE_BYTES_MAX") = hoplite::kInlineBytesMax;
  m.attr("RAILS_MAX") = hoplite::kRailsMax;
  m.attr("REDUCE_SOURCES_MAX") = hoplite::kReduceSourcesMax;
  m.attr("VERSION_BYTES_MAX") = hoplite::kVersionBytesMax;
  m.attr("COPIES_MAX") = hoplite::kCopiesMax;
  m.attr("WIRE_VERSION") = hoplite::kWireVersion;
  m.def("error_classes", &hoplite::error_classes, "Return the exception class of each Code.");
  m.def("option_ranges", &hoplite::option_ranges,
        "Return the least and the largest value of each option that NativeNode takes.");
  hoplite::bind_lifetime(m);
  hoplite::bind_kernels(m);
  hoplite::bind_deltas(m);
  hoplite::bind_node(m);
  hoplite::bind_handles(m);
  hoplite::bind_client(m);
  hoplite::worlds::bind_worlds(m);
}

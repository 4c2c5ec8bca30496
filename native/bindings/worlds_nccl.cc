// SPDX-License-Identifier: Apache-2.0
#include "bindings/worlds_nccl.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/convert.h"
#include "bindings/lifetime.h"
#include "bindings/worlds_handles.h"
#include "world/nccl/nccl_bond.h"
#include "world/nccl/nccl_library.h"
#include "world/nccl/nccl_thread.h"

namespace hoplite::worlds {
namespace {

using namespace nb::literals;
using Addresses = std::vector<std::uintptr_t>;

CudaUse use_of(bool begin) { return begin ? CudaUse::kBegin : CudaUse::kAsItIs; }

struct PyNccl : Handle {
  std::shared_ptr<const NcclLibrary> library;
  std::shared_ptr<NcclThread> thread;  // once there is a bond

  PyNccl(const std::vector<std::string>& nccl, const std::string& cuda, bool begin) {
    auto loaded = [&] {
      const WithoutGil released;  // it runs what the libraries do when they are loaded
      return NcclLibrary::load(nccl, cuda, use_of(begin));
    }();
    library = unwrap(std::move(loaded));
  }
};

struct PyBond : Handle {
  PyWorld world;
  std::shared_ptr<NcclThread> thread;
  std::shared_ptr<NcclBond> bond;
  OperationHandle joining;

  PyBond(PyWorld of, std::shared_ptr<NcclThread> running, std::shared_ptr<NcclBond> made,
         OperationHandle begun)
      : world(std::move(of)),
        thread(std::move(running)),
        bond(std::move(made)),
        joining(std::move(begun)) {}
};

nb::bytes unique_id(const PyNccl& self) {
  auto made = [&] {
    const WithoutGil released;
    return self.library->unique_id();
  }();
  const NcclId id = unwrap(std::move(made));
  return nb::bytes(id.bytes.data(), id.bytes.size());
}

PyBond open_bond(PyNccl& self, const PyWorld& world, const nb::bytes& id, int rank, int size,
                 int device) {
  NcclPlace place{{}, rank, size, device};
  if (id.size() != place.id.bytes.size()) {
    raise_error({Code::kInvalidArgument, "an id of NCCL has 128 bytes, not " +
                                             std::to_string(id.size()) + "; pass it as it came"});
  }
  std::memcpy(place.id.bytes.data(), id.data(), id.size());
  if (self.thread == nullptr) self.thread = std::make_shared<NcclThread>();
  auto bond = std::make_shared<NcclBond>(self.library, self.thread->queue(), world.world, place);
  OperationHandle joining = [&] {
    const WithoutGil released;
    return bond->join();
  }();
  return {world, self.thread, std::move(bond), std::move(joining)};
}

nb::tuple issue(PyBond& self, int kind, int peer, int dtype, int op, std::size_t count,
                std::size_t part_bytes, Addresses in, Addresses out,
                std::optional<std::uintptr_t> after, std::optional<std::uint64_t> turn) {
  NcclTransfer transfer{to_enum<NcclKind>(kind, kNcclKindCount, "kind"),
                        peer,
                        dtype,
                        op,
                        count,
                        part_bytes,
                        std::move(in),
                        std::move(out),
                        after};
  auto issued = [&] {
    const WithoutGil released;
    return self.bond->issue(std::move(transfer), turn);
  }();
  auto [operation, its_turn] = unwrap(std::move(issued));
  return nb::make_tuple(PyOperation(self.world, std::move(operation), std::nullopt), its_turn);
}

void bind_library(nb::module_& m) {
  nb::class_<PyNccl>(m, "Nccl", "NCCL and the CUDA driver, as this process has loaded them.")
      .def(nb::init<const std::vector<std::string>&, const std::string&, bool>(), "nccl"_a,
           "cuda"_a, nb::kw_only(), "begin"_a,
           "Load the first of `nccl` that can be; without begin, only if the process uses CUDA.")
      .def_prop_ro(
          "code", [](PyNccl& self) { return self.library->version; },
          "What NCCL says that it is: 23007 is 2.30.7.")
      .def(
          "device",
          [](PyNccl& self, bool begin) { return unwrap(self.library->device(use_of(begin))); },
          nb::kw_only(), "begin"_a,
          "Return the GPU that this thread uses, or this process; with begin, else the first.")
      .def(
          "device_of",
          [](PyNccl& self, std::uintptr_t address) {
            return unwrap(self.library->device_of(address));
          },
          "address"_a, "Return the GPU of the memory at an address.")
      .def("unique_id", &unique_id, "Make what the members of one communicator meet by.")
      .def("open", &open_bond, "edges"_a, "id"_a, nb::kw_only(), "rank"_a, "size"_a, "device"_a,
           "Begin to meet the other members of a communicator, which ends with the world.")
      .def(
          "settle",
          [](PyNccl& self) {
            const WithoutGil released;
            return self.thread == nullptr || self.thread->queue()->settle();
          },
          "Wait until all communicators of worlds that are over are; False: one can't be ended.");
}

}  // namespace

void bind_nccl(nb::module_& m) {
  bind_library(m);
  nb::class_<PyBond>(m, "NcclBond", "One communicator: what carries arrays on GPUs.")
      .def(
          "joined",
          [](PyBond& self) { return PyOperation(self.world, self.joining, std::nullopt); },
          "Done when all members have come; broken: `error` says why.")
      .def("issue", &issue, nb::kw_only(), "kind"_a, "peer"_a, "dtype"_a, "op"_a, "count"_a,
           "part_bytes"_a, "sources"_a, "targets"_a, "after"_a.none(), "turn"_a.none(),
           nb::sig("def issue(self, *, kind: int, peer: int, dtype: int, op: int, count: int, "
                   "part_bytes: int, sources: collections.abc.Sequence[int], targets: "
                   "collections.abc.Sequence[int], after: int | None, turn: int | None) -> "
                   "tuple[WorldOperation, int]"),
           "Issue what all its members have agreed on; returns it, and its turn among all.")
      .def_prop_ro("error", [](PyBond& self) { return self.bond->error(); })
      .def_prop_ro(
          "is_leaked", [](PyBond& self) { return self.bond->is_leaked(); },
          "Whether it could not be aborted, so that something may write to its arrays for ever.");
}

}  // namespace hoplite::worlds

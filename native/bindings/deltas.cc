// SPDX-License-Identifier: Apache-2.0
#include "bindings/deltas.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bindings/convert.h"
#include "bindings/lifetime.h"
#include "delta/applier.h"
#include "delta/finder.h"

namespace hoplite {
namespace {

using namespace nb::literals;

using Bytes = std::vector<std::byte>;
using PyRanges = std::vector<std::pair<std::uint64_t, std::uint64_t>>;

// Bytes between two looks for a signal: some 10 ms.
constexpr std::size_t kStepBytes = 64_MiB;

// A writable contiguous buffer, borrowed like BorrowedBytes.
class WritableBytes {
 public:
  explicit WritableBytes(nb::handle owner) {
    if (PyObject_GetBuffer(owner.ptr(), &buffer_, PyBUF_WRITABLE) != 0) throw nb::python_error();
  }
  ~WritableBytes() { PyBuffer_Release(&buffer_); }
  WritableBytes(const WritableBytes&) = delete;
  WritableBytes& operator=(const WritableBytes&) = delete;
  [[nodiscard]] std::span<std::byte> span() const {
    return {static_cast<std::byte*>(buffer_.buf), static_cast<std::size_t>(buffer_.len)};
  }

 private:
  Py_buffer buffer_{};
};

bool overlap(std::span<const std::byte> a, std::span<const std::byte> b) {
  const std::less<> before;
  return before(a.data(), b.data() + b.size()) && before(b.data(), a.data() + a.size());
}

void refuse_overlap(std::span<const std::byte> bytes, std::span<const std::byte> target) {
  if (!overlap(bytes, target)) return;
  raise_error({Code::kInvalidArgument,
               "a delta's target overlaps the bytes that it is made from; pass other memory"});
}

void check_signals() {
  const nb::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

// ---- Delta: the bytes of a delta as a buffer

struct PyDelta : Handle {
  std::shared_ptr<Bytes> bytes;
  explicit PyDelta(Bytes delta) : bytes(std::make_shared<Bytes>(std::move(delta))) {}
};

int export_delta(PyObject* self, Py_buffer* buffer, int flags) {
  const auto& bytes = nb::inst_ptr<PyDelta>(nb::handle(self))->bytes;
  return fill_buffer(bytes, *bytes, buffer, flags);
}

PyType_Slot delta_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(export_delta)},
                             {0, nullptr}};

// ---- functions

std::optional<PyDelta> find_delta(nb::handle base, const nb::sequence& data, const PyRanges& ranges,
                                  std::uint64_t limit_bytes, nb::handle target) {
  const BorrowedBytes from(base);
  const BorrowedBuffers whole(data);
  std::optional<WritableBytes> copy;
  if (!target.is_none()) copy.emplace(target);
  const auto into = copy ? copy->span() : std::span<std::byte>{};
  refuse_overlap(from.span(), into);
  std::uint64_t size_bytes = 0;
  for (const auto bytes : whole.spans()) {
    refuse_overlap(bytes, into);
    size_bytes += bytes.size();
  }
  const auto expected = from.span().size();
  if (size_bytes != expected || (copy && into.size() != expected)) {
    raise_error({Code::kInvalidArgument, "a base has " + std::to_string(expected) +
                                             " bytes, the new data " + std::to_string(size_bytes) +
                                             " and the target " +
                                             (copy ? std::to_string(into.size()) : "none") +
                                             "; a delta needs two of one size"});
  }
  std::vector<DeltaRange> runs;
  for (const auto& [range_bytes, width] : ranges) runs.push_back({range_bytes, width});
  auto finder = unwrap(DeltaFinder::start(runs, from.span(), into, {.limit_bytes = limit_bytes}));
  auto found = [&]() -> Result<std::optional<Bytes>> {
    const WithoutGil released;
    for (auto bytes : whole.spans()) {
      while (!bytes.empty()) {
        const auto step = bytes.first(std::min(bytes.size(), kStepBytes));
        if (auto added = finder.add(step); !added) return added.error();
        if (finder.has_given_up() && into.empty()) return std::optional<Bytes>{};
        bytes = bytes.subspan(step.size());
        if (!bytes.empty()) check_signals();
      }
    }
    return finder.finish();
  }();
  auto delta = unwrap(std::move(found));
  if (!delta) return std::nullopt;
  return PyDelta(std::move(*delta));
}

void apply_deltas(const nb::sequence& deltas, nb::handle base, nb::handle target) {
  const BorrowedBuffers borrowed(deltas);
  const BorrowedBytes from(base);
  const WritableBytes into(target);
  const bool is_in_place =
      from.span().data() == into.span().data() && from.span().size() == into.span().size();
  if (!is_in_place) refuse_overlap(from.span(), into.span());
  for (const auto bytes : borrowed.spans()) refuse_overlap(bytes, into.span());
  auto rebuilt = [&]() -> Result<void> {
    const WithoutGil released;
    auto applier = DeltaApplier::open(borrowed.spans());
    if (!applier) return applier.error();
    while (!applier->is_done()) {
      if (auto done = applier->step(from.span(), into.span(), kStepBytes); !done) return done;
      if (!applier->is_done()) check_signals();
    }
    return {};
  }();
  unwrap(std::move(rebuilt));
}

std::map<std::string, std::uint64_t> describe_delta(nb::handle delta) {
  const BorrowedBytes bytes(delta);
  const auto opened = unwrap(Delta::open(bytes.span()));
  const DeltaHeader& header = opened.header();
  return {{"size_bytes", header.size_bytes},
          {"changed", header.changed},
          {"base_crc", header.base_crc},
          {"new_crc", header.new_crc}};
}

}  // namespace

void bind_deltas(nb::module_& m) {
  nb::class_<PyDelta>(m, "Delta", nb::type_slots(delta_slots), "A delta; a buffer of its bytes.");
  m.def("find_delta", &find_delta, "base"_a, "data"_a, "ranges"_a, nb::kw_only(), "limit_bytes"_a,
        "target"_a = nb::none(),
        nb::sig("def find_delta(base: typing_extensions.Buffer, "
                "data: collections.abc.Sequence[typing_extensions.Buffer], "
                "ranges: collections.abc.Sequence[tuple[int, int]], *, limit_bytes: int, "
                "target: typing_extensions.Buffer | None = None) -> Delta | None"),
        "Compare `data`, one buffer after the other, with `base`, and copy it to `target`. "
        "`ranges`: bytes, and bytes of an element. Returns None if the delta is above the limit.");
  m.def("apply_deltas", &apply_deltas, "deltas"_a, "base"_a, "target"_a,
        nb::sig("def apply_deltas(deltas: collections.abc.Sequence[typing_extensions.Buffer], "
                "base: typing_extensions.Buffer, target: typing_extensions.Buffer) -> None"),
        "Rebuild into `target` from `base`, which may be `target`, and deltas, the oldest first.");
  m.def("describe_delta", &describe_delta, "delta"_a,
        nb::sig("def describe_delta(delta: typing_extensions.Buffer) -> dict[str, int]"),
        "Return size_bytes, changed (elements), base_crc and new_crc (CRC-32C) of a delta.");
}

}  // namespace hoplite

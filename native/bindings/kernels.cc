// SPDX-License-Identifier: Apache-2.0
#include "bindings/kernels.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <functional>
#include <span>
#include <string>

#include "bindings/convert.h"
#include "bindings/lifetime.h"
#include "node/kernels.h"

namespace hoplite {
namespace {

using namespace nb::literals;

// Throws if `accumulators` and `elements` don't hold equally many, or the kernels lack the pair.
void check_fold(ReduceOp op, DType dtype, std::size_t accumulators, std::size_t elements) {
  if (!can_reduce(dtype, op)) {
    raise_error({Code::kInvalidArgument,
                 std::string(kReduceOpNames[static_cast<std::size_t>(op)]) + " does not take " +
                     kDTypeNames[static_cast<std::size_t>(dtype)] + "; convert the values"});
  }
  const std::uint64_t count = elements / element_bytes(dtype);
  if (elements % element_bytes(dtype) != 0 || accumulators != count * accumulator_bytes(dtype)) {
    raise_error({Code::kInvalidArgument,
                 std::to_string(elements) + " bytes of " +
                     kDTypeNames[static_cast<std::size_t>(dtype)] + " need accumulators of " +
                     std::to_string(accumulator_bytes(dtype)) + " bytes each, not " +
                     std::to_string(accumulators) + " bytes in all"});
  }
}

void fold_bytes(int op, int dtype, bool first, nb::bytearray into, nb::handle from) {
  const auto how = to_enum<ReduceOp>(op, kReduceOpCount, "reduce op");
  const auto type = to_enum<DType>(dtype, kDTypeCount, "dtype");
  const BorrowedBytes elements(from);
  check_fold(how, type, into.size(), elements.span().size());
  const auto* const start = static_cast<const std::byte*>(into.data());
  const std::less<> before;
  if (before(start, elements.span().data() + elements.span().size()) &&
      before(elements.span().data(), start + into.size())) {
    raise_error({Code::kInvalidArgument, "a source's bytes are its accumulators; pass a copy"});
  }
  fold(how, type, first, {static_cast<std::byte*>(into.data()), into.size()}, elements.span());
}

nb::bytearray finish_bytes(int op, int dtype, std::uint32_t sources, nb::bytearray accumulators) {
  const auto how = to_enum<ReduceOp>(op, kReduceOpCount, "reduce op");
  const auto type = to_enum<DType>(dtype, kDTypeCount, "dtype");
  const std::size_t count = accumulators.size() / accumulator_bytes(type);
  check_fold(how, type, accumulators.size(), count * element_bytes(type));
  if (!needs_finish(type, how)) return accumulators;
  if (sources == 0) raise_error({Code::kInvalidArgument, "a result has at least one source"});
  const std::span from{static_cast<std::byte*>(accumulators.data()), accumulators.size()};
  if (!is_half(type)) {
    finish(how, type, sources, from, from);
    return accumulators;
  }
  nb::bytearray rounded;
  rounded.resize(count * element_bytes(type));
  finish(how, type, sources, {static_cast<std::byte*>(rounded.data()), rounded.size()}, from);
  return rounded;
}

}  // namespace

void bind_kernels(nb::module_& m) {
  m.def("fold", &fold_bytes, "op"_a, "dtype"_a, "first"_a, "into"_a, "data"_a,
        nb::sig("def fold(op: int, dtype: int, first: bool, into: bytearray, "
                "data: typing_extensions.Buffer) -> None"),
        "Fold the elements of one source into accumulators: float32 for 16-bit floats. The first "
        "source starts them.");
  m.def("finish", &finish_bytes, "op"_a, "dtype"_a, "sources"_a, "accumulators"_a,
        "Return the elements of accumulators that hold so many sources; they may be the same "
        "bytearray.");
}

}  // namespace hoplite

// SPDX-License-Identifier: Apache-2.0
// Versions of channels as tuples of Python: a term is (epoch, counter), a number is (epoch,
// counter, n). Used by handles.h and module.cc only; every function needs the GIL.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "bindings/convert.h"
#include "plan/messages.h"

namespace hoplite {

using namespace nb::literals;

using PyTerm = std::tuple<std::uint64_t, std::uint32_t>;
using PyVersionNumber = std::tuple<std::uint64_t, std::uint32_t, std::uint64_t>;

inline nb::tuple to_tuple(const VersionNumber& number) {
  return nb::make_tuple(number.term.epoch.value, number.term.counter, number.n);
}

inline VersionNumber to_version_number(const PyVersionNumber& number) {
  const auto& [epoch, counter, n] = number;
  return {{Epoch{epoch}, counter}, n};
}

// (term, number of the newest version by then, the term before).
inline nb::object to_tuple(const TermTaken& taken) {
  return nb::make_tuple(nb::make_tuple(taken.term.epoch.value, taken.term.counter),
                        to_tuple(taken.newest),
                        nb::make_tuple(taken.before.epoch.value, taken.before.counter));
}

// (number, is_end, payload); None if there is no version.
inline nb::object to_tuple(const Version& version) {
  if (!version.exists()) return nb::none();
  return nb::make_tuple(to_tuple(version.number), version.is_end,
                        nb::bytes(version.payload.data(), version.payload.size()));
}

// A dict for each channel, with one for each process of this node that reads it.
inline nb::object to_list(const std::vector<ChannelRow>& rows) {
  nb::list all;
  for (const ChannelRow& row : rows) {
    nb::list readers;
    for (const ChannelReader& reader : row.readers) {
      nb::dict each;
      each["process"] = reader.process;
      each["version"] = reader.version;
      each["ordinal"] = reader.ordinal;
      each["time_us"] = reader.time_us;
      readers.append(std::move(each));
    }
    nb::dict one;
    one["channel"] = nb::bytes(row.channel.bytes.data(), row.channel.bytes.size());
    one["newest"] = to_tuple(row.newest);
    one["is_home"] = row.is_home;
    one["readers"] = std::move(readers);
    all.append(std::move(one));
  }
  return all;
}

[[noreturn]] inline void raise_refusal(const VersionRefused& refused) {
  const nb::object type = error_class(Code::kVersionRefused);
  const nb::object error = type(to_text(refused.text), "newest"_a = to_tuple(refused.newest),
                                "is_taken"_a = refused.is_taken);
  PyErr_SetObject(type.ptr(), error.ptr());
  throw nb::python_error();
}

}  // namespace hoplite

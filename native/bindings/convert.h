// SPDX-License-Identifier: Apache-2.0
// Python values <-> the values of native/, and errors as exceptions. Used by module.cc only; every
// function needs the GIL.
#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/ids.h"
#include "base/result.h"
#include "plan/messages.h"

namespace hoplite {

namespace nb = nanobind;

// The class in hoplite_ray/errors.py of each Code, in the order of the enum.
inline constexpr std::array<const char*, kCodeCount> kErrorClasses = {
    "HopliteError",              // kOk: never raised
    "GetTimeoutError",           // kTimeout
    "RequestCancelledError",     // kCancelled
    "ObjectLostError",           // kObjectLost
    "StoreFullError",            // kStoreFull
    "DuplicateObjectError",      // kDuplicateObject
    "LayoutMismatchError",       // kLayoutMismatch
    "ReduceError",               // kReduceFailed
    "InvalidArgumentError",      // kInvalidArgument
    "PeerLostError",             // kPeerLost
    "NodeLostError",             // kNodeLost
    "WireError",                 // kBadFrame
    "WireVersionMismatchError",  // kWrongVersion
    "UnauthenticatedError",      // kUnauthenticated
    "SystemFailureError",        // kSystem
    "VersionRefusedError",       // kVersionRefused
};
static_assert(kErrorClasses.back() != nullptr, "every Code has a class");

inline nb::object error_class(Code code) {
  const char* name = kErrorClasses.at(static_cast<std::size_t>(code));
  return nb::module_::import_("hoplite_ray.errors").attr(name);
}

// The text of an error may be a peer's, and no UTF-8.
inline nb::object to_text(const std::string& text) {
  return nb::steal(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
}

[[noreturn]] inline void raise_error(const Error& error) {
  const nb::object type = error_class(error.code);
  PyErr_SetObject(type.ptr(), to_text(error.text).ptr());
  throw nb::python_error();
}

// Returns the value, or raises the error as an exception.
template <typename T>
T unwrap(Result<T>&& result) {
  if (!result) raise_error(result.error());
  if constexpr (!std::is_void_v<T>) return std::move(*result);
}

inline ObjectId to_object_id(const nb::bytes& id) {
  if (id.size() != kObjectIdBytes) {
    raise_error({Code::kInvalidArgument, "an object id has 28 bytes, not " +
                                             std::to_string(id.size()) + "; pass the whole id"});
  }
  ObjectId object;
  std::memcpy(object.bytes.data(), id.data(), kObjectIdBytes);
  return object;
}

// A number of an enum with `count` values that start at 0.
template <typename Enum>
Enum to_enum(int number, int count, const char* what) {
  if (number < 0 || number >= count) {
    raise_error({Code::kInvalidArgument, std::string(what) + " " + std::to_string(number) +
                                             " is unknown; use 0 to " + std::to_string(count - 1)});
  }
  return static_cast<Enum>(number);
}

inline Duration to_duration(double seconds) {
  constexpr double kYearS = 366.0 * 24 * 3600;  // keeps the product far inside 64 bits
  const double bounded = seconds > 0 ? std::min(seconds, kYearS) : 0.0;
  return {static_cast<std::int64_t>(bounded * 1e9)};
}

// A borrowed contiguous buffer of a Python object; holds the object's export until it goes.
class BorrowedBytes {
 public:
  explicit BorrowedBytes(nb::handle owner) {
    if (PyObject_GetBuffer(owner.ptr(), &buffer_, PyBUF_SIMPLE) != 0) throw nb::python_error();
  }
  ~BorrowedBytes() { PyBuffer_Release(&buffer_); }
  BorrowedBytes(const BorrowedBytes&) = delete;
  BorrowedBytes& operator=(const BorrowedBytes&) = delete;
  [[nodiscard]] std::span<const std::byte> span() const {
    return {static_cast<const std::byte*>(buffer_.buf), static_cast<std::size_t>(buffer_.len)};
  }

 private:
  Py_buffer buffer_{};
};

// The buffers of a sequence of Python objects, borrowed together.
class BorrowedBuffers {
 public:
  explicit BorrowedBuffers(const nb::sequence& owners) {
    for (const nb::handle owner : owners) spans_.push_back(borrowed_.emplace_back(owner).span());
  }
  [[nodiscard]] std::span<const std::span<const std::byte>> spans() const { return spans_; }

 private:
  std::deque<BorrowedBytes> borrowed_;
  std::vector<std::span<const std::byte>> spans_;
};

}  // namespace hoplite

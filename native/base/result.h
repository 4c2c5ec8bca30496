// SPDX-License-Identifier: Apache-2.0
// A value or an Error: shaped like std::expected, so that it can become an alias once the
// compiler's library has it under C++20. Leaf header (uses error.h and check.h only).
#pragma once

#include <optional>
#include <utility>
#include <variant>

#include "base/check.h"
#include "base/error.h"

namespace hoplite {

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}      // NOLINT(*-explicit-*)
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT(*-explicit-*)

  [[nodiscard]] bool has_value() const { return state_.index() == 0; }
  explicit operator bool() const { return has_value(); }

  // REQUIRES: has_value().
  T& operator*() { return *checked(); }
  const T& operator*() const { return *const_cast<Result*>(this)->checked(); }
  T* operator->() { return checked(); }

  // REQUIRES: !has_value().
  [[nodiscard]] const Error& error() const {
    HOPLITE_CHECK(!has_value());
    return *std::get_if<1>(&state_);
  }

 private:
  T* checked() {
    HOPLITE_CHECK(has_value());
    return std::get_if<0>(&state_);
  }
  std::variant<T, Error> state_;
};

// Success without a value.
template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}  // NOLINT(*-explicit-*)
  [[nodiscard]] bool has_value() const { return !error_.has_value(); }
  explicit operator bool() const { return has_value(); }
  [[nodiscard]] const Error& error() const {
    HOPLITE_CHECK(error_.has_value());
    return *error_;
  }

 private:
  std::optional<Error> error_;
};

}  // namespace hoplite

// SPDX-License-Identifier: Apache-2.0
// One description of a struct's fields, walked in both directions: `fields(archive, value)` with a
// Writer appends them little-endian, with a Reader (reader.h) takes them out again. Used by
// frame.cc, local_frame.cc and sim/model/liar.cc only. Pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/check.h"
#include "plan/messages.h"
#include "wire/layouts.h"
#include "wire/reader.h"

namespace hoplite::wire {

class Writer {
 public:
  template <typename T>
  using Ref = const T&;
  // `layouts`: those that the other end of the connection knows; null: none.
  explicit Writer(std::vector<std::byte>& out, Layouts* layouts = nullptr)
      : out_(out), layouts_(layouts) {}

  template <Integer T>
  void number(T value) {
    raw(&value, sizeof value);
  }
  void flag(bool value) { number(static_cast<std::uint8_t>(value ? 1 : 0)); }
  template <typename E>
  void enumeration(E value, int) {
    number(static_cast<std::uint8_t>(value));
  }
  template <std::size_t N>
  void array(const std::array<std::uint8_t, N>& value) {
    raw(value.data(), N);
  }
  void text(const std::string& value, std::size_t bytes_max) {  // cut short at the limit
    const std::size_t size = value.size() < bytes_max ? value.size() : bytes_max;
    number(static_cast<std::uint32_t>(size));
    raw(value.data(), size);
  }
  void layout(const Layout& value) {
    if (const auto known = layouts_ != nullptr ? layouts_->number_of(value) : std::nullopt) {
      return number(kKnownLayout | *known);
    }
    text(value.text(), kLayoutBytesMax);
    if (layouts_ != nullptr) layouts_->add(value);
  }
  // Returns the values to walk, which are a field of the message. `limit`: how many there may be.
  template <typename T>
  const std::vector<T>& counted(const std::vector<T>& values, std::size_t limit, std::size_t) {
    HOPLITE_CHECK(values.size() <= limit);
    number(static_cast<std::uint32_t>(values.size()));
    return values;  // NOLINT(bugprone-return-const-ref-from-parameter)
  }
  void require(bool) {}

 private:
  void raw(const void* data, std::size_t size) {
    const auto* first = static_cast<const std::byte*>(data);
    out_.insert(out_.end(), first, first + size);
  }
  std::vector<std::byte>& out_;
  Layouts* layouts_;
};

}  // namespace hoplite::wire

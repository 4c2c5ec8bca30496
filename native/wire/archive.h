// One description of a struct's fields, walked in both directions: `fields(archive, value)` with a
// Writer appends them little-endian, with a Reader takes them out again and remembers whether all
// of them were there and in range. Used by frame.cc, local_frame.cc and sim/liar.cc only. Pure.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "base/check.h"
#include "plan/messages.h"

namespace hoplite::wire {

static_assert(std::endian::native == std::endian::little, "integers are copied as they lie");

template <typename T>
concept Integer = std::is_integral_v<T> && !std::is_same_v<T, bool>;

class Writer {
 public:
  template <typename T>
  using Ref = const T&;
  explicit Writer(std::vector<std::byte>& out) : out_(out) {}

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
};

class Reader {
 public:
  template <typename T>
  using Ref = T&;
  explicit Reader(std::span<const std::byte> in) : in_(in) {}

  // True when every field so far was there and in range, and nothing is left over.
  [[nodiscard]] bool is_exhausted() const { return ok_ && in_.empty(); }

  template <Integer T>
  void number(T& value) {
    raw(&value, sizeof value);
  }
  void flag(bool& value) {
    std::uint8_t byte = 0;
    number(byte);
    require(byte <= 1);
    value = byte == 1;
  }
  template <typename E>
  void enumeration(E& value, int count) {
    std::uint8_t byte = 0;
    number(byte);
    require(byte < count);
    if (ok_) value = static_cast<E>(byte);
  }
  template <std::size_t N>
  void array(std::array<std::uint8_t, N>& value) {
    raw(value.data(), N);
  }
  void text(std::string& value, std::size_t bytes_max) {
    std::uint32_t size = 0;
    number(size);
    require(size <= bytes_max && size <= in_.size());
    if (!ok_) return;
    value.assign(reinterpret_cast<const char*>(in_.data()), size);
    in_ = in_.subspan(size);
  }
  // Each value takes at least `bytes_min` bytes: a count that can't be true allocates nothing.
  template <typename T>
  std::vector<T>& counted(std::vector<T>& values, std::size_t limit, std::size_t bytes_min) {
    std::uint32_t count = 0;
    number(count);
    require(count <= limit && count <= in_.size() / bytes_min);
    values.resize(ok_ ? count : 0);
    return values;
  }
  void require(bool holds) { ok_ = ok_ && holds; }

 private:
  void raw(void* data, std::size_t size) {
    require(size <= in_.size());
    if (!ok_) return;
    std::memcpy(data, in_.data(), size);
    in_ = in_.subspan(size);
  }
  std::span<const std::byte> in_;
  bool ok_ = true;
};

}  // namespace hoplite::wire

// SPDX-License-Identifier: Apache-2.0
// Takes the fields of a struct out of bytes of a peer, and remembers whether all of them were there
// and in range; see archive.h. Pure.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "wire/layouts.h"

namespace hoplite::wire {

static_assert(std::endian::native == std::endian::little, "integers are copied as they lie");

// In place of the length of a layout: it is the one that has the number in the other bits.
inline constexpr std::uint32_t kKnownLayout = 1U << 31;

template <typename T>
concept Integer = std::is_integral_v<T> && !std::is_same_v<T, bool>;

class Reader {
 public:
  template <typename T>
  using Ref = T&;
  explicit Reader(std::span<const std::byte> in, Layouts* layouts = nullptr)
      : in_(in), layouts_(layouts) {}

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
  void layout(Layout& value) {
    std::uint32_t size = 0;
    if (in_.size() >= sizeof size) std::memcpy(&size, in_.data(), sizeof size);
    if ((size & kKnownLayout) == 0) {
      std::string whole;
      text(whole, kLayoutBytesMax);
      value = Layout(std::move(whole));
      if (ok_ && layouts_ != nullptr) layouts_->add(value);
      return;
    }
    number(size);
    const Layout* known = layouts_ != nullptr ? layouts_->find(size & ~kKnownLayout) : nullptr;
    require(known != nullptr);
    if (ok_) value = *known;
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
  Layouts* layouts_;
  bool ok_ = true;
};

}  // namespace hoplite::wire

// SPDX-License-Identifier: Apache-2.0
// The bytes of a received object in this process: a private copy-on-write mapping of the node's
// arena (writes change this process's own pages only, design decision 6), or an owned copy of a
// small object. Owns the mapping and the node's pin: destroying it unmaps first and releases the
// pin then. Any thread; never throws, never waits for an answer. Stays valid when the node or the
// Client is gone, and in a forked child (which never releases: the pin then lasts until both end).
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "base/result.h"
#include "io/memory/mapping.h"
#include "plan/messages.h"

namespace hoplite {

class Attachment;

// The node's promise not to reuse an object's range; given back when it is destroyed.
class Pin {
 public:
  Pin() = default;
  Pin(std::shared_ptr<Attachment> attachment, ObjectId object, Incarnation incarnation);
  Pin(Pin&& other) noexcept = default;
  Pin& operator=(Pin&& other) noexcept;
  ~Pin() { release(); }
  [[nodiscard]] bool is_held() const { return attachment_ != nullptr; }
  void forget() noexcept;  // the node never took it

 private:
  void release() noexcept;
  std::shared_ptr<Attachment> attachment_;
  ObjectId object_;
  Incarnation incarnation_;
  std::uint64_t fork_count_ = 0;  // a pin from before a fork is never released by command
};

class View {
 public:
  View(Fetched fetched, Bytes payload);             // small
  View(Fetched fetched, Mapping mapping, Pin pin);  // large
  View(View&&) noexcept = default;
  View& operator=(View&&) noexcept;
  ~View() = default;  // members go in reverse order: mapping_, then pin_

  // Writable; changes are seen by this process only. Empty objects have an empty span.
  [[nodiscard]] std::span<std::byte> bytes() { return bytes_; }
  [[nodiscard]] const std::string& layout() const { return fetched_.meta.layout.text(); }
  [[nodiscard]] Incarnation incarnation() const { return fetched_.incarnation; }
  [[nodiscard]] std::uint32_t block_bytes() const { return fetched_.meta.block_bytes; }
  // The leading bytes that had come; all, unless the get waited for fewer. Bytes behind them come
  // while this process looks, in pages that it has not written to.
  [[nodiscard]] std::uint64_t ready_bytes() const { return fetched_.ready_bytes; }
  // Equal for two mapped views of one incarnation if they show the same bytes of the arena.
  [[nodiscard]] std::uint64_t place() const { return fetched_.extent.offset; }
  [[nodiscard]] bool is_mapped() const { return !mapping_.bytes().empty(); }

 private:
  Fetched fetched_;
  Bytes payload_;
  Pin pin_;
  Mapping mapping_;
  std::span<std::byte> bytes_;
};

}  // namespace hoplite

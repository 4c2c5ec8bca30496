// SPDX-License-Identifier: Apache-2.0
// The layout of an object: text of its client that the core neither reads nor changes. All copies
// share one string, so a short message that names a long layout keeps no copy of it. Any thread.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

namespace hoplite {

class Layout {
 public:
  Layout() = default;
  Layout(std::string text) {  // NOLINT(google-explicit-constructor): it is that text
    if (!text.empty()) text_ = std::make_shared<const std::string>(std::move(text));
  }
  Layout(const char* text) : Layout(std::string(text)) {}  // NOLINT(google-explicit-constructor)

  [[nodiscard]] const std::string& text() const { return text_ ? *text_ : kEmpty; }
  [[nodiscard]] std::size_t size() const { return text_ ? text_->size() : 0; }

  // Cost: O(size) if the two are equal and not shared.
  friend bool operator==(const Layout& a, const Layout& b) {
    return a.text_ == b.text_ || a.text() == b.text();
  }

 private:
  static inline const std::string kEmpty;
  std::shared_ptr<const std::string> text_;  // null: empty
};

}  // namespace hoplite

// SPDX-License-Identifier: Apache-2.0
// The objects and transfers of this node, in rows and words for people, and as waits for the
// simulator. It reads the tables of the other parts and changes nothing. It owns only the text that
// refusals share.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "plan/engine/waits.h"
#include "plan/messages.h"
#include "plan/objects/local_object.h"

namespace hoplite {

struct Owners;

class Overview {
 public:
  explicit Overview(Owners& engine) : engine_(engine) {}

  void handle_list(RequestId request, const ListCommand& list);
  [[nodiscard]] std::string full_text(const ObjectId& id, std::uint64_t size_bytes) const;
  [[nodiscard]] std::vector<Wait> waits() const;

 private:
  [[nodiscard]] const std::string& holders_text() const;
  [[nodiscard]] std::string reason(const ObjectId& id, const LocalObject& object) const;
  [[nodiscard]] std::vector<ObjectRow> find_objects(const std::vector<ObjectId>& named) const;
  [[nodiscard]] std::vector<ObjectRow> largest_objects(std::uint64_t rows_max) const;
  [[nodiscard]] std::vector<TransferRow> largest_transfers(std::uint64_t rows_max) const;

  Owners& engine_;
  mutable std::optional<std::pair<Instant, std::string>> holders_;  // the last text
};

}  // namespace hoplite

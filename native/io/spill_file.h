// The file that spilled objects are in: without a name, so that nothing is left after SIGKILL, and
// with holes where ranges were given back. Owns its descriptor; one thread uses it, and its calls
// wait for the disk. Which range belongs to what is decided by plan/.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/result.h"
#include "io/unique_fd.h"
#include "plan/messages.h"

namespace hoplite {

class SpillFile {
 public:
  // kInvalidArgument, naming the directory and errno, if no file can be made there.
  [[nodiscard]] static Result<SpillFile> open(const std::string& directory);

  // All of it, or kSystem naming the directory and errno.
  [[nodiscard]] Result<void> write(std::span<const std::byte> bytes, std::uint64_t offset) const;
  [[nodiscard]] Result<void> read(std::span<std::byte> bytes, std::uint64_t offset) const;
  // Gives its blocks back to the file system, where that can take them; the range may be written
  // again.
  void free(Extent range) const;

 private:
  SpillFile(UniqueFd file, std::string directory);
  UniqueFd file_;
  std::string directory_;
};

}  // namespace hoplite

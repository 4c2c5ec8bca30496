// SPDX-License-Identifier: Apache-2.0
// The file of spilled objects. It has no name, so nothing is left after SIGKILL, and it has holes
// where ranges were released. Owns its descriptor. One thread uses it; its calls wait for the disk.
// plan/ decides which range belongs to which object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/result.h"
#include "io/sockets/unique_fd.h"
#include "plan/messages.h"

namespace hoplite {

class SpillFile {
 public:
  // kInvalidArgument, naming the directory and errno, if no file can be made there.
  [[nodiscard]] static Result<SpillFile> open(const std::string& directory);

  // Writes all of it, or returns kSystem with the directory and errno.
  [[nodiscard]] Result<void> write(std::span<const std::byte> bytes, std::uint64_t offset) const;
  [[nodiscard]] Result<void> read(std::span<std::byte> bytes, std::uint64_t offset) const;
  // Releases the range's blocks on disk, if the file system supports holes. The range may be
  // written again.
  void free(Extent range) const;

 private:
  SpillFile(UniqueFd file, std::string directory);
  UniqueFd file_;
  std::string directory_;
};

}  // namespace hoplite

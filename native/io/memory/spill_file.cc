// SPDX-License-Identifier: Apache-2.0
#include "io/memory/spill_file.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "io/sockets/system_error.h"

namespace hoplite {

SpillFile::SpillFile(UniqueFd file, std::string directory)
    : file_(std::move(file)), directory_(std::move(directory)) {}

Result<SpillFile> SpillFile::open(const std::string& directory) {
  UniqueFd file(::open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, S_IRUSR | S_IWUSR));
  if (!file.is_open() && (errno == EOPNOTSUPP || errno == EISDIR)) {
    std::string name = directory + "/spill.XXXXXX";  // NFS can't make one without a name
    file = UniqueFd(::mkostemp(name.data(), O_CLOEXEC));
    if (file.is_open()) ::unlink(name.c_str());
  }
  if (!file.is_open()) {
    return system_error("a file for spilled objects in " + directory + " (spill_directory)",
                        Code::kInvalidArgument);
  }
  return SpillFile(std::move(file), directory);
}

Result<void> SpillFile::write(std::span<const std::byte> bytes, std::uint64_t offset) const {
  while (!bytes.empty()) {
    const ssize_t written =
        ::pwrite(file_.value(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      return system_error("writing " + std::to_string(bytes.size()) + " bytes to " + directory_);
    }
    bytes = bytes.subspan(static_cast<std::size_t>(written));
    offset += static_cast<std::uint64_t>(written);
  }
  return {};
}

Result<void> SpillFile::read(std::span<std::byte> bytes, std::uint64_t offset) const {
  while (!bytes.empty()) {
    const ssize_t got =
        ::pread(file_.value(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got == 0) errno = EIO;  // the file was truncated
    if (got <= 0) {
      return system_error("reading " + std::to_string(bytes.size()) + " bytes from " + directory_);
    }
    bytes = bytes.subspan(static_cast<std::size_t>(got));
    offset += static_cast<std::uint64_t>(got);
  }
  return {};
}

void SpillFile::free(Extent range) const {
  [[maybe_unused]] const int done =
      ::fallocate(file_.value(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                  static_cast<off_t>(range.offset), static_cast<off_t>(range.size_bytes));
}

}  // namespace hoplite

// SPDX-License-Identifier: Apache-2.0
#include "io/memory/arena.h"

#include <fcntl.h>
#include <sys/sysinfo.h>

#include <string>
#include <utility>

#include "base/check.h"

namespace hoplite {

Arena::Arena(UniqueFd writable, UniqueFd readonly, Mapping mapping)
    : writable_(std::move(writable)),
      readonly_(std::move(readonly)),
      mapping_(std::move(mapping)) {}

Result<Arena> Arena::open(std::uint64_t size_bytes) {
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  struct sysinfo machine{};
  if (::sysinfo(&machine) != 0) return system_error("sysinfo");
  const std::uint64_t memory = std::uint64_t{machine.totalram} * machine.mem_unit;
  if (size_bytes == 0 || size_bytes % page != 0 || size_bytes > memory) {
    return Error{Code::kInvalidArgument, "arena_bytes=" + std::to_string(size_bytes) +
                                             ": must be a multiple of " + std::to_string(page) +
                                             " up to this machine's memory of " +
                                             std::to_string(memory) + " bytes"};
  }
  UniqueFd writable(::memfd_create("hoplite_ray", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!writable.is_open()) return system_error("memfd_create");
  if (::ftruncate(writable.value(), static_cast<off_t>(size_bytes)) != 0) {
    return system_error("ftruncate of the arena to " + std::to_string(size_bytes) + " bytes");
  }
  // From here on no holder of a descriptor can make another process's mapping fault.
  if (::fcntl(writable.value(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return system_error("sealing the size of the arena");
  }
  // A second open of the same memory: a descriptor passed to receivers must not be writable, and
  // dup(2) would share the writable file description.
  const std::string itself = "/proc/self/fd/" + std::to_string(writable.value());
  UniqueFd readonly(::open(itself.c_str(), O_RDONLY | O_CLOEXEC));
  if (!readonly.is_open()) return system_error("opening the arena again read-only");
  auto mapping = Mapping::open_aligned(writable.value(), size_bytes, kLargePage,
                                       PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE);
  if (!mapping) return mapping.error();
  return Arena(std::move(writable), std::move(readonly), std::move(*mapping));
}

bool Arena::contains(Extent extent) const {
  return extent.offset <= size_bytes() && extent.size_bytes <= size_bytes() - extent.offset;
}

std::span<std::byte> Arena::at(Extent extent) const {
  HOPLITE_CHECK(contains(extent));
  return mapping_.bytes().subspan(extent.offset, extent.size_bytes);
}

}  // namespace hoplite

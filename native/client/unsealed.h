// SPDX-License-Identifier: Apache-2.0
// The range of a reserved put as memory to write into, for empty(). Owns a shared mapping of it and
// the put; sealing turns the mapping, in place, into a private one like a View's. The node's pin is
// taken by the seal itself, so no deletion can come in between. Destroying it unmaps first; then
// the pin goes or, unsealed, the put is cancelled. Any thread; writing through bytes() while
// another thread seals ends up in the object or stays private, byte by byte. In a forked child an
// unsealed range reads as zeros. Design decision 6.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/result.h"
#include "client/request.h"
#include "io/memory/mapping.h"

namespace hoplite {

class Unsealed {
 public:
  Unsealed(std::shared_ptr<Attachment> attachment, std::shared_ptr<Request> put, Extent extent,
           Mapping mapping);
  ~Unsealed();
  Unsealed(const Unsealed&) = delete;
  Unsealed& operator=(const Unsealed&) = delete;

  [[nodiscard]] std::span<std::byte> bytes() { return mapping_.bytes(); }

  // Tells the node that the first `upto_bytes` are written and stay as they are, so that receivers
  // stream during the writing. The last bytes wait for the seal. kInvalidArgument once it is sealed
  // or beyond the range; kCancelled if the put was cancelled.
  [[nodiscard]] Result<void> report(std::uint64_t upto_bytes);

  // Returns the request that ends with Done when all clients may get the object. After the call
  // only this process sees new writes to bytes(). kInvalidArgument the second time; kCancelled if
  // the put was cancelled. The request fails with kObjectLost if the object was deleted.
  [[nodiscard]] Result<std::shared_ptr<Request>> seal();

 private:
  [[nodiscard]] Error sealed_error() const;
  [[nodiscard]] Error cancelled_error() const;
  std::shared_ptr<Attachment> attachment_;
  std::shared_ptr<Request> put_;
  Extent extent_;
  std::atomic<bool> is_sealed_{false};
  std::shared_ptr<Request> sealing_;  // keeps the pin
  Mapping mapping_;
};

}  // namespace hoplite

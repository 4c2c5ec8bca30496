// SPDX-License-Identifier: Apache-2.0
// Makes the arena's pages ahead of the bytes, in threads of its own. To write to a page of 4 KiB
// for the first time takes longer than its bytes; the kernel makes one of 2 MiB in a quarter of the
// time of 512 small ones, where it can (MADV_COLLAPSE, Linux 6.1). A page that is there already is
// left as it is. All methods are of the reactor. docs/internals/gotchas.md.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

#include "io/memory/arena.h"
#include "plan/messages.h"

namespace hoplite {

class Pages {
 public:
  // `idle_bytes`: how many bytes from the arena's start on get pages now, in time that no other
  // thread of the machine wants. The arena outlives it.
  Pages(const Arena& arena, std::uint64_t idle_bytes);
  ~Pages();  // finishes the page that is under way, and no other
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  // The range will be written soon, from its start on. Only large pages that lie wholly inside are
  // made, so no memory is taken that the range does not need.
  void want(Extent range);

 private:
  void serve() noexcept;
  void make_idle(std::uint64_t count) noexcept;  // of the first large pages
  void make(std::uint64_t large_page, bool by_small_ones);

  const Arena* arena_;
  std::uint64_t count_;  // of large pages in the arena
  std::unique_ptr<std::atomic<bool>[]> is_made_;
  std::atomic<bool> is_stopping_ = false;
  std::atomic<bool> can_collapse_ = true;  // False once the kernel has said that it can't
  std::mutex mutex_;
  std::condition_variable has_range_;
  std::deque<Extent> wanted_;
  Extent last_;  // that was wanted
  std::thread server_;
  std::thread idle_;  // if there are idle_bytes
};

}  // namespace hoplite

// SPDX-License-Identifier: Apache-2.0
#include "base/copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace hoplite {
namespace {

TEST(CopyBytes, CopiesAllAndNothingElseWhereverTheTwoLie) {
  std::vector<std::byte> from(12'000);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 31 >> 3);
  for (std::size_t ahead = 0; ahead < 4096; ahead += ahead < 40 ? 1 : 509) {
    for (const std::size_t size :
         {std::size_t{0}, std::size_t{1}, kCopyStepBytes, kCopyStepBytes + 1, 3 * kCopyStepBytes}) {
      std::vector<std::byte> page(2 * 4096 + size, std::byte{7});
      const auto of_page = [](const std::byte* at) {
        return reinterpret_cast<std::uintptr_t>(at) % 4096;
      };
      const std::size_t at = (of_page(from.data()) + ahead + 4096 - of_page(page.data())) % 4096;
      copy_bytes(page.data() + at, from.data(), size);
      const auto first = page.begin() + static_cast<std::ptrdiff_t>(at);
      const auto last = first + static_cast<std::ptrdiff_t>(size);
      const auto is_untouched = [](std::byte each) { return each == std::byte{7}; };
      ASSERT_TRUE(std::equal(first, last, from.begin())) << ahead << " " << size;
      ASSERT_TRUE(std::all_of(page.begin(), first, is_untouched));
      ASSERT_TRUE(std::all_of(last, page.end(), is_untouched));
    }
  }
}

}  // namespace
}  // namespace hoplite

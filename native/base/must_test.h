// SPDX-License-Identifier: Apache-2.0
// The value of a result that a test depends on.
#pragma once

#include <gtest/gtest.h>

#include <utility>

#include "base/check.h"
#include "base/result.h"

namespace hoplite {

// Ends the process with the error's text where there is no value.
template <typename T>
T must(Result<T> result) {
  if (!result) ADD_FAILURE() << result.error().text;
  HOPLITE_CHECK(result.has_value());
  return std::move(*result);
}

}  // namespace hoplite

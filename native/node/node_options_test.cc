// SPDX-License-Identifier: Apache-2.0
#include "node/node_options.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>

namespace hoplite {
namespace {

NodeOptions good() {
  NodeOptions options;
  options.node = NodeId{1};
  options.arena_bytes = 1_MiB;
  options.secret = "secret";
  return options;
}

std::string bytes_of(const NodeConfig& config) {
  return {reinterpret_cast<const char*>(&config), sizeof config};
}

TEST(NodeOptions, EveryOptionHasAnEffect) {
  const auto plain = configure(good());
  const auto same = configure(good());
  ASSERT_TRUE(plain);
  ASSERT_TRUE(same);
  ASSERT_EQ(bytes_of(*plain), bytes_of(*same));  // or the comparison below would show nothing
  for (const auto& [name, range] : option_ranges()) {
    NodeOptions options = good();
    options.overrides[name] = name.starts_with("block_bytes") ? 65'536
                              : name.starts_with("liveness")  ? 501
                              : name == "trace"               ? 1
                              : name == "when_full"           ? 1
                              : name == "data_tls"            ? 1
                                                              : 7;
    const auto changed = configure(options);
    ASSERT_TRUE(changed) << name << ": " << changed.error().text;
    EXPECT_NE(bytes_of(*plain), bytes_of(*changed)) << name;
  }
}

TEST(NodeOptions, WhatIsSmallIsSoByWhatALinkCarriesUnlessItIsSaid) {
  const auto inline_bytes = [](const std::map<std::string, std::int64_t>& overrides) {
    NodeOptions options = good();
    options.overrides = overrides;
    return configure(options)->engine.inline_bytes_max;
  };
  EXPECT_EQ(inline_bytes({}), 64_KiB);
  EXPECT_EQ(inline_bytes({{"link_mbit", 100'000}}), 64_KiB);
  EXPECT_EQ(inline_bytes({{"link_mbit", 5'000}}), 32_KiB);
  EXPECT_EQ(inline_bytes({{"link_mbit", 500}}), 16_KiB);
  EXPECT_EQ(inline_bytes({{"link_mbit", 500}, {"inline_bytes_max", 100}}), 100U);
}

TEST(NodeOptions, NothingBeyondARangeIsTaken) {
  for (const auto& [name, range] : option_ranges()) {
    std::vector<std::int64_t> beyond{range.first - 1};
    if (range.second < std::numeric_limits<std::int64_t>::max()) beyond.push_back(range.second + 1);
    for (const std::int64_t value : beyond) {
      NodeOptions options = good();
      options.overrides[name] = value;
      EXPECT_FALSE(configure(options)) << name << "=" << value;
    }
  }
}

TEST(NodeOptions, WhatIsWrongIsNamed) {
  const std::vector<std::pair<std::function<void(NodeOptions&)>, std::string>> cases{
      {[](NodeOptions& o) { o.node = NodeId{0}; }, "node_id"},
      {[](NodeOptions& o) { o.incarnation = Incarnation{0}; }, "incarnation"},
      {[](NodeOptions& o) { o.secret.clear(); }, "secret"},
      {[](NodeOptions& o) { o.overrides["nonsense"] = 1; }, "there are: admission_grace_ms"},
      {[](NodeOptions& o) { o.overrides["broadcast_stripes"] = 65; }, "0 to 64"},
      {[](NodeOptions& o) { o.overrides["link_down_max_ms"] = -1; }, "link_down_max_ms"},
      {[](NodeOptions& o) { o.overrides = {{"block_bytes_min", 128}, {"block_bytes_max", 64}}; },
       "block_bytes_min=128: must be 1 to 64"},
      {[](NodeOptions& o) { o.overrides["block_bytes_min"] = 100; }, "multiple of 64"},
      {[](NodeOptions& o) { o.overrides["liveness_cut_ms"] = 249; }, "250 to"},
      {[](NodeOptions& o) { o.overrides["liveness_dead_ms"] = 299; }, "300 to"},
      {[](NodeOptions& o) { o.overrides["liveness_dead_ms"] = 400; }, "liveness_dead_ms=400"},
  };
  for (const auto& [change, text] : cases) {
    NodeOptions options = good();
    change(options);
    const auto configured = configure(options);
    ASSERT_FALSE(configured) << text;
    EXPECT_EQ(configured.error().code, Code::kInvalidArgument);
    EXPECT_NE(configured.error().text.find(text), std::string::npos) << configured.error().text;
  }
}

}  // namespace
}  // namespace hoplite

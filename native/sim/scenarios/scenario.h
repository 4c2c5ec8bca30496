// SPDX-License-Identifier: Apache-2.0
// The fixture of scripted scenarios: a cluster per test, for every number of stripes. At the end
// it must be empty and without a violation.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>

#include "sim/cluster/cluster.h"
#include "sim/model/content.h"

namespace hoplite::sim {

class Scenario : public testing::TestWithParam<std::uint16_t> {
 protected:
  // A cluster whose nodes know each other. `tweak` may change what small() gives.
  Cluster& start(std::size_t nodes, const std::function<void(ClusterConfig&)>& tweak = {}) {
    ClusterConfig config = ClusterConfig::small(GetParam());
    config.nodes = nodes;
    if (tweak) tweak(config);
    cluster_ = std::make_unique<Cluster>(config);
    cluster_->run_for(100_ms);
    return *cluster_;
  }

  // Puts and waits until it is sealed.
  Request& put_now(std::size_t node, const ObjectId& object, const PutOptions& options = {}) {
    Request& put = cluster_->put(node, object, options);
    EXPECT_TRUE(cluster_->run_until_answered(put)) << "put on node " << node;
    EXPECT_EQ(put.code(), Code::kOk) << (put.error ? put.error->text : "");
    return put;
  }

  void expect_value(Request& get, Duration limit = 10_s) {
    EXPECT_TRUE(cluster_->run_until_answered(get, limit)) << name_of(get);
    EXPECT_EQ(get.code(), Code::kOk) << (get.error ? get.error->text : "");
  }
  void expect_error(Request& request, Code code, Duration limit = 10_s) {
    EXPECT_TRUE(cluster_->run_until_answered(request, limit)) << name_of(request);
    EXPECT_EQ(request.code(), code) << (request.error ? request.error->text : "no error");
  }

  void TearDown() override {
    if (!cluster_) return;
    cluster_->finish();
    for (const std::string& failure : cluster_->checker().failures()) ADD_FAILURE() << failure;
  }

  std::unique_ptr<Cluster> cluster_;
};

inline const auto kStripeCounts = testing::Values(std::uint16_t{1}, std::uint16_t{3});
inline std::string stripe_name(const testing::TestParamInfo<std::uint16_t>& info) {
  return "k" + std::to_string(info.param);
}

}  // namespace hoplite::sim

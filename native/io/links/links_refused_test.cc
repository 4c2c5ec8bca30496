// Peers that refuse every dial are dead. SPDX-License-Identifier: Apache-2.0
#include <string>
#include <utility>
#include <vector>

#include "io/links/links_test.h"

namespace hoplite {
namespace {

const std::string kRefused = "127.0.0.1:1";

class LinksRefused : public LinksTest {};

TEST_P(LinksRefused, ANextLifeWithFewerRailsIsDeadWhenTheseRefuse) {
  for (const std::uint64_t survivor : {1, 3}) {  // which dials, and which probes
    Side a(survivor);
    const auto dies = [&](std::uint32_t life, std::vector<std::string> rails) {
      const std::size_t deaths = a.count<PeerDead>();
      const Instant limit = now_ + 1_s;  // a link that was never up may stay down for longer
      a.links.connect({NodeId{2}, Incarnation{life}, std::move(rails)}, now_);
      return run({&a},
                 [&] {
                   pass(1_ms);
                   return a.count<PeerDead>() > deaths || now_ > limit;
                 }) &&
             a.count<PeerDead>() > deaths;
    };
    EXPECT_TRUE(dies(1, {kRefused, kRefused}));
    EXPECT_TRUE(dies(2, {kRefused}));
    EXPECT_EQ(a.last<PeerDead>().incarnation, Incarnation{2});
  }
}

INSTANTIATE_TEST_SUITE_P(WithoutAndWithTls, LinksRefused,
                         ::testing::Values(DataTls::kOff, DataTls::kOn));

}  // namespace
}  // namespace hoplite

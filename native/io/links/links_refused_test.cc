// SPDX-License-Identifier: Apache-2.0
// Peers that refuse every dial are dead.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "io/links/links_test.h"

namespace hoplite {
namespace {

const std::string kRefused = "127.0.0.1:1";

// From here on the kernel refuses each dial of this thread before connect() returns. A kernel may
// do so, but over loopback Linux reports a refusal later.
void refuse_dials_at_once() {
  std::array<sock_filter, 4> filter{
      sock_filter{BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(seccomp_data, nr)},
      sock_filter{BPF_JMP | BPF_JEQ | BPF_K, 0, 1, __NR_connect},
      sock_filter{BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | ECONNREFUSED},
      sock_filter{BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW}};
  const sock_fprog program{filter.size(), filter.data()};
  HOPLITE_CHECK(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
  HOPLITE_CHECK(::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

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

TEST_P(LinksRefused, ADialThatShowsADeathIsTheLastOne) {
  std::thread([this] {
    refuse_dials_at_once();
    Side a(1);
    a.links.connect({NodeId{2}, Incarnation{1}, {kRefused}}, now_);
    a.turn(now_);
    EXPECT_EQ(a.count<PeerDead>(), 1U);
    EXPECT_EQ(a.links.counters().dials, 1U);
  }).join();
}

INSTANTIATE_TEST_SUITE_P(WithoutAndWithTls, LinksRefused,
                         ::testing::Values(DataTls::kOff, DataTls::kOn));

}  // namespace
}  // namespace hoplite

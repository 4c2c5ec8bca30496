// SPDX-License-Identifier: Apache-2.0
// Sessions over a socket pair, without the links around them: what leaves, what comes, what ends.
#include "io/sockets/tls.h"

#include <gtest/gtest.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "base/must_test.h"
#include "base/prng.h"
#include "io/sockets/authority_test.h"
#include "io/sockets/stream.h"

namespace hoplite {
namespace {

using Side = TlsSession::Side;

Bytes noise(std::size_t size) {
  Prng prng(size);
  Bytes bytes(size);
  for (auto& each : bytes) each = static_cast<std::byte>(prng.next());
  return bytes;
}

std::array<UniqueFd, 2> connect() {
  std::array<int, 2> ends{};
  HOPLITE_CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()) ==
                0);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

struct Pair {
  explicit Pair(const TlsContext& dials, const TlsContext& listens) {
    auto ends = connect();
    dialler = Stream(std::move(ends[0]), dials.begin(Side::kDials));
    listener = Stream(std::move(ends[1]), listens.begin(Side::kListens));
  }
  // Runs the TLS handshake, and records the first refusal that each end reports.
  void greet() {
    for (int i = 0; i < 10; ++i) {
      for (Stream* each : {&dialler, &listener}) {
        [[maybe_unused]] const auto flushed = each->flush();
        std::byte none{};
        iovec part{&none, 1};
        auto got = each->receive({&part, 1}, ReadAhead::kNone);
        if (!got && got.error().code == Code::kUnauthenticated) {
          std::string& says = each == &dialler ? dialler_says : listener_says;
          if (says.empty()) says = got.error().text;
        }
      }
    }
  }
  Stream dialler, listener;
  std::string dialler_says, listener_says;
};

// A peer that sends messages that no session of ours sends; it accepts any certificate.
class Stranger {
 public:
  Stranger(const TlsFiles& files, UniqueFd fd)
      : context_(::SSL_CTX_new(::TLS_method()), &::SSL_CTX_free),
        ssl_(nullptr, &::SSL_free),
        fd_(std::move(fd)) {
    const auto text = [](const std::string& pem) {
      return std::unique_ptr<BIO, decltype(&::BIO_free)>(
          ::BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())), &::BIO_free);
    };
    X509* const own = ::PEM_read_bio_X509(text(files.certificate).get(), nullptr, nullptr, nullptr);
    EVP_PKEY* const key =
        ::PEM_read_bio_PrivateKey(text(files.key).get(), nullptr, nullptr, nullptr);
    HOPLITE_CHECK(::SSL_CTX_use_certificate(context_.get(), own) == 1);
    HOPLITE_CHECK(::SSL_CTX_use_PrivateKey(context_.get(), key) == 1);
    ::X509_free(own);
    ::EVP_PKEY_free(key);
    ssl_.reset(::SSL_new(context_.get()));
    HOPLITE_CHECK(::SSL_set_fd(ssl_.get(), fd_.value()) == 1);
    ::SSL_set_connect_state(ssl_.get());
  }
  void greet(Stream& listener) {
    std::byte none{};
    iovec part{&none, 1};
    for (int i = 0; i < 10; ++i) {
      ::SSL_do_handshake(ssl_.get());
      [[maybe_unused]] const auto got = listener.receive({&part, 1}, ReadAhead::kNone);
    }
    HOPLITE_CHECK(listener.is_open());
  }
  [[nodiscard]] SSL* ssl() const { return ssl_.get(); }
  [[nodiscard]] bool ask_for_keys() const {
    return ::SSL_key_update(ssl(), SSL_KEY_UPDATE_REQUESTED) == 1 && ::SSL_do_handshake(ssl()) == 1;
  }

 private:
  std::unique_ptr<SSL_CTX, decltype(&::SSL_CTX_free)> context_;
  std::unique_ptr<SSL, decltype(&::SSL_free)> ssl_;
  UniqueFd fd_;
};

class TlsTest : public ::testing::Test {
 protected:
  [[nodiscard]] TlsContext node(std::uint64_t rekey = TlsContext::kRekeyBytes) const {
    return must(TlsContext::open(ours_.certify(), rekey));
  }
  // Sends all of it through sockets that fill up, and receives it `ask` bytes at a time.
  static Bytes pass(Stream& from, Stream& to, Bytes bytes, std::size_t ask, ReadAhead ahead) {
    Bytes received;
    Bytes room(ask);
    std::size_t said = 0;
    while (received.size() < bytes.size()) {
      EXPECT_TRUE(from.flush());
      if (said < bytes.size() && from.is_ready()) {
        iovec part{bytes.data() + said, bytes.size() - said};
        said += must(from.send({&part, 1}));
      }
      for (std::size_t got = ask; got == ask;) {
        iovec part{room.data(), room.size()};
        got = must(to.receive({&part, 1}, ahead));
        received.insert(received.end(), room.begin(),
                        room.begin() + static_cast<std::ptrdiff_t>(got));
      }
      EXPECT_FALSE(to.has_unread());
    }
    return received;
  }

  Authority ours_;
};

TEST_F(TlsTest, BothEndsOpenAndHaveABindingThatNoOtherSessionHas) {
  Pair pair(node(), node());
  EXPECT_FALSE(pair.dialler.is_open());
  pair.greet();
  ASSERT_TRUE(pair.dialler.is_open() && pair.listener.is_open());
  EXPECT_EQ(pair.dialler.binding(), pair.listener.binding());
  Pair other(node(), node());
  other.greet();
  EXPECT_NE(pair.dialler.binding(), other.dialler.binding());
}

TEST_F(TlsTest, BytesArriveAsTheyWereThroughSocketsThatFillUp) {
  for (const auto ahead : {ReadAhead::kNone, ReadAhead::kAllowed}) {
    Pair pair(node(), node());
    pair.greet();
    const Bytes bytes = noise(5'000'000);
    EXPECT_EQ(pass(pair.dialler, pair.listener, bytes, 1'000'000, ahead), bytes);
    EXPECT_EQ(pass(pair.listener, pair.dialler, noise(200'000), 7, ahead), noise(200'000));
  }
}

TEST_F(TlsTest, KeysChangeOnTheWay) {
  const auto context = node(100'000);
  Pair pair(context, context);
  pair.greet();
  const Bytes bytes = noise(1'000'000);
  EXPECT_EQ(pass(pair.dialler, pair.listener, bytes, 50'000, ReadAhead::kAllowed), bytes);
  EXPECT_EQ(pass(pair.listener, pair.dialler, bytes, 50'000, ReadAhead::kNone), bytes);
}

TEST_F(TlsTest, WhatIsSaidStaysOffTheWireAndWaitsInBoundedMemory) {
  Pair pair(node(), node());
  pair.greet();
  Bytes bytes(4'000'000, std::byte{'x'});
  iovec part{bytes.data(), bytes.size()};
  const std::size_t taken = must(pair.dialler.send({&part, 1}));
  EXPECT_LT(taken, bytes.size());  // the socket is full, and the other end does not read
  EXPECT_TRUE(pair.dialler.has_unsent());
  EXPECT_FALSE(pair.dialler.is_ready());
  Bytes wire(bytes.size());
  const ssize_t got = ::recv(pair.listener.fd(), wire.data(), wire.size(), MSG_DONTWAIT);
  ASSERT_GT(got, 0);
  wire.resize(static_cast<std::size_t>(got));
  EXPECT_LT(taken, wire.size() + 128 * 1024);  // all but this has left
  const Bytes said(16, std::byte{'x'});
  EXPECT_EQ(std::search(wire.begin(), wire.end(), said.begin(), said.end()), wire.end());
}

TEST_F(TlsTest, WhatCameBeforeTheEndIsHeardAndThenTheEnd) {
  Pair pair(node(), node());
  pair.greet();
  Bytes bytes = noise(1000);
  iovec out{bytes.data(), bytes.size()};
  ASSERT_EQ(must(pair.dialler.send({&out, 1})), bytes.size());
  pair.dialler = Stream();
  Bytes received(2000);
  iovec in{received.data(), received.size()};
  EXPECT_EQ(must(pair.listener.receive({&in, 1}, ReadAhead::kAllowed)), bytes.size());
  auto end = pair.listener.receive({&in, 1}, ReadAhead::kAllowed);
  ASSERT_FALSE(end);
  EXPECT_EQ(end.error().code, Code::kPeerLost);
  EXPECT_EQ(pair.listener.end(), 0);
}

TEST_F(TlsTest, AnEndThatIsOnlySaidIsTheEnd) {
  auto ends = connect();
  Stream listener(std::move(ends[1]), node().begin(Side::kListens));
  Stranger stranger(ours_.certify(), std::move(ends[0]));
  stranger.greet(listener);
  ASSERT_GE(::SSL_shutdown(stranger.ssl()), 0);
  Bytes room(100);
  iovec in{room.data(), room.size()};
  auto received = listener.receive({&in, 1}, ReadAhead::kAllowed);
  ASSERT_FALSE(received);
  EXPECT_EQ(received.error().code, Code::kPeerLost);
  EXPECT_EQ(listener.end(), 0);
}

TEST_F(TlsTest, WhoAsksForOtherKeysIsAnsweredByWhoHasNothingToSay) {
  auto ends = connect();
  Stream listener(std::move(ends[1]), node().begin(Side::kListens));
  Stranger stranger(ours_.certify(), std::move(ends[0]));
  stranger.greet(listener);
  Bytes bytes = noise(100);
  Bytes received(bytes.size());
  for (int i = 0; i < 10'000; ++i) {
    ASSERT_TRUE(stranger.ask_for_keys());
    iovec in{bytes.data(), bytes.size()};
    ASSERT_EQ(must(listener.receive({&in, 1}, ReadAhead::kAllowed)), 0U);
    ASSERT_FALSE(listener.has_unsent());
    ASSERT_LT(::SSL_read(stranger.ssl(), received.data(), 100), 0);  // nothing but keys
  }
  iovec out{bytes.data(), bytes.size()};
  ASSERT_EQ(must(listener.send({&out, 1})), bytes.size());
  EXPECT_EQ(::SSL_read(stranger.ssl(), received.data(), 100), 100);
  EXPECT_EQ(received, bytes);
}

TEST_F(TlsTest, WhoAsksForKeysAndTakesNoneIsCutOff) {
  auto ends = connect();
  Stream listener(std::move(ends[1]), node().begin(Side::kListens));
  Stranger stranger(ours_.certify(), std::move(ends[0]));
  stranger.greet(listener);
  for (int i = 0; i < 100'000; ++i) {
    ASSERT_TRUE(stranger.ask_for_keys());
    std::byte none{};
    iovec in{&none, 1};
    const auto received = listener.receive({&in, 1}, ReadAhead::kAllowed);
    if (received) continue;
    EXPECT_EQ(received.error().code, Code::kBadFrame);
    return;
  }
  FAIL() << "its answers wait without bound";
}

TEST_F(TlsTest, AChangedByteIsABadFrame) {
  Pair pair(node(), node());
  pair.greet();
  Bytes bytes = noise(1000);
  iovec out{bytes.data(), bytes.size()};
  ASSERT_EQ(must(pair.dialler.send({&out, 1})), bytes.size());
  Bytes wire(4000);
  const ssize_t got = ::recv(pair.listener.fd(), wire.data(), wire.size(), MSG_DONTWAIT);
  ASSERT_GT(got, 500);
  wire[500] ^= std::byte{1};
  ASSERT_EQ(::send(pair.dialler.fd(), wire.data(), static_cast<std::size_t>(got), 0), got);
  iovec in{wire.data(), wire.size()};
  auto received = pair.listener.receive({&in, 1}, ReadAhead::kAllowed);
  ASSERT_FALSE(received);
  EXPECT_EQ(received.error().code, Code::kBadFrame);
}

TEST_F(TlsTest, ADiallerOfAnotherAuthorityIsRefusedAndBothEndsSaySo) {
  const Authority theirs;
  TlsFiles stranger = theirs.certify();
  stranger.authority = ours_.own();
  Pair pair(must(TlsContext::open(stranger)), node());
  pair.greet();
  EXPECT_FALSE(pair.listener.is_open());
  EXPECT_NE(pair.listener_says.find("our RAY_TLS_CA_CERT must have signed it"), std::string::npos);
  EXPECT_NE(pair.dialler_says.find("it refuses our certificate"), std::string::npos)
      << pair.dialler_says;
}

TEST_F(TlsTest, AListenerOfAnotherAuthorityIsRefusedAndBothEndsSaySo) {
  const Authority theirs;
  Pair pair(node(), must(TlsContext::open(theirs.certify())));
  pair.greet();
  EXPECT_FALSE(pair.dialler.is_open() || pair.listener.is_open());
  EXPECT_NE(pair.dialler_says.find("its certificate is refused"), std::string::npos);
  EXPECT_NE(pair.listener_says.find("it refuses our certificate"), std::string::npos);
}

TEST_F(TlsTest, AnAuthorityThatAnotherHasSignedIsEnough) {
  const Authority below(&ours_);
  const auto context = must(TlsContext::open(below.certify()));
  Pair pair(context, context);
  pair.greet();
  EXPECT_TRUE(pair.dialler.is_open() && pair.listener.is_open()) << pair.listener_says;
}

TEST_F(TlsTest, WhileTheAuthorityChangesBothAreTrusted) {
  const Authority far;
  const Authority next(&far);  // OpenSSL tells them apart by their names
  TlsFiles old_node = ours_.certify(), new_node = next.certify();
  old_node.authority = new_node.authority = ours_.own() + next.own();
  Pair pair(must(TlsContext::open(old_node)), must(TlsContext::open(new_node)));
  pair.greet();
  EXPECT_TRUE(pair.dialler.is_open() && pair.listener.is_open()) << pair.listener_says;
}

TEST_F(TlsTest, WhatIsToBeDoneAboutARefusedCertificateIsSaid) {
  const auto said = [this](const Authority::Terms& terms) {
    Pair pair(must(TlsContext::open(ours_.certify(terms))), node());
    pair.greet();
    return pair.listener_says;
  };
  EXPECT_TRUE(said({}).empty());
  EXPECT_NE(said({.lasts_s = -60}).find("renew it, or set this node's clock"), std::string::npos);
  EXPECT_NE(said({.uses = "serverAuth"}).find("one for servers and for clients"),
            std::string::npos);
}

TEST_F(TlsTest, FilesOfNoUseAreNamed) {
  const TlsFiles good = ours_.certify();
  const auto said = [](const TlsFiles& files) {
    auto opened = TlsContext::open(files);
    return opened ? std::string("all is well") : opened.error().text;
  };
  EXPECT_EQ(said(good), "all is well");
  EXPECT_NE(said({"", good.key, good.authority}).find("RAY_TLS_SERVER_CERT"), std::string::npos);
  EXPECT_NE(said({good.certificate, "no key", good.authority}).find("RAY_TLS_SERVER_KEY"),
            std::string::npos);
  EXPECT_NE(said({good.certificate, ours_.certify().key, good.authority}).find("key values"),
            std::string::npos);
  EXPECT_NE(said({good.certificate, good.key, ""}).find("RAY_TLS_CA_CERT"), std::string::npos);
}

}  // namespace
}  // namespace hoplite

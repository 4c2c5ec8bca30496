// SPDX-License-Identifier: Apache-2.0
#include "io/sockets/tls.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509_vfy.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "io/sockets/system_error.h"

namespace hoplite {
namespace {

constexpr std::size_t kRecordBytes = 16_KiB;  // of plain bytes: the most that TLS allows
// 64 KiB: one send takes four records. A larger number is not faster.
constexpr std::size_t kUnsentBytesMax = 64_KiB;
// Adds the overhead of records, and the messages of OpenSSL itself.
constexpr std::size_t kOutBytesMax = kUnsentBytesMax + 2 * kRecordBytes;
constexpr std::string_view kBindingLabel = "EXPORTER-hoplite";
constexpr std::size_t kBindingBytes = 32;
// AES-128 is the fastest on a core with instructions for AES. A peer may choose 256 bits.
constexpr const char* kCiphers = "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384";

constexpr std::size_t kAheadBytes = 64_KiB;
thread_local std::array<std::byte, kAheadBytes> ahead_buffer;

bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

using Memory = std::unique_ptr<BIO, decltype(&::BIO_free)>;

Memory to_bio(const std::string& pem) {
  return {::BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())), &::BIO_free};
}

int no_password(char* /*into*/, int /*size*/, int /*writing*/, void* /*context*/) { return 0; }

std::string reason() {
  const char* const text = ::ERR_reason_error_string(::ERR_peek_last_error());
  return text != nullptr ? text : "nothing of use in it";
}

Error unusable(const char* variable) {
  return {Code::kInvalidArgument, std::string("data_tls: ") + variable + " is of no use (" +
                                      reason() + "); name a PEM file that fits the others"};
}

bool use_certificate(SSL_CTX* context, const std::string& pem) {
  const Memory bio = to_bio(pem);
  X509* const own = ::PEM_read_bio_X509(bio.get(), nullptr, &no_password, nullptr);
  const bool is_used = own != nullptr && ::SSL_CTX_use_certificate(context, own) == 1;
  ::X509_free(own);
  if (!is_used) return false;
  while (X509* const above = ::PEM_read_bio_X509(bio.get(), nullptr, &no_password, nullptr)) {
    if (::SSL_CTX_add0_chain_cert(context, above) == 1) continue;
    ::X509_free(above);
    return false;
  }
  ::ERR_clear_error();  // "no start line": the end of the file
  return true;
}

bool use_key(SSL_CTX* context, const std::string& pem) {
  const Memory bio = to_bio(pem);
  EVP_PKEY* const key = ::PEM_read_bio_PrivateKey(bio.get(), nullptr, &no_password, nullptr);
  const bool is_used = key != nullptr && ::SSL_CTX_use_PrivateKey(context, key) == 1 &&
                       ::SSL_CTX_check_private_key(context) == 1;
  ::EVP_PKEY_free(key);
  return is_used;
}

const char* next_step(long verdict) {
  switch (verdict) {
    case X509_V_ERR_CERT_HAS_EXPIRED:
    case X509_V_ERR_CERT_NOT_YET_VALID:
      return "renew it, or set this node's clock";
    case X509_V_ERR_INVALID_PURPOSE:
      return "let it be one for servers and for clients (extendedKeyUsage)";
    default:
      return "our RAY_TLS_CA_CERT must have signed it";
  }
}

bool trust(SSL_CTX* context, const std::string& pem) {
  const Memory bio = to_bio(pem);
  int count = 0;
  while (X509* const each = ::PEM_read_bio_X509(bio.get(), nullptr, &no_password, nullptr)) {
    count += ::X509_STORE_add_cert(::SSL_CTX_get_cert_store(context), each);
    ::X509_free(each);
  }
  if (count == 0) return false;
  // An intermediate authority in the file is enough, as in gRPC.
  ::X509_STORE_set_flags(::SSL_CTX_get_cert_store(context),
                         X509_V_FLAG_PARTIAL_CHAIN | X509_V_FLAG_TRUSTED_FIRST);
  ::ERR_clear_error();
  return true;
}

}  // namespace

// The ends of a session as OpenSSL calls them: it reads from the kernel and writes to `out_`.
struct TlsBytes {
  static TlsSession& of(BIO* bio) { return *static_cast<TlsSession*>(::BIO_get_data(bio)); }

  static int write(BIO* bio, const char* data, std::size_t size, std::size_t* written) {
    TlsSession& session = of(bio);
    ::BIO_clear_retry_flags(bio);
    if (session.unsent_bytes() + size > kOutBytesMax) {  // a peer that takes no answers
      ::BIO_set_retry_write(bio);
      return 0;
    }
    if (session.out_.capacity() < size) session.out_.reserve(std::max(size, kOutBytesMax));
    const auto* const from = reinterpret_cast<const std::byte*>(data);
    session.out_.insert(session.out_.end(), from, from + size);
    *written = size;
    return 1;
  }

  static int read(BIO* bio, char* into, std::size_t size, std::size_t* got) {
    ::BIO_clear_retry_flags(bio);
    *got = of(bio).pull({reinterpret_cast<std::byte*>(into), size});
    if (*got > 0) return 1;
    ::BIO_set_retry_read(bio);  // at the stream's end as well: receive() looks for that itself
    return 0;
  }

  static long control(BIO* /*bio*/, int command, long /*number*/, void* /*pointer*/) {
    return command == BIO_CTRL_FLUSH ? 1 : 0;
  }

  static const BIO_METHOD* method() {
    static BIO_METHOD* const made = [] {
      BIO_METHOD* const each =
          ::BIO_meth_new(::BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "hoplite");
      HOPLITE_CHECK(each != nullptr);
      ::BIO_meth_set_write_ex(each, &write);
      ::BIO_meth_set_read_ex(each, &read);
      ::BIO_meth_set_ctrl(each, &control);
      return each;
    }();
    return made;
  }
};

TlsSession::TlsSession(SSL_CTX* context, Side side, std::uint64_t rekey_bytes)
    : ssl_(::SSL_new(context)), rekey_bytes_(rekey_bytes) {
  HOPLITE_CHECK(ssl_ != nullptr);
  BIO* const bytes = ::BIO_new(TlsBytes::method());
  HOPLITE_CHECK(bytes != nullptr);
  ::BIO_set_data(bytes, this);
  ::BIO_set_init(bytes, 1);
  ::SSL_set_bio(ssl_, bytes, bytes);
  if (side == Side::kListens) {
    ::SSL_set_accept_state(ssl_);
    return;
  }
  ::SSL_set_connect_state(ssl_);
  [[maybe_unused]] const auto greeted = advance_handshake();  // it can only want to hear
}

TlsSession::~TlsSession() { ::SSL_free(ssl_); }

bool TlsSession::has_unread() const { return !unread_.empty() || ::SSL_pending(ssl_) > 0; }

Bytes TlsSession::binding() const {
  HOPLITE_CHECK(is_open_);
  Bytes made(kBindingBytes);
  const int is_made =
      ::SSL_export_keying_material(ssl_, reinterpret_cast<unsigned char*>(made.data()), made.size(),
                                   kBindingLabel.data(), kBindingLabel.size(), nullptr, 0, 0);
  HOPLITE_CHECK(is_made == 1);
  return made;
}

// ---- out ----

Result<std::size_t> TlsSession::send(int fd, std::span<const iovec> parts) {
  HOPLITE_CHECK(is_open_);
  ahead_ = ReadAhead::kInHand;  // a write must read nothing, whatever OpenSSL tries
  std::size_t taken = 0;
  for (const iovec& part : parts) {
    std::span<const std::byte> left(static_cast<const std::byte*>(part.iov_base), part.iov_len);
    while (!left.empty()) {
      if (unsent_bytes() >= kUnsentBytesMax) {
        if (auto flushed = flush(fd); !flushed) return flushed.error();
      }
      if (unsent_bytes() >= kUnsentBytesMax) return taken;
      const auto record = left.first(std::min(left.size(), kRecordBytes));
      if (auto written = write(record); !written) return written.error();
      taken += record.size();
      left = left.subspan(record.size());
    }
  }
  if (auto flushed = flush(fd); !flushed) return flushed.error();
  return taken;
}

Result<void> TlsSession::write(std::span<const std::byte> record) {
  ::ERR_clear_error();
  if (written_bytes_ >= rekey_bytes_) {
    written_bytes_ = 0;
    if (::SSL_key_update(ssl_, SSL_KEY_UPDATE_NOT_REQUESTED) != 1) return failure();
  }
  std::size_t written = 0;
  if (::SSL_write_ex(ssl_, record.data(), record.size(), &written) != 1) return failure();
  HOPLITE_CHECK(written == record.size());  // out_ had room for it
  written_bytes_ += written;
  return {};
}

Result<void> TlsSession::flush(int fd) {
  while (unsent_bytes() > 0) {
    const ssize_t sent =
        ::send(fd, out_.data() + out_sent_, unsent_bytes(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && would_block()) {
      out_.erase(out_.begin(), out_.begin() + static_cast<std::ptrdiff_t>(out_sent_));
      out_sent_ = 0;
      return {};
    }
    if (sent < 0) {
      end_ = End{errno};
      return system_error("send", Code::kPeerLost);
    }
    out_sent_ += static_cast<std::size_t>(sent);
  }
  out_ = {};  // thousands of idle connections need none
  out_sent_ = 0;
  return {};
}

// ---- in ----

Result<std::size_t> TlsSession::receive(int fd, std::span<const iovec> parts, ReadAhead ahead) {
  fd_ = fd;
  ahead_ = ahead;
  if (!is_open_) {
    auto greeted = advance_handshake();
    const auto flushed = flush(fd);  // a refusal leaves as well
    if (!greeted) return greeted.error();
    if (!flushed) return flushed.error();
  }
  std::size_t got = 0;
  for (const iovec& part : parts) {
    std::span<std::byte> left(static_cast<std::byte*>(part.iov_base), part.iov_len);
    while (is_open_ && !left.empty()) {
      std::size_t here = 0;
      ::ERR_clear_error();
      const int result = ::SSL_read_ex(ssl_, left.data(), left.size(), &here);
      if (result != 1) {
        const int wanted = ::SSL_get_error(ssl_, result);
        if (wanted == SSL_ERROR_ZERO_RETURN) {
          end_ = End{};  // the peer says so, and need not close the socket as well
        } else if (wanted != SSL_ERROR_WANT_READ) {
          // OpenSSL wants to write only if there is no room for one more answer to a KeyUpdate. No
          // peer of ours gets that far.
          return failure();
        }
        break;
      }
      got += here;
      left = left.subspan(here);
    }
    if (!left.empty()) break;
  }
  if (auto flushed = flush(fd); !flushed && got == 0) return flushed.error();  // answers
  if (got > 0 || !end_) return got;
  if (end_->number == 0) return Error{Code::kPeerLost, "the peer closed the connection"};
  errno = end_->number;
  return system_error("recv", Code::kPeerLost);
}

std::size_t TlsSession::pull(std::span<std::byte> into) {
  if (unread_.empty()) {
    const bool is_ahead = ahead_ == ReadAhead::kAllowed;
    if (ahead_ == ReadAhead::kInHand) return 0;
    const std::span<std::byte> room = is_ahead ? std::span<std::byte>(ahead_buffer) : into;
    const ssize_t came = ::recv(fd_, room.data(), room.size(), MSG_DONTWAIT);
    if (came < 0 && would_block()) return 0;
    if (came <= 0) {
      end_ = End{came < 0 ? errno : 0};
      return 0;
    }
    if (!is_ahead) return static_cast<std::size_t>(came);
    unread_ = std::span(ahead_buffer).first(static_cast<std::size_t>(came));
  }
  const std::size_t taken = std::min(into.size(), unread_.size());
  std::memcpy(into.data(), unread_.data(), taken);
  unread_ = unread_.subspan(taken);
  return taken;
}

// ---- greeting ----

Result<void> TlsSession::advance_handshake() {
  ::ERR_clear_error();
  const int result = ::SSL_do_handshake(ssl_);
  if (result == 1) {
    is_open_ = true;
    return {};
  }
  const int wanted = ::SSL_get_error(ssl_, result);
  if (wanted == SSL_ERROR_WANT_READ || wanted == SSL_ERROR_WANT_WRITE) return {};
  return failure();
}

Error TlsSession::failure() {
  const int number = ERR_GET_REASON(::ERR_peek_last_error());
  const long verdict = ::SSL_get_verify_result(ssl_);
  if (number == SSL_R_WRONG_VERSION_NUMBER || number == SSL_R_TLSV1_ALERT_PROTOCOL_VERSION) {
    return {Code::kUnauthenticated,
            "it speaks no TLS, and data_tls is on here; give all nodes the same data_tls"};
  }
  if (verdict != X509_V_OK) {
    return {Code::kUnauthenticated, std::string("its certificate is refused (") +
                                        ::X509_verify_cert_error_string(verdict) + "); " +
                                        next_step(verdict)};
  }
  if (number > SSL_AD_REASON_OFFSET) {
    return {Code::kUnauthenticated, "it refuses our certificate (" + reason() +
                                        "); its RAY_TLS_CA_CERT must have signed it"};
  }
  return {is_open_ ? Code::kBadFrame : Code::kUnauthenticated, "no TLS of use: " + reason()};
}

// ---- context ----

TlsContext::TlsContext(Owned context, std::uint64_t rekey_bytes)
    : context_(std::move(context)), rekey_bytes_(rekey_bytes) {}

void TlsContext::Free::operator()(SSL_CTX* context) const { ::SSL_CTX_free(context); }

Result<TlsContext> TlsContext::open(const TlsFiles& files, std::uint64_t rekey_bytes) {
  ::ERR_clear_error();
  Owned context(::SSL_CTX_new(::TLS_method()));
  HOPLITE_CHECK(context != nullptr);
  SSL_CTX* const made = context.get();
  HOPLITE_CHECK(::SSL_CTX_set_min_proto_version(made, TLS1_3_VERSION) == 1);
  HOPLITE_CHECK(::SSL_CTX_set_ciphersuites(made, kCiphers) == 1);
  ::SSL_CTX_set_verify(made, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  ::SSL_CTX_set_mode(made, SSL_MODE_RELEASE_BUFFERS);
  // Every connection proves its certificates: nothing of an earlier one is kept, or travels.
  ::SSL_CTX_set_session_cache_mode(made, SSL_SESS_CACHE_OFF);
  ::SSL_CTX_set_options(made, SSL_OP_NO_TICKET);
  ::SSL_CTX_set_num_tickets(made, 0);
  if (!use_certificate(made, files.certificate)) return unusable("RAY_TLS_SERVER_CERT");
  if (!use_key(made, files.key)) return unusable("RAY_TLS_SERVER_KEY");
  if (!trust(made, files.authority)) return unusable("RAY_TLS_CA_CERT");
  return TlsContext(std::move(context), rekey_bytes);
}

std::unique_ptr<TlsSession> TlsContext::begin(TlsSession::Side side) const {
  return std::make_unique<TlsSession>(context_.get(), side, rekey_bytes_);
}

// ---- a node without TLS ----

bool is_tls(std::span<const std::byte> first) {
  constexpr std::byte kAlert{0x15}, kGreeting{0x16}, kMajor{3};
  return first.size() > 1 && (first[0] == kAlert || first[0] == kGreeting) && first[1] == kMajor;
}

std::span<const std::byte> no_tls_alert() {
  static constexpr std::array<std::byte, 7> kAlert{std::byte{0x15},
                                                   std::byte{3},
                                                   std::byte{3},
                                                   std::byte{0},
                                                   std::byte{2},
                                                   std::byte{2},
                                                   std::byte{SSL_AD_PROTOCOL_VERSION}};
  return kAlert;
}

}  // namespace hoplite

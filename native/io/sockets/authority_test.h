// SPDX-License-Identifier: Apache-2.0
// An authority of certificates, made on the spot, for tests.
#pragma once

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <memory>
#include <string>
#include <utility>

#include "base/check.h"
#include "io/sockets/tls.h"

namespace hoplite {

class Authority {
 public:
  struct Terms {
    long lasts_s = 3600;
    std::string uses = "serverAuth,clientAuth";
  };

  Authority() : Authority(nullptr) {}
  // An authority that `above` has signed. If `above` is null, the authority signs itself.
  explicit Authority(const Authority* above)
      : name_(above == nullptr ? "authority" : "authority below"),
        own_((above == nullptr ? *this : *above)
                 .sign(name_, key_.get(), {NID_basic_constraints, "critical,CA:TRUE"}, Terms{})) {}

  // Returns a node's certificate, its key, and the authority that the node trusts.
  [[nodiscard]] TlsFiles certify(const Terms& terms = Terms{3600, "serverAuth,clientAuth"}) const {
    const Key key = make_key();
    const Memory text = make_memory();
    HOPLITE_CHECK(::PEM_write_bio_PrivateKey(text.get(), key.get(), nullptr, nullptr, 0, nullptr,
                                             nullptr) == 1);
    return {sign("node", key.get(), {NID_ext_key_usage, terms.uses}, terms), contents(text.get()),
            own_};
  }
  [[nodiscard]] const std::string& own() const { return own_; }

 private:
  using Key = std::unique_ptr<EVP_PKEY, decltype(&::EVP_PKEY_free)>;
  using Memory = std::unique_ptr<BIO, decltype(&::BIO_free)>;
  using Extension = std::pair<int, std::string>;  // NID_* and what it says
  using Certificate = std::unique_ptr<X509, decltype(&::X509_free)>;

  static Key make_key() { return {::EVP_EC_gen("P-256"), &::EVP_PKEY_free}; }
  static Memory make_memory() { return {::BIO_new(::BIO_s_mem()), &::BIO_free}; }
  static std::string contents(BIO* bio) {
    char* data = nullptr;
    const long size = BIO_get_mem_data(bio, &data);
    return {data, static_cast<std::size_t>(size)};
  }
  static void name(X509_NAME* subject, const std::string& text) {
    const auto* const bytes = reinterpret_cast<const unsigned char*>(text.c_str());
    HOPLITE_CHECK(::X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC, bytes, -1, -1, 0) == 1);
  }
  static void extend(X509* x, const Extension& how) {
    X509_EXTENSION* const made =
        ::X509V3_EXT_conf_nid(nullptr, nullptr, how.first, how.second.c_str());
    HOPLITE_CHECK(made != nullptr);
    HOPLITE_CHECK(::X509_add_ext(x, made, -1) == 1);
    ::X509_EXTENSION_free(made);
  }
  [[nodiscard]] std::string sign(const std::string& subject, EVP_PKEY* key, const Extension& how,
                                 const Terms& terms) const {
    constexpr long kHourS = 3600;
    const Certificate made{::X509_new(), &::X509_free};
    X509* const x = made.get();
    HOPLITE_CHECK(::X509_set_version(x, X509_VERSION_3) == 1);
    name(::X509_get_issuer_name(x), name_);
    name(::X509_get_subject_name(x), subject);
    ::ASN1_INTEGER_set(::X509_get_serialNumber(x), key == key_.get() ? 1 : 2);
    ::X509_gmtime_adj(::X509_getm_notBefore(x), -kHourS);
    ::X509_gmtime_adj(::X509_getm_notAfter(x), terms.lasts_s);
    HOPLITE_CHECK(::X509_set_pubkey(x, key) == 1);
    extend(x, how);
    HOPLITE_CHECK(::X509_sign(x, key_.get(), ::EVP_sha256()) > 0);
    const Memory text = make_memory();
    HOPLITE_CHECK(::PEM_write_bio_X509(text.get(), x) == 1);
    return contents(text.get());
  }

  Key key_ = make_key();
  std::string name_;
  std::string own_;
};

}  // namespace hoplite

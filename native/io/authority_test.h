// An authority of certificates, made on the spot, for tests. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <memory>
#include <string>

#include "base/check.h"
#include "io/tls.h"

namespace hoplite {

class Authority {
 public:
  Authority() : own_(sign(key_.get())) {}

  // For one node: a certificate of ours, its key, and whom it trusts.
  [[nodiscard]] TlsFiles certify() const {
    const Key key = make_key();
    const Memory text = make_memory();
    HOPLITE_CHECK(::PEM_write_bio_PrivateKey(text.get(), key.get(), nullptr, nullptr, 0, nullptr,
                                             nullptr) == 1);
    return {sign(key.get()), contents(text.get()), own_};
  }
  [[nodiscard]] const std::string& own() const { return own_; }

 private:
  using Key = std::unique_ptr<EVP_PKEY, decltype(&::EVP_PKEY_free)>;
  using Memory = std::unique_ptr<BIO, decltype(&::BIO_free)>;
  using Certificate = std::unique_ptr<X509, decltype(&::X509_free)>;

  static Key make_key() { return {::EVP_EC_gen("P-256"), &::EVP_PKEY_free}; }
  static Memory make_memory() { return {::BIO_new(::BIO_s_mem()), &::BIO_free}; }
  static std::string contents(BIO* bio) {
    char* data = nullptr;
    const long size = BIO_get_mem_data(bio, &data);
    return {data, static_cast<std::size_t>(size)};
  }
  static void name(X509_NAME* subject, const char* text) {
    const auto* const bytes = reinterpret_cast<const unsigned char*>(text);
    HOPLITE_CHECK(::X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC, bytes, -1, -1, 0) == 1);
  }
  [[nodiscard]] std::string sign(EVP_PKEY* key) const {
    constexpr long kHourS = 3600;
    const Certificate made{::X509_new(), &::X509_free};
    X509* const x = made.get();
    name(::X509_get_issuer_name(x), "authority");
    name(::X509_get_subject_name(x), key == key_.get() ? "authority" : "node");
    ::ASN1_INTEGER_set(::X509_get_serialNumber(x), key == key_.get() ? 1 : 2);
    ::X509_gmtime_adj(::X509_getm_notBefore(x), -kHourS);
    ::X509_gmtime_adj(::X509_getm_notAfter(x), kHourS);
    HOPLITE_CHECK(::X509_set_pubkey(x, key) == 1);
    HOPLITE_CHECK(::X509_sign(x, key_.get(), ::EVP_sha256()) > 0);
    const Memory text = make_memory();
    HOPLITE_CHECK(::PEM_write_bio_X509(text.get(), x) == 1);
    return contents(text.get());
  }

  Key key_ = make_key();
  std::string own_;
};

}  // namespace hoplite

#include "adapters/digest.h"

#include "core/error.h"

#include <openssl/evp.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <utility>
#include <vector>

namespace mlxcel {

namespace {

EVP_MD_CTX* as_context(void* context) {
  return static_cast<EVP_MD_CTX*>(context);
}

}  // namespace

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  if (context_ == nullptr ||
      EVP_DigestInit_ex(as_context(context_), EVP_sha256(), nullptr) != 1) {
    EVP_MD_CTX_free(as_context(context_));
    throw Error("cannot start a SHA-256 digest", "libcrypto refused it");
  }
}

Sha256::~Sha256() {
  EVP_MD_CTX_free(as_context(context_));
}

void Sha256::update(const void* data, size_t bytes) {
  if (EVP_DigestUpdate(as_context(context_), data, bytes) != 1) {
    throw Error("cannot compute a SHA-256 digest", "libcrypto failed");
  }
}

std::string Sha256::hex() {
  unsigned char bytes[32];
  unsigned length = 0;
  if (EVP_DigestFinal_ex(as_context(context_), bytes, &length) != 1) {
    throw Error("cannot finish a SHA-256 digest", "libcrypto failed");
  }
  std::string out;
  for (unsigned i = 0; i < length; ++i) {
    out += fmt::format("{:02x}", bytes[i]);
  }
  return out;
}

std::string effective_digest(std::span<const ScaledDigest> set) {
  std::vector<std::pair<std::string_view, uint32_t>> terms;
  for (const ScaledDigest& entry : set) {
    if (entry.scale != 0) {
      terms.emplace_back(entry.digest, std::bit_cast<uint32_t>(entry.scale));
    }
  }
  if (terms.empty()) {
    return {};
  }
  std::sort(terms.begin(), terms.end());
  Sha256 digest;
  for (const auto& [content, scale] : terms) {
    std::string line = fmt::format("{}:{:08x}\n", content, scale);
    digest.update(line.data(), line.size());
  }
  return digest.hex();
}

}  // namespace mlxcel

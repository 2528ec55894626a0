// Digests of adapter contents and of what a request has in force.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace mlxcel {

// Streaming SHA-256 (FIPS 180-4).
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;
  void update(const void* data, size_t bytes);
  std::string hex();  // finishes; call once

 private:
  void* context_;
};

struct ScaledDigest {
  std::string_view digest;  // Adapter::digest
  float scale = 0;
};

// The digest of a set of adapters at their run-time scales: the same for any
// order, entries of scale zero left out, "" for no adapter in force. Caches of
// computed state are keyed by it.
std::string effective_digest(std::span<const ScaledDigest> set);

}  // namespace mlxcel

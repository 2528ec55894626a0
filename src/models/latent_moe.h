// A mixture of experts that read and write a smaller vector, as Nemotron 3 has:
//   y = latent_out(experts(latent_in(n))) + shared(n), n = norm(x)
// The router and the shared expert read n. Roles: those of a mixture, with
// experts of the smaller size, and moe.latent_in [size, hidden], moe.latent_out
// [hidden, size].
#pragma once

#include "models/spec.h"

namespace mlxcel {

struct LatentMoeSpec : PartSpec {
  MoeSpec moe;
  int size = 0;                  // of the vector
  MlpBias bias = MlpBias::none;  // of the two projections

  std::vector<RoleShape> roles(int64_t hidden_size) const override;
  int64_t columns() const override;
  std::unique_ptr<Sublayer> build(
      const PartBuilder& builder,
      const BlockSpec& block,
      int layer) const override;
};

}  // namespace mlxcel

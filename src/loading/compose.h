// What the user composes on top of a checkpoint while it is loaded: a surgery
// recipe first, then adapters.
#pragma once

#include "io/weight_map.h"
#include "loading/pipeline.h"
#include "models/builder.h"

namespace mlxcel {

class Composition {
 public:
  // Reads what can be read before any weight: throws SurgeryError and
  // AdapterError even when the weights are damaged or absent.
  explicit Composition(const LoadOptions& options);

  void apply_surgery(WeightMap& weights);
  // Fuses adapters into the weights, or keeps their live terms.
  void apply_adapters(
      const Family& family, const NameMap& names, WeightMap& weights);
  LiveTerms take_terms();

 private:
  LiveTerms terms_;
};

}  // namespace mlxcel

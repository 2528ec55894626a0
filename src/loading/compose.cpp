#include "loading/compose.h"

#include "core/error.h"

#include <cstdlib>
#include <string>
#include <utility>

namespace mlxcel {

Composition::Composition(const LoadOptions& options) {
  const char* named = std::getenv("MLXCEL_SURGERY");
  std::string recipe = options.surgery    ? options.surgery->string()
                       : named != nullptr ? named
                                          : "";
  if (!recipe.empty()) {
    throw SurgeryError(
        cat("cannot apply ", recipe),
        "this version reads no surgery recipes",
        options.surgery ? "leave --surgery out" : "unset MLXCEL_SURGERY");
  }
  if (!options.adapters.empty()) {
    throw AdapterError(
        cat("cannot apply ", options.adapters.front().folder.string()),
        "this version reads no adapters",
        "leave the adapter out");
  }
}

void Composition::apply_surgery(WeightMap&) {}

void Composition::apply_adapters(const Family&, const NameMap&, WeightMap&) {}

LiveTerms Composition::take_terms() {
  return std::exchange(terms_, {});
}

}  // namespace mlxcel

// What the user composes on top of a checkpoint while it is loaded: a surgery
// recipe first, then adapters.
#pragma once

#include "adapters/adapter.h"
#include "core/thread_pool.h"
#include "io/weight_map.h"
#include "loading/pipeline.h"
#include "models/builder.h"
#include "surgery/recipe.h"
#include "surgery/surgery.h"

#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

namespace mlxcel {

// The recipe's path: the option, else MLXCEL_SURGERY; empty for none.
std::filesystem::path recipe_path(const LoadOptions& options);

class Composition {
 public:
  // Reads and checks what can be checked before any weight: throws SurgeryError
  // and AdapterError even when the weights are damaged or absent.
  explicit Composition(const LoadOptions& options);

  // Matches the recipe against the tensors; reads and changes none.
  void plan_surgery(const NameMap& names, const WeightMap& weights);
  void apply_surgery(WeightMap& weights);
  // Fuses adapters into the weights, or keeps their live terms. All adapters
  // are resolved before the first weight changes.
  void apply_adapters(
      const Family& family, const NameMap& names, WeightMap& weights);

  LiveTerms take_terms();
  // Those that were loaded, in the order of the command line.
  std::vector<LoadedAdapter> loaded() const;

 private:
  ThreadPool& pool();

  const LoadOptions& options_;
  std::optional<Recipe> recipe_;
  std::vector<PlannedOperation> plan_;
  // As options.adapters; null where an id stays free.
  std::vector<std::shared_ptr<const Adapter>> adapters_;
  std::optional<ThreadPool> pool_;
  LiveTerms terms_;
};

}  // namespace mlxcel

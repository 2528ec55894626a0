#include "cli/checkpoint_facts.h"

#include "core/error.h"
#include "loading/config_file.h"
#include "loading/sanitize_weights.h"

#include <cmath>
#include <cstdlib>

namespace mlxcel::cli {

CheckpointFacts read_checkpoint_facts(const std::filesystem::path& model) {
  CheckpointFacts facts;
  facts.folder = checkpoint_folder(model);
  facts.config = read_config(facts.folder);
  facts.detection = detect_model(facts.folder, facts.config);
  facts.family = &require_generation(facts.detection, facts.config);
  facts.spec = decoder_spec(*facts.family, facts.config);
  facts.weights = load_weights(facts.folder);
  facts.weight_bytes = facts.weights.total_bytes();
  NameMap names(facts.family->names, facts.spec);
  facts.activation_dtype = activation_dtype_of(names, facts.weights);
  facts.max_positions = max_positions_of(facts.config);
  return facts;
}

double headroom_factor() {
  const char* text = std::getenv("MLXCEL_HEADROOM_FACTOR");
  if (!text || *text == '\0') {
    return 1.2;  // allocators, other processes and the page cache vary
  }
  char* end = nullptr;
  double factor = std::strtod(text, &end);
  if (*end != '\0' || !std::isfinite(factor) || factor <= 0) {
    throw UsageError(
        "wrong MLXCEL_HEADROOM_FACTOR",
        cat("'", text, "' is no positive number"),
        "set it to a number such as 1.2, or unset it");
  }
  return factor;
}

}  // namespace mlxcel::cli

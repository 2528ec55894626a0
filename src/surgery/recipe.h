// A surgery recipe: a YAML file with a list of edits to a model's weights.
// Reading it checks everything that can be checked without the model: fields,
// numbers, patterns, and that every source file exists with a sound header.
#pragma once

#include "io/weight_map.h"
#include "surgery/glob.h"

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace mlxcel {

enum class OperationKind : uint8_t { scale, add, prune, replace, interpolate };
enum class Granularity : uint8_t { layer, attention_head, mlp_channel };
enum class Interpolation : uint8_t { lerp, slerp };

// The tensors of a source: one file, or a folder with its shards.
struct Source {
  std::string path;   // resolved, for messages
  WeightMap tensors;  // mapped; no data was read
};

struct Operation {
  OperationKind kind = OperationKind::scale;
  std::string place;  // "recipe.yaml, line 3, column 5"
  Glob pattern{"*"};

  double factor = 1;  // scale
  double alpha = 1;   // add
  double ratio = 0;   // interpolate: weight of source_b, in [0, 1]
  Interpolation method = Interpolation::lerp;
  Granularity granularity = Granularity::layer;  // prune
  std::vector<int64_t> ids;  // prune; not negative, sorted, without repeats
  std::shared_ptr<const Source> source, source_b;
  // replace; stars take the pattern's captures. Empty: the base's own key.
  std::string source_key;
  // add, interpolate: dequantize packed targets and quantize the result again.
  bool requantize = false;
};

struct Recipe {
  std::filesystem::path file;
  std::vector<Operation> operations;
};

std::string_view name_of(OperationKind kind);  // "scale"

// Throws SurgeryError that names file, line, column and field.
Recipe read_recipe(const std::filesystem::path& file);

}  // namespace mlxcel

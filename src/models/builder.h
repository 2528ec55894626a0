// From a spec and a checkpoint's tensors to a model.
#pragma once

#include "models/family.h"
#include "models/model.h"
#include "models/names.h"
#include "ops/matrix_source.h"

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace mlxcel {

// Live adapter terms by NameMap::slot_of(): "layers.0.attention.qkv",
// "embedding", "head". Rows of a term count within the slot. A tied head takes
// the terms of "head": an embedding's pair reaches it only when it is listed
// there too.
using LiveTerms = std::map<std::string, std::vector<LowRankTerm>, std::less<>>;

struct BuildInputs {
  Backend& backend;  // outlives the model
  const NameMap& names;
  MatrixSource& source;
  DType cache_dtype = DType::f16;  // f32, f16 or bf16
  LiveTerms terms;
};

// Throws CheckpointError for missing, misshapen and unclaimed tensors. A tied
// head is the tensor of the role "head" when the checkpoint has one (restored,
// or changed by surgery), else the embedding table.
std::unique_ptr<Model> build_model(const Family& family, BuildInputs inputs);

}  // namespace mlxcel

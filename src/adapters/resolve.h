// Finds what an adapter's pairs change in a base model, and refuses the whole
// adapter when one of them fits nothing.
#pragma once

#include "adapters/adapter.h"
#include "models/family.h"
#include "models/names.h"

#include <cstdint>
#include <string>
#include <vector>

namespace mlxcel {

// The base model as far as adapters need to know it. All outlive the call.
struct AdapterBase {
  const Family& family;
  const DecoderSpec& spec;
  const NameMap& names;
  const WeightMap& weights;  // after sanitizing and surgery
};

// How a pair's two matrices are stored. The update of a weight [out, in] is
//   linear_first:  a [in, rank],  b [rank, out]    (mlx-lm's LoRALinear)
//   rank_first:    a [rank, in],  b [out, rank]    (PEFT's matrices)
//   embedding:     a [vocab, rank], b [rank, hidden] (mlx-lm's LoRAEmbedding)
enum class PairLayout : uint8_t { linear_first, rank_first, embedding };

struct ResolvedPair {
  std::string stem;  // as the adapter names it
  WeightTensor a, b;
  PairLayout layout = PairLayout::linear_first;
  int64_t rank = 0;
  int64_t rows = 0;             // of the named tensor: out, or the vocabulary
  int64_t in = 0;               // its columns, unpacked
  bool on_embedding = false;    // the lookup, and the head when it is tied
  std::vector<Target> targets;  // where the rows lie
};

struct ResolvedAdapter {
  std::string folder;
  std::string digest;
  std::string task_name;
  double factor = 0;  // on B A, without the run-time scale
  std::vector<ResolvedPair> pairs;
};

// Throws AdapterError that names the folder and the first tensor that does not
// fit: a family that takes no adapters, a stem without a base weight (with the
// nearest ones), a base weight that is no matrix, shapes that give another
// delta, a pair on a tied head or on an embedding that cannot take one.
ResolvedAdapter resolve_adapter(
    const Adapter& adapter, const AdapterBase& base);

}  // namespace mlxcel

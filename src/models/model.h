// A model ready to run: the blocks of one family over a backend.
#pragma once

#include "ops/backend.h"

namespace mlxcel {

// What a model's keys and values depend on beside the tokens before them, and
// how long they are looked at.
struct ContextTraits {
  int64_t window = 0;  // no layer looks back further; 0: some see everything
  // A prompt longer than this is computed with other rotations; 0: never.
  int64_t rope_switch_length = 0;
  // Earlier positions may depend on later tokens, so that nothing computed
  // before goes on: each token takes a pass over its whole sequence, in one
  // prompt segment from position 0.
  bool whole_sequence = false;
};

class Model {
 public:
  virtual ~Model() = default;
  virtual ContextTraits context_traits() const {
    return {};
  }
  virtual int64_t vocab_size() const = 0;
  virtual KvCacheSpec kv_cache_spec() const = 0;
  // Runs the step's rows and returns logits of step.output_rows. The cache's
  // blocks named in the segments must exist.
  virtual Tensor forward(const Step& step, KvCache& cache) = 0;
};

}  // namespace mlxcel

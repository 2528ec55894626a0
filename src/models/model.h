// A model ready to run: the blocks of one family over a backend.
#pragma once

#include "ops/backend.h"

namespace mlxcel {

class Model {
 public:
  virtual ~Model() = default;
  virtual int64_t vocab_size() const = 0;
  virtual KvCacheSpec kv_cache_spec() const = 0;
  // Runs the step's rows and returns logits of step.output_rows. The cache's
  // blocks named in the segments must exist.
  virtual Tensor forward(const Step& step, KvCache& cache) = 0;
};

}  // namespace mlxcel

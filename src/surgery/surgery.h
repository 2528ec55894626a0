// Carries a recipe out on a checkpoint's weights.
#pragma once

#include "core/thread_pool.h"
#include "models/names.h"
#include "surgery/recipe.h"

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace mlxcel {

// What surgery needs to know of the model. All outlive the call.
struct SurgeryBase {
  const DecoderSpec& spec;
  const NameMap& names;
};

// One change of one tensor, element by element.
class Edit {
 public:
  virtual ~Edit() = default;
  // Whole-tensor work before the first chunk: the angle of a slerp. `current`
  // holds the tensors as the operations before have left them.
  virtual void prepare(ThreadPool& pool, const WeightMap& current) {
    (void)pool;
    (void)current;
  }
  // Whether prepare() has something to do. Tensors without such edits are
  // changed together.
  virtual bool prepares() const {
    return false;
  }
  // Changes elements [first, first + count) of a tensor like `target`, which
  // lie at `bytes` in its dtype. Chunks are whole rows. Called by several
  // threads at once.
  virtual void apply(
      const WeightTensor& target,
      int64_t first,
      int64_t count,
      std::byte* bytes) const = 0;
  // Elements [first, first + count) are done: lets go of what backs them in
  // the edit's own sources.
  virtual void release(int64_t first, int64_t count) const {
    (void)first;
    (void)count;
  }
  // The tensor is done: lets go of what prepare() took.
  virtual void finish() {}
  // True when nothing of the old content is left.
  virtual bool overwrites() const {
    return false;
  }
  // The tensor that takes the old one's place as it is; null for none.
  virtual const WeightTensor* replacement() const {
    return nullptr;
  }
};

struct TensorEdit {
  std::string key;
  std::shared_ptr<Edit> edit;
};

// An operation matched against the checkpoint's headers.
struct PlannedOperation {
  const Operation* operation = nullptr;
  std::vector<std::string> matched;  // keys the pattern hits, sorted
  std::vector<TensorEdit> edits;     // what changes, by key
};

// Matches every operation against the tensors and checks every shape and dtype;
// reads no tensor data. Throws SurgeryError that names the operation's place
// and the tensor. `weights` and the recipe outlive the plan.
std::vector<PlannedOperation> plan_surgery(
    const Recipe& recipe, const SurgeryBase& base, const WeightMap& weights);

// What a run did to one tensor.
struct TensorChange {
  // Frobenius norms of the tensor before and after, and of the difference.
  // Only of floats: packed codes have no norm of their own.
  double norm_before = 0, norm_after = 0, norm_of_change = 0;
  int64_t elements_changed = 0;  // those whose bits differ
};
// `before` and `after` have the same shape and dtype.
TensorChange measure_change(
    const WeightTensor& before, const WeightTensor& after, ThreadPool& pool);

// Carries the plan out in order, each changed tensor in one pass. Either all of
// it happens or `weights` stays as it was. Logs a line an operation. Beside the
// changed tensors it needs a few megabytes: pages of the files it reads are
// given back as it goes. The result does not depend on the number of threads.
// `on_tensor` is called with each changed tensor before and after.
void apply_surgery(
    const std::vector<PlannedOperation>& plan,
    WeightMap& weights,
    ThreadPool& pool,
    const std::function<void(double done)>& progress = {},
    const std::function<void(
        const std::string& key,
        const WeightTensor& before,
        const WeightTensor& after)>& on_tensor = {});

}  // namespace mlxcel

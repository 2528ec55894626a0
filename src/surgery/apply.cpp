#include "core/error.h"
#include "core/log.h"
#include "surgery/planner.h"

#include <algorithm>
#include <cstring>
#include <map>

namespace mlxcel {

namespace {

// Elements of a chunk: with its scratch it stays in the second-level cache.
constexpr int64_t kChunk = 1 << 15;

using Chain = std::vector<std::shared_ptr<Edit>>;

// One pass over the tensor: each chunk goes through all edits while it is in
// the cache.
WeightTensor edit_tensor(
    const WeightTensor& old, const Chain& chain, ThreadPool& pool) {
  // What stands before the last overwriting edit leaves no trace.
  size_t start = 0;
  for (size_t i = 0; i < chain.size(); ++i) {
    if (chain[i]->overwrites()) {
      start = i;
    }
  }
  if (const WeightTensor* taken = chain[start]->replacement();
      taken != nullptr && start + 1 == chain.size()) {
    return *taken;
  }
  std::byte* out = nullptr;
  WeightTensor result = make_weight(old.dtype, old.shape, &out);
  bool keep = !chain[start]->overwrites();
  int64_t total = element_count(old.shape);
  int64_t columns = old.ndim() < 2 ? 1 : std::max<int64_t>(1, old.shape.back());
  int64_t chunk = std::max<int64_t>(1, kChunk / columns) * columns;
  int64_t chunks = (total + chunk - 1) / chunk;
  size_t size = size_of(old.dtype);
  pool.run([&](int thread) {
    auto [begin, end] = split_range(chunks, thread, pool.size());
    for (int64_t c = begin; c < end; ++c) {
      int64_t first = c * chunk;
      int64_t count = std::min(chunk, total - first);
      std::byte* bytes = out + size_t(first) * size;
      if (keep) {
        std::memcpy(
            bytes, old.data + size_t(first) * size, size_t(count) * size);
      }
      for (size_t i = start; i < chain.size(); ++i) {
        chain[i]->apply(old, first, count, bytes);
      }
    }
  });
  return result;
}

}  // namespace

std::vector<PlannedOperation> plan_surgery(
    const Recipe& recipe, const SurgeryBase& base, const WeightMap& weights) {
  std::vector<PlannedOperation> out;
  for (const Operation& operation : recipe.operations) {
    Planner planner(operation, base, weights);
    switch (operation.kind) {
      case OperationKind::scale:
        plan_scale(planner);
        break;
      case OperationKind::add:
        plan_add(planner);
        break;
      case OperationKind::prune:
        plan_prune(planner);
        break;
      case OperationKind::replace:
        plan_replace(planner);
        break;
      case OperationKind::interpolate:
        plan_interpolate(planner);
        break;
    }
    out.push_back(std::move(planner).finish());
  }
  return out;
}

void apply_surgery(
    const std::vector<PlannedOperation>& plan,
    WeightMap& weights,
    ThreadPool& pool,
    const std::function<void(double done)>& progress,
    const std::function<void(
        const std::string& key,
        const WeightTensor& before,
        const WeightTensor& after)>& on_tensor) {
  WeightMap current = weights;
  std::map<std::string, Chain> pending;
  size_t total = 0;
  size_t done = 0;
  for (const PlannedOperation& operation : plan) {
    total += operation.edits.size();
  }
  auto flush = [&] {
    std::vector<std::pair<std::string, WeightTensor>> results;
    for (const auto& [key, chain] : pending) {
      for (const std::shared_ptr<Edit>& edit : chain) {
        edit->prepare(pool, current);
      }
      const WeightTensor& old = current.at(key);
      results.emplace_back(key, edit_tensor(old, chain, pool));
      done += chain.size();
      if (progress) {
        progress(double(done) / double(total));
      }
    }
    // Set at the end: a requantized triple reads its old tensors until then.
    for (auto& [key, tensor] : results) {
      current.set(key, std::move(tensor));
    }
    pending.clear();
  };
  for (const PlannedOperation& operation : plan) {
    // Its three edits need the triple as the operations before leave it.
    bool apart = operation.operation->requantize;
    if (apart) {
      flush();
    }
    for (const TensorEdit& edit : operation.edits) {
      pending[edit.key].push_back(edit.edit);
    }
    if (apart) {
      flush();
    }
  }
  flush();
  for (const PlannedOperation& operation : plan) {
    std::map<std::string, size_t> changed;
    for (const TensorEdit& edit : operation.edits) {
      const WeightTensor& tensor = current.at(edit.key);
      changed[edit.key] = tensor.mapped() ? 0 : tensor.bytes;
    }
    size_t bytes = 0;
    for (const auto& [key, copied] : changed) {
      bytes += copied;
    }
    log_info(
        cat("surgery: ",
            name_of(operation.operation->kind),
            " ",
            operation.operation->pattern.text(),
            ": ",
            changed.size(),
            changed.size() == 1 ? " tensor" : " tensors",
            " changed, ",
            bytes,
            " bytes copied"));
  }
  if (on_tensor) {
    for (const auto& [key, tensor] : current) {
      const WeightTensor& before = weights.at(key);
      if (before.data != tensor.data) {
        on_tensor(key, before, tensor);
      }
    }
  }
  weights = std::move(current);
}

}  // namespace mlxcel

#include "core/error.h"
#include "core/log.h"
#include "core/row_kernels.h"
#include "io/mapped_file.h"
#include "io/weight_slabs.h"
#include "surgery/planner.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <set>

namespace mlxcel {

namespace {

// Elements of a chunk: it stays in the second-level cache while all edits pass
// over it.
constexpr int64_t kChunk = 1 << 15;
// Bytes of the result, over all threads, after which the pages that they came
// from are given back.
constexpr size_t kRelease = size_t(8) << 20;

using Chain = std::vector<std::shared_ptr<Edit>>;

// A tensor's way from the old content to the new.
struct Pass {
  const WeightTensor& old;
  const Chain& chain;
  size_t start = 0;   // what stands before leaves no trace
  int64_t total = 0;  // elements
  int64_t chunk = 1;  // elements, whole rows
  std::byte* out = nullptr;

  void run(int64_t first, int64_t count) const {
    size_t size = size_of(old.dtype);
    std::byte* bytes = out + size_t(first) * size;
    if (!chain[start]->overwrites()) {
      std::memcpy(bytes, old.data + size_t(first) * size, size_t(count) * size);
    }
    for (size_t i = start; i < chain.size(); ++i) {
      chain[i]->apply(old, first, count, bytes);
    }
  }

  void release(int64_t first, int64_t count) const {
    size_t size = size_of(old.dtype);
    release_pages(old.data + size_t(first) * size, size_t(count) * size);
    for (size_t i = start; i < chain.size(); ++i) {
      chain[i]->release(first, count);
    }
  }
};

// One pass over the tensor.
WeightTensor edit_tensor(
    const WeightTensor& old,
    const Chain& chain,
    ThreadPool& pool,
    WeightSlabs& slabs) {
  Pass pass{.old = old, .chain = chain};
  for (size_t i = 0; i < chain.size(); ++i) {
    if (chain[i]->overwrites()) {
      pass.start = i;
    }
  }
  if (const WeightTensor* taken = chain[pass.start]->replacement();
      taken != nullptr && pass.start + 1 == chain.size()) {
    return *taken;
  }
  WeightTensor result = slabs.make(old.dtype, old.shape, &pass.out);
  pass.total = element_count(old.shape);
  int64_t columns = old.ndim() < 2 ? 1 : std::max<int64_t>(1, old.shape.back());
  pass.chunk = std::max<int64_t>(1, kChunk / columns) * columns;
  int64_t chunks = (pass.total + pass.chunk - 1) / pass.chunk;
  auto work = [&](int thread, int threads) {
    auto [begin, end] = split_range(chunks, thread, threads);
    int64_t stretch = std::max<int64_t>(
        pass.chunk, int64_t(kRelease / size_of(old.dtype)) / threads);
    int64_t last = std::min(end * pass.chunk, pass.total);
    int64_t released = begin * pass.chunk;
    for (int64_t first = released; first < last; first += pass.chunk) {
      int64_t next = std::min(first + pass.chunk, last);
      pass.run(first, next - first);
      if (next == last || next - released >= stretch) {
        pass.release(released, next - released);
        released = next;
      }
    }
  };
  if (chunks < 2) {  // not worth waking the others
    work(0, 1);
  } else {
    pool.run([&](int thread) { work(thread, pool.size()); });
  }
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
  // By stem: the three edits of a packed one read each other's tensors.
  std::map<std::string, std::map<std::string, Chain>> pending;
  size_t total = 0;
  size_t done = 0;
  std::set<std::string> written;
  size_t bytes_written = 0;
  for (const PlannedOperation& operation : plan) {
    total += operation.edits.size();
    for (const TensorEdit& edit : operation.edits) {
      if (written.insert(edit.key).second) {
        bytes_written += weights.at(edit.key).bytes;
      }
    }
  }
  WeightSlabs slabs(bytes_written);
  auto change = [&](const std::map<std::string, Chain>& chains) {
    std::vector<std::pair<std::string, WeightTensor>> results;
    for (const auto& [key, chain] : chains) {
      for (const std::shared_ptr<Edit>& edit : chain) {
        edit->prepare(pool, current);
      }
      results.emplace_back(
          key, edit_tensor(current.at(key), chain, pool, slabs));
      for (const std::shared_ptr<Edit>& edit : chain) {
        edit->finish();
      }
      done += chain.size();
      if (progress) {
        progress(double(done) / double(total));
      }
    }
    for (auto& [key, tensor] : results) {
      current.set(key, std::move(tensor));
    }
  };
  auto flush = [&] {
    for (const auto& [stem, chains] : pending) {
      change(chains);
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
      pending[std::string(split_key(edit.key).first)][edit.key].push_back(
          edit.edit);
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

TensorChange measure_change(
    const WeightTensor& before, const WeightTensor& after, ThreadPool& pool) {
  constexpr int64_t kBlock = 4096;
  struct Sums {
    double before = 0, after = 0, change = 0;
    int64_t changed = 0;
  };
  int64_t total = element_count(before.shape);
  int64_t blocks = (total + kBlock - 1) / kBlock;
  size_t size = size_of(before.dtype);
  std::vector<Sums> sums(static_cast<size_t>(blocks));
  pool.run([&](int thread) {
    std::vector<float> x(kBlock);
    std::vector<float> y(kBlock);
    auto [begin, end] = split_range(blocks, thread, pool.size());
    for (int64_t block = begin; block < end; ++block) {
      int64_t first = block * kBlock;
      int64_t count = std::min(kBlock, total - first);
      const std::byte* old = before.data + size_t(first) * size;
      const std::byte* now = after.data + size_t(first) * size;
      Sums& sum = sums[size_t(block)];
      for (int64_t i = 0; i < count; ++i) {
        sum.changed +=
            std::memcmp(old + size_t(i) * size, now + size_t(i) * size, size) !=
            0;
      }
      if (!is_float(before.dtype)) {
        continue;
      }
      convert_to_f32(before.dtype, old, count, x.data());
      convert_to_f32(after.dtype, now, count, y.data());
      for (size_t i = 0; i < size_t(count); ++i) {
        double difference = double(y[i]) - double(x[i]);
        sum.before += double(x[i]) * double(x[i]);
        sum.after += double(y[i]) * double(y[i]);
        sum.change += difference * difference;
      }
    }
  });
  Sums all;
  for (const Sums& sum : sums) {
    all.before += sum.before;
    all.after += sum.after;
    all.change += sum.change;
    all.changed += sum.changed;
  }
  return {
      std::sqrt(all.before),
      std::sqrt(all.after),
      std::sqrt(all.change),
      all.changed};
}

}  // namespace mlxcel

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
class Pass {
 public:
  // Makes the new tensor, without content yet.
  Pass(std::string key, WeightTensor old, Chain chain, WeightSlabs& slabs)
      : key_(std::move(key)), old_(std::move(old)), chain_(std::move(chain)) {
    for (size_t i = 0; i < chain_.size(); ++i) {
      if (chain_[i]->overwrites()) {
        start_ = i;
      }
    }
    if (const WeightTensor* taken = chain_[start_]->replacement();
        taken != nullptr && start_ + 1 == chain_.size()) {
      result_ = *taken;
      return;
    }
    result_ = slabs.make(old_.dtype, old_.shape, &out_);
    total_ = element_count(old_.shape);
    int64_t columns =
        old_.ndim() < 2 ? 1 : std::max<int64_t>(1, old_.shape.back());
    chunk_ = std::max<int64_t>(1, kChunk / columns) * columns;
  }

  const std::string& key() const {
    return key_;
  }
  const WeightTensor& result() const {
    return result_;
  }
  const Chain& chain() const {
    return chain_;
  }
  int64_t chunks() const {
    return (total_ + chunk_ - 1) / chunk_;
  }

  // Chunks [begin, end). `stretch` bytes at a time, the pages that the result
  // came from are given back.
  void run(int64_t begin, int64_t end, size_t stretch) const {
    int64_t step =
        std::max<int64_t>(chunk_, int64_t(stretch / size_of(old_.dtype)));
    int64_t last = std::min(end * chunk_, total_);
    int64_t released = begin * chunk_;
    for (int64_t first = released; first < last; first += chunk_) {
      int64_t next = std::min(first + chunk_, last);
      change(first, next - first);
      if (next == last || next - released >= step) {
        release(released, next - released);
        released = next;
      }
    }
  }

 private:
  bool reads_old() const {
    return !chain_[start_]->overwrites();
  }

  void change(int64_t first, int64_t count) const {
    size_t size = size_of(old_.dtype);
    std::byte* bytes = out_ + size_t(first) * size;
    if (reads_old()) {
      std::memcpy(
          bytes, old_.data + size_t(first) * size, size_t(count) * size);
    }
    for (size_t i = start_; i < chain_.size(); ++i) {
      chain_[i]->apply(old_, first, count, bytes);
    }
  }

  void release(int64_t first, int64_t count) const {
    size_t size = size_of(old_.dtype);
    if (reads_old()) {
      release_pages(old_.data + size_t(first) * size, size_t(count) * size);
    }
    for (size_t i = start_; i < chain_.size(); ++i) {
      chain_[i]->release(first, count);
    }
  }

  std::string key_;
  WeightTensor old_;
  Chain chain_;
  size_t start_ = 0;   // what stands before leaves no trace
  int64_t total_ = 0;  // elements to compute
  int64_t chunk_ = 1;  // elements, whole rows
  std::byte* out_ = nullptr;
  WeightTensor result_;
};

// All passes as one job; each thread takes a run of their chunks.
void run_passes(
    const std::vector<Pass>& passes,
    ThreadPool& pool,
    const std::function<void(double done)>& progress) {
  int64_t chunks = 0;
  for (const Pass& pass : passes) {
    chunks += pass.chunks();
  }
  auto work = [&](int thread, int threads) {
    auto [begin, end] = split_range(chunks, thread, threads);
    int64_t at = 0;  // chunks of the passes before
    for (const Pass& pass : passes) {
      int64_t first = std::max(begin, at) - at;
      int64_t last = std::min(end, at + pass.chunks()) - at;
      if (first < last) {
        pass.run(first, last, kRelease / size_t(threads));
        if (progress && thread == 0) {
          progress(double(at + last) / double(end));
        }
      }
      at += pass.chunks();
    }
  };
  if (chunks < 2) {  // not worth waking the others
    work(0, 1);
  } else {
    pool.run([&](int thread) { work(thread, pool.size()); });
  }
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
  std::vector<Pass> passes;
  auto run = [&] {
    size_t edits = 0;
    for (const Pass& pass : passes) {
      edits += pass.chain().size();
    }
    run_passes(passes, pool, [&](double part) {
      if (progress) {
        progress((double(done) + part * double(edits)) / double(total));
      }
    });
    for (const Pass& pass : passes) {
      current.set(pass.key(), pass.result());
      for (const std::shared_ptr<Edit>& edit : pass.chain()) {
        edit->finish();
      }
    }
    done += edits;
    passes.clear();
  };
  auto flush = [&] {
    for (auto& [stem, chains] : pending) {
      bool apart = false;
      for (const auto& [key, chain] : chains) {
        for (const std::shared_ptr<Edit>& edit : chain) {
          apart = apart || edit->prepares();
        }
      }
      if (apart) {
        run();
      }
      for (auto& [key, chain] : chains) {
        for (const std::shared_ptr<Edit>& edit : chain) {
          edit->prepare(pool, current);
        }
        passes.emplace_back(key, current.at(key), std::move(chain), slabs);
      }
      if (apart) {
        run();
      }
    }
    run();
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

// Speed of the CPU backend's attention and of a fork-join of its threads.
//
//   attention_bench --benchmark_filter=decode/smollm2
//   MLXCEL_CPU_ISA=avx2 attention_bench
#include "core/error.h"
#include "ops/cpu/attention.h"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>

namespace mlxcel {
namespace {

struct Heads {
  const char* name;
  int heads, kv_heads, head_dim;
};

// The default model's layer, and that of 8B models of the Llama 3 kind.
const Heads kHeads[] = {{"smollm2", 9, 3, 64}, {"8b", 32, 8, 128}};

Step rows_at(
    int64_t position,
    int rows,
    bool prompt,
    const std::vector<int32_t>& blocks) {
  Step step;
  step.tokens.resize(size_t(rows));
  step.num_prompt_rows = prompt ? rows : 0;
  step.segments.push_back(
      {.num_rows = rows, .position = position, .prompt = prompt});
  step.segments[0].blocks = blocks;
  return step;
}

Tensor random_rows(cpu::Context& context, int64_t rows, int64_t cols) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  Tensor x = context.make(rows, cols);
  for (int64_t i = 0; i < rows * cols; ++i) {
    cpu::data(x)[i] = normal(random);
  }
  return x;
}

// One layer's attention of the last row or of the last 512 rows of a context.
void attend(
    benchmark::State& state,
    const Heads& heads,
    DType dtype,
    bool prompt,
    int64_t length) {
  cpu::Context context({.activation_dtype = dtype});
  // A decode step goes through the layers, each with a cache of its own.
  int layers = prompt ? 1 : 16;
  KvCacheSpec spec;
  spec.layers.assign(
      size_t(layers), {heads.kv_heads, heads.head_dim, heads.head_dim});
  spec.dtype = dtype;
  auto cache = cpu::make_kv_cache(spec);
  cache->reserve(int(length / kKvBlockSize) + 1);
  std::vector<int32_t> blocks;
  for (int i = 0; i <= length / kKvBlockSize; ++i) {
    blocks.push_back(i);
  }
  RopeTable table;
  table.dims = heads.head_dim;
  for (int i = 0; i < heads.head_dim / 2; ++i) {
    table.inv_freq.push_back(
        std::pow(1e4f, -2.0f * float(i) / float(table.dims)));
  }
  auto rope = cpu::prepare_rope(table);
  AttentionArgs args;
  args.num_heads = heads.heads;
  args.num_kv_heads = heads.kv_heads;
  args.head_dim = heads.head_dim;
  args.scale = 1 / std::sqrt(float(heads.head_dim));
  args.rope = rope.get();

  constexpr int kChunk = 512;
  int64_t cols = int64_t(heads.heads + 2 * heads.kv_heads) * heads.head_dim;
  Tensor chunk = random_rows(context, kChunk, cols);
  for (int layer = 0; layer < layers; ++layer) {
    for (int64_t p = 0; p + kChunk <= length; p += kChunk) {
      cpu::attention(
          context,
          rows_at(p, kChunk, true, blocks),
          chunk,
          args,
          *cache,
          layer);
    }
  }
  int rows = prompt ? int(std::min<int64_t>(kChunk, length)) : 1;
  Tensor x = random_rows(context, rows, cols);
  Step step = rows_at(length - rows, rows, prompt, blocks);
  for (auto _ : state) {
    for (int layer = 0; layer < layers; ++layer) {
      benchmark::DoNotOptimize(
          cpu::attention(context, step, x, args, *cache, layer).rows());
    }
  }
  using benchmark::Counter;
  double calls = double(state.iterations()) * layers;
  double seen = double(rows) * (double(length) - 0.5 * (rows - 1));
  double bytes = 2.0 * double(length) * heads.kv_heads * heads.head_dim *
                 double(size_of(dtype));
  state.counters["layers/s"] = Counter(calls, Counter::kIsRate);
  state.counters["GFLOP/s"] = Counter(
      4e-9 * seen * heads.heads * heads.head_dim * calls, Counter::kIsRate);
  state.counters["GB/s"] = Counter(bytes * calls / 1e9, Counter::kIsRate);
}

void fork_join(benchmark::State& state) {
  ThreadPool pool;
  for (auto _ : state) {
    pool.run([](int) {});
  }
}

void barrier(benchmark::State& state) {
  constexpr int kBarriers = 1000;
  ThreadPool pool;
  for (auto _ : state) {
    pool.run([&](int) {
      for (int i = 0; i < kBarriers; ++i) {
        pool.barrier();
      }
    });
  }
  state.SetItemsProcessed(state.iterations() * kBarriers);
}

void register_cases() {
  benchmark::RegisterBenchmark("fork_join", fork_join)->UseRealTime();
  benchmark::RegisterBenchmark("barrier", barrier)->UseRealTime();
  for (const Heads& heads : kHeads) {
    for (DType dtype : {DType::f16, DType::bf16, DType::f32}) {
      for (bool prompt : {false, true}) {
        for (int64_t length : {64, 512, 8192}) {
          std::string name =
              cat(prompt ? "prefill/" : "decode/",
                  heads.name,
                  "/",
                  name_of(dtype),
                  "/context:",
                  length);
          benchmark::RegisterBenchmark(
              name.c_str(),
              [&heads, dtype, prompt, length](benchmark::State& state) {
                attend(state, heads, dtype, prompt, length);
              })
              ->UseRealTime()
              ->Unit(benchmark::kMicrosecond);
        }
      }
    }
  }
}

}  // namespace
}  // namespace mlxcel

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  mlxcel::register_cases();
  benchmark::RunSpecifiedBenchmarks();
}

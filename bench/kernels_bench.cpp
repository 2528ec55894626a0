// Speed of the CPU products beside what the machine can do: the share of the
// measured read bandwidth for few rows, of the measured peak for many.
//
//   kernels_bench --benchmark_filter=decode/4bit
//   MLXCEL_CPU_ISA=avx2 kernels_bench
#include "ops/cpu/matmul.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>

#include <benchmark/benchmark.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace mlxcel {
namespace {

double seconds() {
  return std::chrono::duration<double>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Best of several runs of `job` on all threads.
template <typename Job>
double best_seconds(ThreadPool& pool, int runs, Job job) {
  double best = 1e9;
  for (int i = 0; i < runs; ++i) {
    double start = seconds();
    pool.run(job);
    best = std::min(best, seconds() - start);
  }
  return best;
}

double read_bandwidth(ThreadPool& pool) {
  constexpr size_t kBytes = size_t(384) << 20;  // far beyond the caches
  std::vector<uint64_t> memory(kBytes / 8, 1);
  std::vector<uint64_t> sums(size_t(pool.size()) * 8);
  double best = best_seconds(pool, 8, [&](int thread) {
    auto [begin, end] =
        split_range(int64_t(memory.size()), thread, pool.size(), 512);
    uint64_t lanes[8] = {};
    for (int64_t i = begin; i < end; i += 8) {
      __builtin_prefetch(&memory[size_t(i)] + 256);
      for (int l = 0; l < 8; ++l) {
        lanes[l] ^= memory[size_t(i + l)];
      }
    }
    for (int l = 0; l < 8; ++l) {
      sums[size_t(thread) * 8] += lanes[l];
    }
  });
  benchmark::DoNotOptimize(sums.data());
  return double(kBytes) / best;
}

constexpr int64_t kPeakSteps = 4'000'000;

#if defined(__x86_64__)
__attribute__((target("avx512f,avx512bf16"))) void bf16_steps() {
  __m512 acc[12];
  for (auto& a : acc) {
    a = _mm512_setzero_ps();
  }
  __m512bh x = (__m512bh)_mm512_set1_epi16(0x3f80), w = x;
  for (int64_t i = 0; i < kPeakSteps; ++i) {
#pragma GCC unroll 12
    for (auto& a : acc) {
      a = _mm512_dpbf16_ps(a, x, w);
    }
    asm volatile("" : "+v"(x));
  }
  for (auto& a : acc) {
    benchmark::DoNotOptimize(a);
  }
}

__attribute__((target("avx512f"))) void fma512_steps() {
  __m512 acc[12];
  for (auto& a : acc) {
    a = _mm512_setzero_ps();
  }
  __m512 x = _mm512_set1_ps(1), w = x;
  for (int64_t i = 0; i < kPeakSteps; ++i) {
#pragma GCC unroll 12
    for (auto& a : acc) {
      a = _mm512_fmadd_ps(x, w, a);
    }
    asm volatile("" : "+v"(x));
  }
  for (auto& a : acc) {
    benchmark::DoNotOptimize(a);
  }
}

__attribute__((target("avx2,fma"))) void fma256_steps() {
  __m256 acc[12];
  for (auto& a : acc) {
    a = _mm256_setzero_ps();
  }
  __m256 x = _mm256_set1_ps(1), w = x;
  for (int64_t i = 0; i < kPeakSteps; ++i) {
#pragma GCC unroll 12
    for (auto& a : acc) {
      a = _mm256_fmadd_ps(x, w, a);
    }
    asm volatile("" : "+x"(x));
  }
  for (auto& a : acc) {
    benchmark::DoNotOptimize(a);
  }
}
#endif

// FLOP/s of independent fused multiply-adds, or bf16 dots where there are.
double peak_flops(ThreadPool& pool, Isa isa) {
#if defined(__x86_64__)
  void (*steps)() = nullptr;
  double flops = 0;  // a step
  switch (isa) {
    case Isa::avx512_bf16:
      steps = bf16_steps;
      flops = 12 * 64;
      break;
    case Isa::avx512:
      steps = fma512_steps;
      flops = 12 * 32;
      break;
    default:
      steps = fma256_steps;
      flops = 12 * 16;
  }
  double best = best_seconds(pool, 5, [&](int) { steps(); });
  return double(pool.size()) * double(kPeakSteps) * flops / best;
#else
  (void)pool, (void)isa;
  return 0;
#endif
}

struct Machine {
  cpu::Context context;
  double bandwidth, peak;

  explicit Machine(bool int8)
      : context(BackendOptions{.prefill_int8 = int8}),
        bandwidth(read_bandwidth(context.pool)),
        peak(peak_flops(context.pool, context.isa)) {}
};

Machine& machine(bool int8 = false) {
  static Machine plain(false);
  if (!int8) {
    return plain;
  }
  static Machine bytes(true);
  return bytes;
}

struct Case {
  const char* name;
  DType dtype;
  Quant quant;
};

const Case kCases[] = {
    {"4bit_g32_f16", DType::f16, {QuantMode::affine, 4, 32}},
    {"4bit_g64_bf16", DType::bf16, {QuantMode::affine, 4, 64}},
    {"8bit_g32_f16", DType::f16, {QuantMode::affine, 8, 32}},
    {"8bit_g64_bf16", DType::bf16, {QuantMode::affine, 8, 64}},
    {"bf16", DType::bf16, {}},
    {"f16", DType::f16, {}},
    {"f32", DType::f32, {}},
    {"4bit_g32_f32", DType::f32, {QuantMode::affine, 4, 32}},
};

WeightTensor random_tensor(
    std::mt19937& random, DType dtype, Shape shape, float size) {
  std::byte* data;
  WeightTensor tensor = make_weight(dtype, std::move(shape), &data);
  std::uniform_real_distribution<float> uniform(-size, size);
  int64_t count = element_count(tensor.shape);
  for (int64_t i = 0; i < count; ++i) {
    if (dtype == DType::u32) {
      uint32_t bits = uint32_t(random());
      std::memcpy(data + 4 * i, &bits, 4);
      continue;
    }
    float value = uniform(random);
    if (dtype == DType::f32) {
      std::memcpy(data + 4 * i, &value, 4);
      continue;
    }
    // Small values: the upper bits of an f32 are a bf16, and a valid f16.
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    uint16_t half = dtype == DType::bf16 ? uint16_t(bits >> 16)
                                         : uint16_t(0x2000 + (bits & 0x7ff));
    std::memcpy(data + 2 * i, &half, 2);
  }
  return tensor;
}

std::unique_ptr<Linear> random_linear(
    cpu::Context& context, const Case& c, int64_t out, int64_t in) {
  std::mt19937 random(1);
  MatrixWeight m;
  m.name = "bench";
  m.out = out;
  m.in = in;
  m.quant = c.quant;
  if (c.quant.packed()) {
    m.weight =
        random_tensor(random, DType::u32, {out, in * c.quant.bits / 32}, 1);
    m.scales =
        random_tensor(random, c.dtype, {out, in / c.quant.group_size}, 0.01f);
    m.biases =
        random_tensor(random, c.dtype, {out, in / c.quant.group_size}, 0.01f);
  } else {
    m.weight = random_tensor(random, c.dtype, {out, in}, 0.02f);
  }
  return cpu::prepare_linear(context, {.name = "bench", .parts = {m}});
}

size_t weight_bytes(const Case& c, int64_t out, int64_t in) {
  if (!c.quant.packed()) {
    return size_t(out * in) * size_of(c.dtype);
  }
  return size_t(out * in) * size_t(c.quant.bits) / 8 +
         size_t(2 * out * (in / c.quant.group_size)) * size_of(c.dtype);
}

void linear_rows(
    benchmark::State& state,
    const Case& c,
    int64_t out,
    int64_t in,
    int rows,
    bool prompt,
    bool int8) {
  Machine& m = machine(int8);
  size_t bytes = weight_bytes(c, out, in);
  // Weights of a decode step come from memory, as those of a whole model do.
  size_t copies = prompt ? 1 : (size_t(256) << 20) / bytes + 1;
  std::vector<std::unique_ptr<Linear>> linears;
  for (size_t i = 0; i < copies; ++i) {
    linears.push_back(random_linear(m.context, c, out, in));
  }
  Tensor x = m.context.make(rows, in);
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  for (int64_t i = 0; i < rows * in; ++i) {
    cpu::data(x)[i] = normal(random);
  }
  Step step;
  step.tokens.resize(size_t(rows));
  step.num_prompt_rows = prompt ? rows : 0;
  step.segments.push_back({.num_rows = rows, .prompt = prompt});
  for (auto _ : state) {
    for (const auto& linear : linears) {
      benchmark::DoNotOptimize(
          cpu::linear(m.context, step, x, *linear, {}).rows());
    }
  }
  double calls = double(state.iterations()) * double(copies);
  double flops = 2.0 * double(rows) * double(out) * double(in) * calls;
  using benchmark::Counter;
  state.counters["GB/s"] =
      Counter(double(bytes) * calls / 1e9, Counter::kIsRate);
  state.counters["of_read"] =
      Counter(double(bytes) * calls / m.bandwidth, Counter::kIsRate);
  state.counters["GFLOP/s"] = Counter(flops / 1e9, Counter::kIsRate);
  state.counters["of_peak"] = Counter(flops / m.peak, Counter::kIsRate);
}

void register_cases() {
  for (const Case& c : kCases) {
    for (auto [out, in] :
         {std::pair<int64_t, int64_t>{1536, 576}, {2048, 2048}, {2048, 8192}}) {
      auto add = [&](const char* kind, int rows, bool prompt, bool int8) {
        std::string name = std::string(kind) + "/" + c.name + "/" +
                           std::to_string(out) + "x" + std::to_string(in) +
                           "/rows:" + std::to_string(rows);
        benchmark::RegisterBenchmark(
            name.c_str(),
            [&c, o = out, i = in, rows, prompt, int8](benchmark::State& state) {
              linear_rows(state, c, o, i, rows, prompt, int8);
            })
            ->UseRealTime()
            ->Unit(benchmark::kMillisecond);
      };
      for (int rows : {1, 2, 4, 8, 16, 64}) {
        add("decode", rows, false, false);
      }
      for (int rows : {16, 512}) {
        add("prefill", rows, true, false);
        if (c.quant.packed()) {
          add("prefill_int8", rows, true, true);
        }
      }
    }
  }
}

}  // namespace
}  // namespace mlxcel

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  mlxcel::Machine& m = mlxcel::machine();
  std::printf(
      "%s, %d threads: read %.1f GB/s, peak %.0f GFLOP/s\n",
      std::string(mlxcel::name_of(m.context.isa)).c_str(),
      m.context.pool.size(),
      m.bandwidth / 1e9,
      m.peak / 1e9);
  mlxcel::register_cases();
  benchmark::RunSpecifiedBenchmarks();
}

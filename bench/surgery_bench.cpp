// A linear blend of two checkpoints over all of a model's tensors, beside the
// floor of any program that does it: reading both sources once from mapped
// files and writing the result's memory for the first time, on as many threads.
//
//   surgery_bench CHECKPOINT_A CHECKPOINT_B     bf16, the same tensors
//
// Both are repeated in turn on fresh mappings, with the files in the page
// cache; `ratio` is the median blend over the median floor, `peak_MB` what the
// blend needs beside the changed tensors.
#include "core/error.h"
#include "io/checkpoint.h"
#include "loading/config_file.h"
#include "loading/detect.h"
#include "surgery/surgery.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <vector>

namespace mlxcel {
namespace {

namespace fs = std::filesystem;

double now() {
  return std::chrono::duration<double>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

uint64_t status_bytes(const std::string& field) {
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with(field + ":")) {
      return std::stoull(line.substr(field.size() + 1)) * 1024;
    }
  }
  return 0;
}

void reset_peak() {
  std::ofstream("/proc/self/clear_refs") << "5";
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Reads every byte of both sources and writes every byte of the result.
double floor_seconds(const fs::path& a, const fs::path& b, ThreadPool& pool) {
  WeightMap first = load_weights(a);
  WeightMap second = load_weights(b);
  double begun = now();
  size_t total = first.total_bytes();
  size_t huge = size_t(2) << 20;
  auto* out = static_cast<std::byte*>(
      std::aligned_alloc(huge, (total + huge - 1) / huge * huge));
  ::madvise(out, total, MADV_HUGEPAGE);
  uint64_t seen = 0;
  pool.run([&](int thread) {
    uint64_t sum = 0;
    auto [begin, end] = split_range(int64_t(total), thread, pool.size(), 64);
    std::memset(out + begin, thread + 1, size_t(end - begin));
    for (const WeightMap* source : {&first, &second}) {
      for (const auto& [key, tensor] : *source) {
        auto [low, high] =
            split_range(int64_t(tensor.bytes / 8), thread, pool.size());
        for (int64_t i = low; i < high; ++i) {
          uint64_t word;
          std::memcpy(&word, tensor.data + 8 * i, 8);
          sum += word;
        }
      }
    }
    __atomic_fetch_add(&seen, sum, __ATOMIC_RELAXED);
  });
  double seconds = now() - begun;
  volatile uint64_t keep = seen;
  (void)keep;
  std::free(out);
  return seconds;
}

struct Blend {
  double seconds = 0;
  double extra_megabytes = 0;  // peak beside the changed tensors
};

Blend blend(
    const fs::path& model, const fs::path& recipe_file, ThreadPool& pool) {
  Config config = read_config(model);
  Detection detection = detect_model(model, config);
  const Family& family = require_generation(detection, config);
  NameMap names(family.names, decoder_spec(family, config));
  WeightMap weights = load_weights(model);
  size_t changed = weights.total_bytes();
  reset_peak();
  uint64_t before = status_bytes("VmRSS");
  Blend out;
  double begun = now();
  Recipe recipe = read_recipe(recipe_file);
  apply_surgery(
      plan_surgery(recipe, {names.spec(), names}, weights), weights, pool);
  out.seconds = now() - begun;
  uint64_t peak = status_bytes("VmHWM");
  out.extra_megabytes = (double(peak) - double(before) - double(changed)) / 1e6;
  return out;
}

int run(const fs::path& a, const fs::path& b, int threads) {
  fs::path recipe = fs::temp_directory_path() /
                    fmt::format("surgery-bench-{}.yaml", getpid());
  std::ofstream(recipe) << "version: 1\noperations:\n"
                        << "- op: interpolate\n  pattern: '*'\n  source_a: '"
                        << fs::absolute(a).string() << "'\n  source_b: '"
                        << fs::absolute(b).string()
                        << "'\n  ratio: 0.3\n  method: lerp\n";
  ThreadPool pool(threads);
  constexpr int kRepeats = 9;
  std::vector<double> floors;
  std::vector<double> blends;
  double extra = 0;
  for (int i = 0; i <= kRepeats; ++i) {
    double floor = floor_seconds(a, b, pool);
    Blend result = blend(a, recipe, pool);
    if (i > 0) {  // the first warms the page cache
      floors.push_back(floor);
      blends.push_back(result.seconds);
      extra = std::max(extra, result.extra_megabytes);
    }
  }
  fs::remove(recipe);
  fmt::print(
      "lerp {:.1f} ms  floor {:.1f} ms  ratio {:.2f}  threads {}  extra {:.0f} "
      "MB\n",
      1e3 * median(blends),
      1e3 * median(floors),
      median(blends) / median(floors),
      pool.size(),
      extra);
  return 0;
}

}  // namespace
}  // namespace mlxcel

int main(int argc, char** argv) {
  if (argc < 3) {
    fmt::print(
        stderr, "usage: surgery_bench CHECKPOINT_A CHECKPOINT_B [THREADS]\n");
    return 2;
  }
  try {
    return mlxcel::run(argv[1], argv[2], argc > 3 ? std::atoi(argv[3]) : 0);
  } catch (const mlxcel::Error& error) {
    fmt::print(stderr, "surgery_bench: {}\n", error.what());
    return 1;
  }
}

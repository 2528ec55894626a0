// Fusing a rank-16 adapter on every linear of a checkpoint, beside the least
// that any fuse has to do: read the weights once and write the changed bytes to
// fresh memory.
//
//   fuse_bench MODEL_DIR [RANK]
#include "adapters/fuse.h"
#include "core/error.h"
#include "io/checkpoint.h"
#include "loading/config_file.h"
#include "loading/detect.h"
#include "loading/sanitize_weights.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace mlxcel {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

struct Model {
  const Family& family;
  DecoderSpec spec;
  NameMap names;
  WeightMap weights;
};

Model open_model(const std::filesystem::path& folder) {
  Config config = read_config(folder);
  const Family& family =
      require_generation(detect_model(folder, config), config);
  DecoderSpec spec = decoder_spec(family, config);
  Model model{family, spec, NameMap(family.names, spec), load_weights(folder)};
  sanitize_weights(config, model.names, model.weights);
  return model;
}

// bf16 values in (-1, 1) around a small size; their bits do not change the
// speed.
WeightTensor made_up(int64_t rows, int64_t cols) {
  std::byte* data = nullptr;
  WeightTensor tensor = make_weight(DType::bf16, {rows, cols}, &data);
  uint32_t state = uint32_t(rows * 31 + cols);
  for (int64_t i = 0; i < rows * cols; ++i) {
    state = state * 1664525 + 1013904223;
    auto bits = uint16_t(0x3c00 | (state >> 31 << 15) | (state >> 20 & 0x7f));
    std::memcpy(data + 2 * i, &bits, 2);
  }
  return tensor;
}

ResolvedAdapter adapter_for(const Model& model, int64_t rank) {
  Adapter adapter;
  adapter.folder = "made up";
  for (const auto& [key, tensor] : model.weights) {
    bool linear = tensor.ndim() == 2 && key.find(".layers.") != key.npos &&
                  key.ends_with(".weight");
    if (linear) {
      adapter.pairs.push_back(
          {std::string(split_key(key).first),
           made_up(tensor.dim(1), rank),
           made_up(rank, tensor.dim(0))});
    }
  }
  return resolve_adapter(
      adapter, {model.family, model.spec, model.names, model.weights});
}

// Reads all changed tensors once, and writes as many bytes to new pages.
double floor_seconds(
    const Model& model, const ResolvedAdapter& adapter, ThreadPool& pool) {
  std::vector<const WeightTensor*> changed;
  for (const ResolvedPair& pair : adapter.pairs) {
    changed.push_back(
        &model.weights.at(pair.targets.front().rows.stem + ".weight"));
  }
  Clock::time_point begin = Clock::now();
  std::vector<WeightTensor> fresh;
  for (const WeightTensor* tensor : changed) {
    std::byte* data = nullptr;
    fresh.push_back(make_weight(tensor->dtype, tensor->shape, &data));
    pool.run([&](int thread) {
      auto [first, last] =
          split_range(int64_t(tensor->bytes), thread, pool.size(), 4096);
      std::memcpy(data + first, tensor->data + first, size_t(last - first));
    });
  }
  return seconds_since(begin);
}

double fuse_seconds(
    const Model& model, const ResolvedAdapter& adapter, ThreadPool& pool) {
  WeightMap weights = model.weights;
  Clock::time_point begin = Clock::now();
  fuse_adapters(
      {{&adapter, 1}},
      {model.family, model.spec, model.names, weights},
      weights,
      pool);
  return seconds_since(begin);
}

int run(const char* folder, int64_t rank) {
  Model model = open_model(folder);
  ResolvedAdapter adapter = adapter_for(model, rank);
  ThreadPool pool(0);
  double bytes = 0, flops = 0;
  for (const ResolvedPair& pair : adapter.pairs) {
    bytes += double(
        model.weights.at(pair.targets.front().rows.stem + ".weight").bytes);
    flops += 2.0 * double(pair.rows) * double(pair.in) * double(pair.rank);
  }
  floor_seconds(model, adapter, pool);  // the file's pages into memory
  std::vector<double> floors, fuses;
  for (int i = 0; i < 7; ++i) {
    floors.push_back(floor_seconds(model, adapter, pool));
    fuses.push_back(fuse_seconds(model, adapter, pool));
  }
  std::sort(floors.begin(), floors.end());
  std::sort(fuses.begin(), fuses.end());
  double least = floors[floors.size() / 2], fuse = fuses[fuses.size() / 2];
  std::printf(
      "%zu pairs of rank %lld, %.1f MB changed, %d threads\n"
      "floor %.1f ms (%.1f to %.1f), %.1f GB/s read and as much written\n"
      "fuse  %.1f ms (%.1f to %.1f), %.0f GFLOP/s, %.2fx the floor\n",
      adapter.pairs.size(),
      static_cast<long long>(rank),
      bytes / 1e6,
      pool.size(),
      1e3 * least,
      1e3 * floors.front(),
      1e3 * floors.back(),
      bytes / least / 1e9,
      1e3 * fuse,
      1e3 * fuses.front(),
      1e3 * fuses.back(),
      flops / fuse / 1e9,
      fuse / least);
  return 0;
}

}  // namespace
}  // namespace mlxcel

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: fuse_bench MODEL_DIR [RANK]\n");
    return 2;
  }
  try {
    return mlxcel::run(argv[1], argc > 2 ? std::atoll(argv[2]) : 16);
  } catch (const mlxcel::Error& error) {
    std::fprintf(stderr, "fuse_bench: %s\n", error.what());
    return 1;
  }
}

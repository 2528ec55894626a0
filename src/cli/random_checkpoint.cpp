#include "cli/random_checkpoint.h"

#include "cli/random_shapes.h"
#include "core/error.h"
#include "core/half.h"
#include "io/safetensors.h"
#include "loading/detect.h"

#include <nlohmann/json.hpp>

#include <cmath>
#include <cstring>
#include <fstream>
#include <vector>

namespace mlxcel::cli {

namespace {

namespace fs = std::filesystem;

constexpr int64_t kGroupSize = 64;

// SplitMix64: fast, and good enough for weights that nobody reads.
struct Random {
  uint64_t state;
  uint64_t next() {
    uint64_t z = state += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  float signed_unit() {  // in [-1, 1)
    return float(int64_t(next()) >> 40) * 0x1p-23f;
  }
};

void fill(std::byte* data, size_t bytes, Random& random) {
  for (size_t i = 0; i < bytes; i += sizeof(uint64_t)) {
    uint64_t word = random.next();
    std::memcpy(data + i, &word, std::min(sizeof word, bytes - i));
  }
}

// Matrices whose products keep the size of their input: [..., out, in].
void add_matrix(
    WeightMap& map,
    const std::string& stem,
    Shape shape,
    int bits,
    Random& random) {
  const int64_t in = shape.back(), count = element_count(shape);
  if (count == 0 || (bits != 16 && in % kGroupSize != 0)) {
    throw UsageError(
        cat("cannot make ", stem, ".weight of shape ", to_string(shape)),
        cat("its rows must be whole groups of ", kGroupSize),
        "take other sizes, or --bits 16");
  }
  std::byte* data = nullptr;
  float spread = std::sqrt(3.f / float(in));  // uniform with variance 1 / in
  if (bits == 16) {
    WeightTensor weight = make_weight(DType::bf16, shape, &data);
    auto* values = reinterpret_cast<uint16_t*>(data);
    for (int64_t i = 0; i < count; ++i) {
      values[i] = f32_to_bf16(random.signed_unit() * spread);
    }
    map.set(stem + ".weight", weight);
    return;
  }
  shape.back() = in * bits / 32;
  WeightTensor packed = make_weight(DType::u32, shape, &data);
  fill(data, packed.bytes, random);
  map.set(stem + ".weight", packed);
  shape.back() = in / kGroupSize;
  std::byte* bias_data = nullptr;
  WeightTensor scales = make_weight(DType::bf16, shape, &data);
  WeightTensor biases = make_weight(DType::bf16, shape, &bias_data);
  auto* scale_values = reinterpret_cast<uint16_t*>(data);
  auto* bias_values = reinterpret_cast<uint16_t*>(bias_data);
  float steps = float((1 << bits) - 1);
  for (int64_t i = 0; i < element_count(shape); ++i) {
    float range = spread * (1 + 0.25f * random.signed_unit());
    scale_values[i] = f32_to_bf16(2 * range / steps);
    bias_values[i] = f32_to_bf16(-range);
  }
  map.set(stem + ".scales", scales);
  map.set(stem + ".biases", biases);
}

// Numbers around `center`.
void add_numbers(
    WeightMap& map,
    const std::string& key,
    const Shape& shape,
    float center,
    float spread,
    Random& random) {
  std::byte* data = nullptr;
  WeightTensor tensor = make_weight(DType::bf16, shape, &data);
  auto* values = reinterpret_cast<uint16_t*>(data);
  for (int64_t i = 0; i < element_count(shape); ++i) {
    values[i] = f32_to_bf16(center + spread * random.signed_unit());
  }
  map.set(key, tensor);
}

// Vectors by the last part of their role: numbers around `center`.
struct Numbers {
  std::string_view role;
  float center, spread;
};
constexpr Numbers kNumbers[] = {
    {"a_log", 1, 0.5f},
    {"d", 1, 0.5f},
    {"dt_bias", -4, 0.5f},  // softplus: the usual steps
    {"conv", 0, 0.5f},
    {"conv_bias", 0, 0.5f},
    {"selection_bias", 0, 0.1f},
};

void add_vector(
    WeightMap& map,
    const std::string& stem,
    std::string_view kind,
    int64_t size,
    int64_t taps,
    Random& random) {
  std::string_view last = kind.substr(kind.rfind('.') + 1);
  for (const Numbers& numbers : kNumbers) {
    if (numbers.role == last) {
      bool convolution = last == "conv";
      if (convolution && taps <= 0) {
        throw UsageError(
            cat("cannot make ", stem, ".weight"),
            "the config does not say how many taps the convolution has under "
            "the names known here",
            "take another family");
      }
      add_numbers(
          map,
          convolution ? stem + ".weight" : stem,
          convolution ? Shape{size, taps, 1} : Shape{size},
          numbers.center,
          numbers.spread,
          random);
      return;
    }
  }
  add_numbers(map, stem + ".weight", {size}, 1, 0, random);  // a norm
}

// Every tensor of some roles, by the names that the family prefers.
class Maker {
 public:
  Maker(const fs::path& folder, const Config& config, int bits)
      : family_(*detect_model(folder, config).family),
        spec_(decoder_spec(family_, config)),
        names_(family_.names, spec_),
        taps_(config.get_or(
            "conv_kernel", config.get_or("linear_conv_kernel_dim", 0))),
        bits_(bits) {}

  int layers() const {
    return int(spec_.blocks.size());
  }

  // layer -1: what stands outside of the layers.
  WeightMap make(int layer) {
    WeightMap map;
    if (layer < 0) {
      add(map, "embedding", "embedding");
      if (spec_.head == HeadKind::own) {
        add(map, "head", "head");
      }
      add(map, "final_norm", "final_norm");
      return map;
    }
    for (const RoleShape& role :
         roles_of(spec_.blocks[size_t(layer)], spec_.hidden_size)) {
      if (role.kind != "attention.kv_b") {  // MLX keeps its heads apart
        add(map, cat("layers.", layer, ".", role.kind), role.kind);
      }
    }
    return map;
  }

 private:
  // The whole tensor that holds the role, unless it is there already.
  void add(WeightMap& map, const std::string& name, std::string_view kind) {
    const StemRows rows = names_.stems_of(name).front();
    if (map.contains(rows.stem) || map.contains(rows.stem + ".weight")) {
      return;
    }
    const int64_t cols = names_.cols(parse_role(name));
    int64_t all = 0;
    for (const RolePart& part : names_.parts_of(rows.stem)) {
      all += part.count;
    }
    if (cols == 0) {
      add_vector(map, rows.stem, kind, all, taps_, random_);
      return;
    }
    // Routers stay unpacked, as what is chosen depends on small differences.
    bool router = kind == "moe.router" || kind == "moe.shared_gate";
    add_matrix(
        map,
        rows.stem,
        rows.stacked > 0 ? Shape{rows.stacked, all / rows.stacked, cols}
                         : Shape{all, cols},
        router ? 16 : bits_,
        random_);
  }

  const Family& family_;
  DecoderSpec spec_;
  NameMap names_;
  int64_t taps_;
  int bits_;
  Random random_{42};
};

void write_text(const fs::path& path, const std::string& text) {
  std::ofstream file(path);
  file << text << "\n";
  if (!file.flush()) {
    throw Error(
        cat("cannot write ", path.string()),
        "the device may be full",
        "name another folder");
  }
}

}  // namespace

void write_random_checkpoint(
    const fs::path& folder, const std::string& shape, int bits) {
  nlohmann::ordered_json json = random_shape_config(shape);
  if (bits != 4 && bits != 8 && bits != 16) {
    throw UsageError(
        cat("wrong --bits ", bits),
        "random checkpoints have 4 or 8 bits (affine) or 16 (bf16)",
        "give --bits 4, 8 or 16");
  }
  if (fs::exists(folder) && !fs::is_empty(folder)) {
    throw UsageError(
        cat("the folder ", folder.string(), " is not empty"),
        "a checkpoint's files would mix with what is there",
        "name a new folder");
  }
  fs::create_directories(folder);

  Config config(nlohmann::json(json), (folder / "config.json").string());
  Maker maker(folder, config, bits);
  nlohmann::ordered_json index;
  index["metadata"] = {{"total_size", 0}};
  uint64_t total = 0;
  for (int layer = -1; layer < maker.layers(); ++layer) {
    WeightMap map = maker.make(layer);
    std::string name = fmt::format(
        "model-{:05d}-of-{:05d}.safetensors", layer + 2, maker.layers() + 1);
    write_safetensors(folder / name, map, {{"format", "mlx"}});
    for (const auto& [key, tensor] : map) {
      index["weight_map"][key] = name;
      total += tensor.bytes;
    }
  }
  index["metadata"]["total_size"] = total;
  write_text(folder / "model.safetensors.index.json", index.dump(1));
  if (bits != 16) {
    json["quantization"] = {{"group_size", kGroupSize}, {"bits", bits}};
  }
  write_text(folder / "config.json", json.dump(2));
}

}  // namespace mlxcel::cli

#include "adapters/convert.h"

#include "adapters/folder.h"
#include "adapters/peft_config.h"
#include "core/error.h"
#include "core/row_kernels.h"
#include "io/safetensors.h"

#include <unistd.h>

#include <array>
#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

namespace mlxcel {

namespace {

namespace fs = std::filesystem;

constexpr const char* kSavedFolder =
    "give the folder that PEFT's save_pretrained wrote";

struct PeftPair {
  const WeightTensor* a = nullptr;  // [rank, in]
  const WeightTensor* b = nullptr;  // [out, rank]
  double factor = 0;
};

[[noreturn]] void refuse_tensor(
    const std::string& key, const fs::path& file, const std::string& why) {
  throw AdapterError(
      cat("cannot convert ", file.string()),
      cat("tensor ", key, " ", why),
      kMergeWithPeft);
}

fs::path weight_file(const fs::path& folder) {
  check_adapter_folder(folder, kSavedFolder);
  std::error_code ignored;
  fs::path file = folder / "adapter_model.safetensors";
  if (!fs::is_regular_file(file, ignored)) {
    bool pickled = fs::exists(folder / "adapter_model.bin", ignored);
    throw AdapterError(
        cat("cannot read adapter ", folder.string()),
        pickled ? "it holds adapter_model.bin, which can run code when read"
                : "it holds no adapter_model.safetensors",
        pickled ? "save it with PEFT's save_pretrained(..., "
                  "safe_serialization=True)"
                : kSavedFolder);
  }
  return file;
}

// "base_model.model.model.layers.0.mlp.up_proj.lora_A.weight" is half 0 of
// module "model.layers.0.mlp.up_proj". Some writers leave out the prefix, and
// some keep the adapter's name.
std::pair<std::string, int> split_peft_key(
    const std::string& key, const fs::path& file) {
  constexpr std::string_view kPrefix = "base_model.model.";
  constexpr std::pair<std::string_view, int> kSuffixes[] = {
      {".lora_A.weight", 0},
      {".lora_B.weight", 1},
      {".lora_A.default.weight", 0},
      {".lora_B.default.weight", 1},
  };
  for (auto [suffix, half] : kSuffixes) {
    if (key.ends_with(suffix)) {
      std::string module = key.substr(0, key.size() - suffix.size());
      if (module.starts_with(kPrefix)) {
        module.erase(0, kPrefix.size());
      }
      return {module, half};
    }
  }
  if (key.find("lora_embedding_") != std::string::npos) {
    refuse_tensor(
        key,
        file,
        "belongs to a pair on an embedding; PEFT leaves a tied head without "
        "that term, so the result would differ");
  }
  if (key.find("lora_magnitude_vector") != std::string::npos) {
    refuse_dora(
        cat(file.string(), " holds the magnitudes ", key), kMergeWithPeft);
  }
  if (key.ends_with(".base_layer.weight")) {
    throw AdapterError(
        cat("cannot convert ", file.string()),
        cat("tensor ",
            key,
            " is a base weight, which PEFT saves beside a pair on a head or "
            "an embedding, changed or not"),
        "if it is the base model's, save the adapter with "
        "save_pretrained(..., save_embedding_layers=False); else merge it "
        "into its base checkpoint (merge_and_unload)");
  }
  refuse_tensor(
      key, file, "is no lora_A or lora_B, and has no place in a low-rank sum");
}

void check_half(
    const std::string& key, const WeightTensor& tensor, const fs::path& file) {
  if (tensor.ndim() != 2 || element_count(tensor.shape) == 0) {
    refuse_tensor(
        key,
        file,
        cat("has shape ",
            to_string(tensor.shape),
            ", and only matrices of linear layers are converted"));
  }
  if (!is_float(tensor.dtype)) {
    refuse_tensor(key, file, cat("holds ", tensor.dtype, ", not floats"));
  }
}

std::map<std::string, PeftPair> read_pairs(
    const WeightMap& tensors, const PeftConfig& config, const fs::path& file) {
  std::map<std::string, PeftPair> pairs;
  for (const auto& [key, tensor] : tensors) {
    auto [module, half] = split_peft_key(key, file);
    check_half(key, tensor, file);
    const WeightTensor*& place = half == 0 ? pairs[module].a : pairs[module].b;
    if (place != nullptr) {
      refuse_tensor(key, file, cat("is the second one for ", module));
    }
    place = &tensor;
  }
  if (pairs.empty()) {
    throw AdapterError(
        cat("cannot convert ", file.string()),
        "it holds no tensors",
        "save the adapter with PEFT again");
  }
  for (auto& [module, pair] : pairs) {
    if (pair.a == nullptr || pair.b == nullptr) {
      throw AdapterError(
          cat("cannot convert ", file.string()),
          cat("the pair of ",
              module,
              " lacks its half ",
              pair.a == nullptr ? "lora_A" : "lora_B"),
          "save the adapter with PEFT again");
    }
    int64_t rank = config.rank_of(module);
    if (pair.a->dim(0) != rank || pair.b->dim(1) != rank) {
      throw AdapterError(
          cat("cannot convert ", file.string()),
          cat("the pair of ",
              module,
              " has lora_A ",
              to_string(pair.a->shape),
              " and lora_B ",
              to_string(pair.b->shape),
              ", and the config gives it rank ",
              rank),
          "correct r or rank_pattern in adapter_config.json: the factor "
          "depends on it");
    }
    pair.factor = config.factor_of(module);
  }
  return pairs;
}

// The factor that the most pairs have; of equally many the largest. Zero only
// when all are zero, as the others could not be a multiple of it.
double common_factor(const std::map<std::string, PeftPair>& pairs) {
  std::map<double, int> counts;
  for (const auto& [module, pair] : pairs) {
    ++counts[pair.factor];
  }
  double best = 0;
  int most = 0;
  for (auto [factor, count] : counts) {
    if (factor != 0 && count >= most) {
      best = factor;
      most = count;
    }
  }
  return best;
}

// [rows, cols] -> [cols, rows]
WeightTensor transpose(const WeightTensor& tensor) {
  int64_t rows = tensor.dim(0), cols = tensor.dim(1);
  size_t element = size_of(tensor.dtype);
  std::byte* data = nullptr;
  WeightTensor out = make_weight(tensor.dtype, {cols, rows}, &data);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < cols; ++j) {
      std::memcpy(
          data + size_t(j * rows + i) * element,
          tensor.data + size_t(i * cols + j) * element,
          element);
    }
  }
  return out;
}

// `ratio` times the tensor: in its own dtype where that is exact, else in F32.
WeightTensor multiply(const WeightTensor& tensor, double ratio) {
  int64_t count = element_count(tensor.shape);
  std::byte* data = nullptr;
  WeightTensor wide = make_weight(DType::f32, tensor.shape, &data);
  auto* values = reinterpret_cast<float*>(data);
  convert_to_f32(tensor.dtype, tensor.data, count, values);
  bool exact = true;
  for (int64_t i = 0; i < count; ++i) {
    double product = ratio * double(values[i]);
    values[i] = float(product);
    exact = exact && double(values[i]) == product;
  }
  if (!exact || size_of(tensor.dtype) >= size_of(DType::f32)) {
    return wide;
  }
  WeightTensor narrow = make_weight(tensor.dtype, tensor.shape, &data);
  convert_from_f32(values, count, tensor.dtype, data);
  std::vector<float> back(static_cast<size_t>(count));
  convert_to_f32(tensor.dtype, narrow.data, count, back.data());
  return std::equal(back.begin(), back.end(), values) ? narrow : wide;
}

void write_config(
    const fs::path& path,
    const AdapterConversion& result,
    const PeftConfig& source) {
  nlohmann::ordered_json config = {
      {"fine_tune_type", "lora"},
      {"lora_parameters",
       {{"rank", result.rank}, {"scale", result.factor}, {"dropout", 0.0}}},
      {"num_layers", -1},
      {"target_modules", source.target_modules()},
  };
  if (!source.base_model().empty()) {
    config["model"] = source.base_model();
  }
  std::ofstream out(path, std::ios::binary);
  out << config.dump(
             2, ' ', false, nlohmann::ordered_json::error_handler_t::replace)
      << "\n";
  if (!out.flush()) {
    throw AdapterError(
        cat("cannot write ", path.string()),
        "the disk is full or the folder cannot be written to",
        "choose another folder");
  }
}

// Takes away what was written unless all of it was.
class OutputFolder {
 public:
  explicit OutputFolder(const fs::path& path) : path_(path) {
    std::error_code error;
    existed_ = fs::exists(path_, error);
    if (existed_ &&
        (!fs::is_directory(path_, error) || !fs::is_empty(path_, error))) {
      throw AdapterError(
          cat("cannot write to ", path_.string()),
          "it exists and is not an empty folder",
          "name a new folder, or delete this one first");
    }
  }
  ~OutputFolder() {
    if (!done_) {
      std::error_code ignored;
      fs::remove(path_ / "adapters.safetensors", ignored);
      fs::remove(path_ / "adapter_config.json", ignored);
      if (!existed_) {
        fs::remove(path_, ignored);
      }
    }
  }
  void create() {
    std::error_code error;
    fs::create_directories(path_, error);
    if (error) {
      throw AdapterError(
          cat("cannot create ", path_.string()),
          error.message(),
          "choose a folder that can be written to");
    }
  }
  void commit() {
    done_ = true;
  }

 private:
  fs::path path_;
  bool existed_ = false;
  bool done_ = false;
};

}  // namespace

AdapterConversion convert_peft_adapter(
    const fs::path& peft, const fs::path& out) {
  fs::path file = weight_file(peft);
  PeftConfig config = PeftConfig::read(peft / "adapter_config.json");
  SafetensorsFile content = read_safetensors(file);
  std::map<std::string, PeftPair> pairs =
      read_pairs(content.tensors, config, file);

  OutputFolder folder(out);
  AdapterConversion result;
  result.factor = common_factor(pairs);
  WeightMap tensors;
  for (const auto& [module, pair] : pairs) {
    WeightTensor b = *pair.b;
    if (pair.factor != result.factor) {
      b = multiply(b, pair.factor / result.factor);
      result.folded += 1;
      result.widened += b.dtype != pair.b->dtype ? 1 : 0;
    }
    // The orientation that is meant where both fit.
    tensors.set(module + ".lora_a", transpose(*pair.a));
    tensors.set(module + ".lora_b", transpose(b));
    result.pairs += 1;
    result.rank = std::max(result.rank, pair.a->dim(0));
  }
  result.bytes = tensors.total_bytes();
  folder.create();
  write_safetensors(out / "adapters.safetensors", tensors, {{"format", "mlx"}});
  write_config(out / "adapter_config.json", result, config);
  folder.commit();
  return result;
}

}  // namespace mlxcel

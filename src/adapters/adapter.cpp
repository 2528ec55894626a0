#include "adapters/adapter.h"

#include "adapters/digest.h"
#include "adapters/folder.h"
#include "core/error.h"
#include "io/safetensors.h"

#include <array>
#include <bit>
#include <map>

namespace mlxcel {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kA = ".lora_a";
constexpr std::string_view kB = ".lora_b";
constexpr const char* kConvert =
    "convert the folder with mlxcel convert-adapter PEFT_DIR OUT_DIR";

void refuse_peft_keys(const WeightMap& tensors, const fs::path& file) {
  for (const auto& [key, tensor] : tensors) {
    if (key.find(".lora_A") != std::string::npos ||
        key.find(".lora_B") != std::string::npos ||
        key.find(".lora_embedding_") != std::string::npos) {
      throw AdapterError(
          cat("cannot apply adapter ", file.string()),
          cat("tensor ", key, " has PEFT's name (lora_A, lora_B)"),
          kConvert);
    }
  }
}

[[noreturn]] void refuse_key(const std::string& key, const fs::path& file) {
  throw AdapterError(
      cat("cannot apply adapter ", file.string()),
      cat("tensor ",
          key,
          " is neither a .lora_a nor a .lora_b; without it the result would "
          "not be what was trained"),
      "an adapter file holds <base weight>.lora_a and <base weight>.lora_b "
      "pairs only");
}

void check_tensor(
    const std::string& key, const WeightTensor& tensor, const fs::path& file) {
  if (tensor.ndim() == 3) {
    throw AdapterError(
        cat("cannot apply adapter ", file.string()),
        cat("tensor ",
            key,
            " is 3-D ",
            to_string(tensor.shape),
            ": a pair over a stack of mixture-of-experts weights"),
        "fuse it into its base checkpoint with the tool that trained it, or "
        "train one 2-D pair an expert");
  }
  if (tensor.ndim() != 2) {
    throw AdapterError(
        cat("cannot apply adapter ", file.string()),
        cat("tensor ",
            key,
            " has shape ",
            to_string(tensor.shape),
            ", and a matrix is needed"),
        "lora_a is [in, rank] and lora_b [rank, out], or both transposed");
  }
  if (element_count(tensor.shape) == 0) {
    throw AdapterError(
        cat("cannot apply adapter ", file.string()),
        cat("tensor ",
            key,
            " has shape ",
            to_string(tensor.shape),
            " and so no element"),
        "train or export the adapter again");
  }
  if (!is_float(tensor.dtype)) {
    throw AdapterError(
        cat("cannot apply adapter ", file.string()),
        cat("tensor ", key, " holds ", tensor.dtype, ", not floats"),
        "save the pair as F32, F16 or BF16");
  }
}

std::string content_digest(const Adapter& adapter) {
  Sha256 digest;
  uint64_t factor = std::bit_cast<uint64_t>(adapter.config.factor());
  digest.update(&factor, sizeof(factor));
  for (const AdapterPair& pair : adapter.pairs) {
    for (const WeightTensor* tensor : {&pair.a, &pair.b}) {
      std::string line =
          cat(pair.stem, "\n", tensor->dtype, to_string(tensor->shape), "\n");
      digest.update(line.data(), line.size());
      digest.update(tensor->data, tensor->bytes);
    }
  }
  return digest.hex();
}

fs::path weight_file(const fs::path& folder) {
  std::optional<fs::path> file = find_adapter_file(folder);
  if (!file) {
    throw AdapterError(
        cat("cannot read adapter ", folder.string()),
        "it holds neither adapters.safetensors nor adapter_model.safetensors; "
        "shards and other file names are not looked for",
        "save the adapter's tensors as adapters.safetensors");
  }
  return *file;
}

}  // namespace

std::optional<fs::path> find_adapter_file(const fs::path& folder) {
  for (const char* name :
       {"adapters.safetensors", "adapter_model.safetensors"}) {
    std::error_code ignored;
    if (fs::is_regular_file(folder / name, ignored)) {
      return folder / name;
    }
  }
  return std::nullopt;
}

std::string Adapter::task_name() const {
  if (!config.task_name.empty()) {
    return config.task_name;
  }
  // A path that ends in a slash has an empty last part.
  fs::path path = folder.lexically_normal();
  return (path.has_filename() ? path : path.parent_path()).filename().string();
}

Adapter read_adapter(const fs::path& folder) {
  Adapter adapter = read_adapter_headers(folder);
  adapter.digest = content_digest(adapter);
  return adapter;
}

Adapter read_adapter_headers(const fs::path& folder) {
  check_adapter_folder(
      folder,
      "give the folder that holds adapter_config.json and "
      "adapters.safetensors");
  Adapter adapter;
  adapter.folder = folder;
  adapter.file = weight_file(folder);
  SafetensorsFile content = read_safetensors(adapter.file);

  // PEFT folders are told by their keys first: the message about the config
  // would hide what to do. The config comes before the other keys, since it
  // says why an adapter of another kind holds more than pairs.
  refuse_peft_keys(content.tensors, adapter.file);
  adapter.config = read_adapter_config(folder);
  std::map<std::string, std::array<const WeightTensor*, 2>> halves;
  for (const auto& [key, tensor] : content.tensors) {
    bool is_a = key.ends_with(kA);
    if (!is_a && !key.ends_with(kB)) {
      refuse_key(key, adapter.file);
    }
    check_tensor(key, tensor, adapter.file);
    halves[key.substr(0, key.size() - kA.size())][is_a ? 0 : 1] = &tensor;
  }
  if (halves.empty()) {
    throw AdapterError(
        cat("cannot apply adapter ", adapter.file.string()),
        "it holds no tensors, so nothing would change",
        "an adapter file holds <base weight>.lora_a and <base weight>.lora_b "
        "pairs");
  }
  for (const auto& [stem, pair] : halves) {
    if (pair[0] == nullptr || pair[1] == nullptr) {
      throw AdapterError(
          cat("cannot apply adapter ", adapter.file.string()),
          cat("the pair of ",
              stem,
              " lacks its half ",
              stem,
              pair[0] == nullptr ? kA : kB),
          "both halves are needed: train or export the adapter again");
    }
    adapter.pairs.push_back({stem, *pair[0], *pair[1]});
  }
  return adapter;
}

}  // namespace mlxcel

#include "io/checkpoint.h"

#include "core/error.h"
#include "core/log.h"
#include "io/json.h"

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

namespace mlxcel {

namespace fs = std::filesystem;

namespace {

constexpr const char* kIndexName = "model.safetensors.index.json";
constexpr std::array<std::string_view, 2> kAdapterFiles = {
    "adapters.safetensors", "adapter_model.safetensors"};

bool is_adapter_file(std::string_view name) {
  return std::find(kAdapterFiles.begin(), kAdapterFiles.end(), name) !=
         kAdapterFiles.end();
}

// Names of the folder's own tensor files, sorted.
std::vector<std::string> own_files(const fs::path& folder) {
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    std::string name = entry.path().filename().string();
    if (entry.path().extension() == ".safetensors" && name[0] != '.' &&
        !is_adapter_file(name) && entry.is_regular_file()) {
      names.push_back(std::move(name));
    }
  }
  auto consolidated = [](const std::string& name) {
    return name.starts_with("consolidated");
  };
  if (!std::all_of(names.begin(), names.end(), consolidated)) {
    std::erase_if(names, consolidated);
  }
  std::sort(names.begin(), names.end());
  return names;
}

// Tensor -> file name, checked to stay inside the folder.
std::map<std::string, std::string> read_index(const fs::path& path) {
  auto fail = [&](const std::string& why) {
    throw CheckpointError(
        cat("cannot read ", path.string()),
        why,
        "fetch the index again, or remove it where the folder has all files");
  };
  nlohmann::json root = read_json_file(path);
  if (!root.is_object() || !root.contains("weight_map") ||
      !root["weight_map"].is_object()) {
    fail("\"weight_map\" is missing or no object");
  }
  std::map<std::string, std::string> out;
  for (const auto& [tensor, file] : root["weight_map"].items()) {
    if (!file.is_string()) {
      fail(cat("weight_map[\"", tensor, "\"] is not a file name"));
    }
    std::string name = file.get<std::string>();
    if (name.empty() || name.find('/') != std::string::npos ||
        name.find('\0') != std::string::npos || name == "." || name == "..") {
      fail(
          cat("weight_map[\"",
              tensor,
              "\"] = \"",
              name,
              "\" is not the name of a file in the folder"));
    }
    out.emplace(tensor, std::move(name));
  }
  if (out.empty()) {
    fail("\"weight_map\" names no tensor");
  }
  return out;
}

[[noreturn]] void refuse_empty(const fs::path& folder) {
  std::string found;
  for (std::string_view name : kAdapterFiles) {
    if (fs::exists(folder / name)) {
      throw CheckpointError(
          cat(folder.string(), " is an adapter, not a model"),
          cat("its only tensors are in ", name),
          "give the base model with --model and this folder with --adapter");
    }
  }
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    std::string extension = entry.path().extension().string();
    if (extension == ".bin" || extension == ".pth" || extension == ".pt" ||
        extension == ".gguf" || extension == ".npz") {
      found = cat("it has ", entry.path().filename().string(), ", but ");
    }
  }
  throw CheckpointError(
      cat(folder.string(), " has no weights"),
      found + "no *.safetensors file",
      found.find(".gguf") != std::string::npos
          ? "convert the file with mlxcel import-gguf"
          : "weights are read from safetensors files only");
}

// The error for an index whose every file is absent.
[[noreturn]] void refuse_absent(
    const fs::path& folder, const std::string& shard, size_t count) {
  throw CheckpointError(
      cat(folder.string(), " has no weights"),
      cat(kIndexName,
          " names ",
          shard,
          count > 1 ? cat(" and ", count - 1, " more files") : std::string(),
          ", but the folder has no *.safetensors file"),
      "fetch the missing files");
}

std::vector<fs::path> in_folder(
    const fs::path& folder, const std::vector<std::string>& names) {
  std::vector<fs::path> out;
  for (const std::string& name : names) {
    out.push_back(folder / name);
  }
  return out;
}

// Whether `file` is the one to read `tensor` from, when an earlier file has it
// too. Throws when nothing says which.
bool replaces(
    const TensorFiles& files,
    const std::string& tensor,
    const fs::path& earlier,
    const fs::path& file) {
  auto named = files.index.find(tensor);
  if (named == files.index.end() ||
      (named->second != earlier.filename().string() &&
       named->second != file.filename().string())) {
    throw CheckpointError(
        cat("tensor \"", tensor, "\" is in two files"),
        cat(earlier.string(), " and ", file.string()),
        cat("remove the file that does not belong to the model, or add ",
            kIndexName));
  }
  return named->second == file.filename().string();
}

}  // namespace

fs::path checkpoint_folder(const fs::path& model) {
  std::error_code status;
  if (fs::is_directory(model, status)) {
    return model;
  }
  if (!fs::exists(model, status)) {
    throw CheckpointError(
        cat("there is no ", model.string()),
        status ? status.message() : std::string(),
        "give the folder of a checkpoint: config.json and *.safetensors");
  }
  fs::path parent = model.parent_path();
  return parent.empty() ? fs::path(".") : parent;
}

TensorFiles find_tensor_files(const fs::path& folder) {
  TensorFiles out;
  std::vector<std::string> own = own_files(folder);
  fs::path index_path = folder / kIndexName;
  if (!fs::exists(index_path)) {
    if (own.empty()) {
      refuse_empty(folder);
    }
    out.files = in_folder(folder, own);
    return out;
  }
  out.index = read_index(index_path);
  std::set<std::string> named;
  for (const auto& [tensor, file] : out.index) {
    named.insert(file);
  }
  std::vector<std::string> absent;
  for (const std::string& name : named) {
    if (!fs::is_regular_file(folder / name)) {
      absent.push_back(name);
    }
  }
  if (absent.empty()) {
    out.files = in_folder(folder, {named.begin(), named.end()});
    return out;
  }
  if (own.empty()) {
    refuse_absent(folder, absent.front(), absent.size());
  }
  log_warning(
      cat(index_path.string(),
          " names absent files (",
          absent.front(),
          absent.size() > 1 ? cat(" and ", absent.size() - 1, " more")
                            : std::string(),
          "); reading the folder's own *.safetensors instead"));
  out.index.clear();
  out.files = in_folder(folder, own);
  return out;
}

WeightMap load_weights(const fs::path& folder, const ReadOptions& options) {
  TensorFiles files = find_tensor_files(folder);
  WeightMap out;
  for (const fs::path& path : files.files) {
    SafetensorsFile file = read_safetensors(path, options);
    for (const auto& [key, tensor] : file.tensors) {
      const WeightTensor* earlier = out.find(key);
      if (earlier == nullptr || replaces(files, key, earlier->file, path)) {
        out.set(key, tensor);
      }
    }
  }
  for (const auto& [key, file] : files.index) {
    if (!out.contains(key)) {
      throw CheckpointError(
          cat("tensor \"", key, "\" is missing"),
          cat(kIndexName, " says that it is in ", (folder / file).string()),
          "fetch that file again");
    }
  }
  return out;
}

std::vector<CheckpointEntry> list_tensors(const fs::path& folder) {
  TensorFiles files = find_tensor_files(folder);
  std::map<std::string, CheckpointEntry> by_name;
  for (const fs::path& path : files.files) {
    SafetensorsHeader header = read_safetensors_header(path);
    for (TensorEntry& tensor : header.tensors) {
      auto earlier = by_name.find(tensor.name);
      if (earlier == by_name.end() ||
          replaces(files, tensor.name, earlier->second.file, path)) {
        by_name[tensor.name] = {tensor, path};
      }
    }
  }
  std::vector<CheckpointEntry> out;
  for (auto& [name, entry] : by_name) {
    out.push_back(std::move(entry));
  }
  return out;
}

WeightsLayout weights_layout(const fs::path& folder) {
  std::vector<std::string> names;
  if (std::error_code error; fs::is_directory(folder, error)) {
    names = own_files(folder);
  }
  if (names.empty()) {
    return WeightsLayout::published;
  }
  try {
    auto metadata = read_safetensors_header(folder / names.front()).metadata;
    auto format = metadata.find("format");
    return format != metadata.end() && format->second == "mlx"
               ? WeightsLayout::mlx
               : WeightsLayout::published;
  } catch (const Error&) {
    return WeightsLayout::published;
  }
}

}  // namespace mlxcel

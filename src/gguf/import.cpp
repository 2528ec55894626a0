#include "gguf/import.h"

#include "gguf/convert.h"
#include "io/safetensors.h"

#include <unistd.h>

#include <fstream>

namespace mlxcel {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

namespace {

void write_text(const fs::path& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary);
  out << text;
  out.close();
  if (!out) {
    throw CheckpointError(
        cat("cannot write ", path.string()),
        "the file cannot be created or the disk is full",
        "choose another folder or free some space");
  }
}

void write_json(const fs::path& path, const Json& json) {
  write_text(
      path, json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

void check_target(const fs::path& target) {
  std::error_code error;
  if (fs::exists(target, error) &&
      (!fs::is_directory(target, error) || !fs::is_empty(target, error))) {
    throw CheckpointError(
        cat("cannot write to ", target.string()),
        "it exists and is not an empty folder",
        "name a new folder, or delete this one first");
  }
}

// A folder beside the target that becomes the target when all is written, and
// goes away otherwise.
class PendingFolder {
 public:
  explicit PendingFolder(const fs::path& target)
      : target_(target.has_filename() ? target : target.parent_path()),
        path_(
            target_.parent_path() /
            cat(".", target_.filename().string(), ".", getpid(), ".tmp")) {
    std::error_code error;
    fs::remove_all(path_, error);
    fs::create_directories(path_, error);
    if (error) {
      throw CheckpointError(
          cat("cannot create a folder beside ", target.string()),
          error.message(),
          "choose a folder that can be written to");
    }
  }
  ~PendingFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }

  const fs::path& path() const {
    return path_;
  }
  void commit() {
    std::error_code error;
    fs::rename(path_, target_, error);
    if (error) {
      throw CheckpointError(
          cat("cannot write to ", target_.string()),
          error.message(),
          "choose another folder");
    }
  }

 private:
  fs::path target_, path_;
};

}  // namespace

GgufImport import_gguf(
    const fs::path& file, const fs::path& out, bool dequantize) {
  check_target(out);
  GgufFile gguf = GgufFile::open(file);
  GgufLlama model = read_gguf_llama(gguf);
  Json config = gguf_config(gguf, model);
  GgufTokenizer tokenizer = gguf_tokenizer(gguf);
  GgufWeights weights = gguf_weights(gguf, model, dequantize);

  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
    if (tokenizer.generation.contains(key)) {
      config[key] = tokenizer.generation[key];
    }
  }
  config["torch_dtype"] = weights.dtype;
  if (!weights.quantization.is_null()) {
    config["quantization"] = weights.quantization;
    config["quantization_config"] = weights.quantization;
  }
  // Nothing appears on disk, not even the folders above, until all is known.
  PendingFolder folder(out);
  write_json(folder.path() / "config.json", config);
  write_json(folder.path() / "generation_config.json", tokenizer.generation);
  write_json(folder.path() / "tokenizer_config.json", tokenizer.config);
  write_text(folder.path() / "tokenizer.json", tokenizer.tokenizer_json);
  write_safetensors(
      folder.path() / "model.safetensors",
      weights.tensors,
      {{"format", "mlx"}});
  folder.commit();

  return {
      .tensors = int64_t(weights.tensors.size()),
      .parameters = weights.parameters,
      .bytes = weights.tensors.total_bytes(),
      .quantized = !weights.quantization.is_null()};
}

}  // namespace mlxcel

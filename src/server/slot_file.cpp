#include "server/slot_file.h"

#include "adapters/digest.h"
#include "core/error.h"
#include "engine/block_manager.h"
#include "io/safetensors.h"

#include <cstring>
#include <map>
#include <utility>

namespace mlxcel::server {

namespace {

constexpr const char* kFormat = "mlxcel-slot-2";

std::string digest_of(const SavedPrefix& saved) {
  Sha256 digest;
  digest.update(saved.key.data(), saved.key.size());
  digest.update(saved.tokens.data(), saved.tokens.size() * sizeof(int32_t));
  digest.update(saved.blocks.data(), saved.blocks.size() * sizeof(int32_t));
  digest.update(saved.content.data(), saved.content.size());
  digest.update(saved.states.data(), saved.states.size() * sizeof(int32_t));
  digest.update(saved.state_content.data(), saved.state_content.size());
  return digest.hex();
}

[[noreturn]] void refuse(
    const std::filesystem::path& path, const std::string& why) {
  throw CheckpointError(
      cat("cannot restore a slot from ", path.filename().string()),
      why,
      "save the slot again");
}

template <typename T>
std::vector<T> values_of(
    const SafetensorsFile& file,
    const std::filesystem::path& path,
    const char* name,
    DType dtype) {
  const WeightTensor* tensor = file.tensors.find(name);
  if (tensor == nullptr || tensor->dtype != dtype || tensor->ndim() != 1) {
    refuse(path, cat("it holds no list '", name, "' of ", dtype));
  }
  std::vector<T> out(tensor->bytes / sizeof(T));
  if (!out.empty()) {
    std::memcpy(out.data(), tensor->data, tensor->bytes);
  }
  return out;
}

std::string metadata(
    const SafetensorsFile& file,
    const std::filesystem::path& path,
    const char* name) {
  auto found = file.metadata.find(name);
  if (found == file.metadata.end()) {
    refuse(path, cat("its metadata lacks '", name, "': it is no saved slot"));
  }
  return found->second;
}

// `count` things of `size` bytes each.
void check_content(
    const std::filesystem::path& path,
    const char* what,
    size_t count,
    const std::vector<std::byte>& content,
    size_t size) {
  if (content.size() != count * size) {
    refuse(
        path,
        cat("its ",
            count,
            ' ',
            what,
            " hold ",
            content.size(),
            " bytes, ",
            size,
            " each are needed"));
  }
}

void check(
    const SavedPrefix& saved,
    const std::filesystem::path& path,
    int64_t vocab_size,
    const SlotSizes& sizes) {
  if (saved.tokens.empty()) {
    refuse(path, "it holds no token");
  }
  for (int32_t token : saved.tokens) {
    if (token < 0 || token >= vocab_size) {
      refuse(
          path,
          cat("token ", token, " is outside the vocabulary of ", vocab_size));
    }
  }
  int64_t blocks = blocks_for(int64_t(saved.tokens.size()));
  int32_t last = -1;
  for (int32_t block : saved.blocks) {
    if (block <= last || block >= blocks) {
      refuse(path, cat("block ", block, " does not follow block ", last));
    }
    last = block;
  }
  check_content(
      path, "blocks", saved.blocks.size(), saved.content, sizes.block);
  last = 0;
  for (int32_t state : saved.states) {
    if (state <= last || size_t(state) > saved.tokens.size()) {
      refuse(
          path,
          cat("a state after ",
              state,
              " tokens does not follow one after ",
              last,
              " of ",
              saved.tokens.size()));
    }
    last = state;
  }
  if (sizes.state == 0 && !saved.states.empty()) {
    refuse(path, "it holds recurrent states, and this model has none");
  }
  check_content(
      path, "states", saved.states.size(), saved.state_content, sizes.state);
}

}  // namespace

std::string slot_fingerprint(
    std::string_view weights,
    std::string_view arithmetic,
    const KvCacheSpec& spec) {
  std::string text = cat(kFormat, '\n', weights, '\n', arithmetic, '\n');
  text += cat(spec.dtype);
  for (const KvLayerSpec& layer : spec.layers) {
    text +=
        cat('\n',
            layer.num_kv_heads,
            ' ',
            layer.k_dim,
            ' ',
            layer.v_dim,
            ' ',
            layer.state);
  }
  Sha256 digest;
  digest.update(text.data(), text.size());
  return digest.hex();
}

int64_t write_slot(
    const std::filesystem::path& path,
    const SavedPrefix& saved,
    const std::string& fingerprint) {
  WeightMap tensors;
  auto add = [&]<typename T>(
                 const char* name, DType dtype, const std::vector<T>& values) {
    WeightTensor view;
    view.dtype = dtype;
    view.shape = {int64_t(values.size())};
    view.data = reinterpret_cast<const std::byte*>(values.data());
    view.bytes = values.size() * sizeof(T);
    tensors.set(name, std::move(view));
  };
  add("tokens", DType::i32, saved.tokens);
  add("blocks", DType::i32, saved.blocks);
  add("content", DType::u8, saved.content);
  add("states", DType::i32, saved.states);
  add("state_content", DType::u8, saved.state_content);
  write_safetensors(
      path,
      tensors,
      {{"format", kFormat},
       {"fingerprint", fingerprint},
       {"key", saved.key},
       {"sha256", digest_of(saved)}});
  return int64_t(std::filesystem::file_size(path));
}

SlotFile read_slot(
    const std::filesystem::path& path,
    const std::string& fingerprint,
    int64_t vocab_size,
    const SlotSizes& sizes) {
  if (!std::filesystem::is_regular_file(path)) {
    throw CheckpointError(
        cat("there is no saved slot ", path.filename().string()),
        "no such file is in the folder of --slot-save-path",
        "save a slot under this name first");
  }
  // Into memory: a file that somebody truncates meanwhile ends nothing.
  SafetensorsFile file = read_safetensors(path, {.mmap = false});
  if (metadata(file, path, "format") != kFormat) {
    refuse(path, "another version wrote it");
  }
  if (metadata(file, path, "fingerprint") != fingerprint) {
    refuse(
        path,
        "another model, recipe, fused adapter, rope setting, activation type "
        "or kind of processor computed it, so its keys and values are not "
        "those that this server would compute");
  }
  SlotFile out;
  out.saved.key = metadata(file, path, "key");
  out.saved.tokens = values_of<int32_t>(file, path, "tokens", DType::i32);
  out.saved.blocks = values_of<int32_t>(file, path, "blocks", DType::i32);
  out.saved.content = values_of<std::byte>(file, path, "content", DType::u8);
  out.saved.states = values_of<int32_t>(file, path, "states", DType::i32);
  out.saved.state_content =
      values_of<std::byte>(file, path, "state_content", DType::u8);
  check(out.saved, path, vocab_size, sizes);
  if (metadata(file, path, "sha256") != digest_of(out.saved)) {
    refuse(path, "its content is not what was written");
  }
  out.bytes = int64_t(std::filesystem::file_size(path));
  return out;
}

}  // namespace mlxcel::server

// config.json, mended and read: no crash, every refusal names the file, and
// every typed read gives a value or names the key.
// covers: src/loading/config_file.cpp src/io/config.cpp src/io/json.cpp
// seeds: text/*/model/config.json quant/*/model/config.json
// seeds: quant/bad/*/config.json
// links: mlxcel_io
// sources: src/loading/config_file.cpp
#include "core/error.h"
#include "json_mutator.h"
#include "loading/config_file.h"
#include "scratch_folder.h"

#include <algorithm>

using namespace mlxcel;

namespace {

constexpr std::string_view kWords[] = {
    "\"model_type\"",
    "\"text_config\"",
    "\"quantization\"",
    "\"hidden_size\"",
    "\"architectures\"",
    "\"rope_scaling\"",
    "NaN",
    "-Infinity",
    "\"12\"",
    "\"1e-5\"",
    "\"True\"",
    "\"torch.bfloat16\"",
    "null",
    "8.0",
};

void require(bool ok) {
  if (!ok) {
    std::abort();
  }
}

template <typename T>
void read(const Config& config, const std::string& key) {
  try {
    config.get<T>(key);
    config.find<T>(key);
    config.get_or<T>(key, T());
  } catch (const ConfigError& error) {
    std::string text = error.what();
    require(text.find("FILE") != std::string::npos);
    require(text.find(key) != std::string::npos);
  }
}

void read_all(const Config& config, int depth) {
  for (const auto& [key, value] : config.json().items()) {
    read<bool>(config, key);
    read<int>(config, key);
    read<int64_t>(config, key);
    read<float>(config, key);
    read<double>(config, key);
    read<std::string>(config, key);
    read<std::vector<int>>(config, key);
    read<std::vector<float>>(config, key);
    read<std::vector<std::string>>(config, key);
    if (value.is_object()) {
      require(config.find_sub(key).has_value());
      if (depth > 0) {
        read_all(config.sub(key), depth - 1);
      }
    } else {
      try {
        require(!config.find_sub(key).has_value());
        config.sub(key);
        std::abort();
      } catch (const ConfigError&) {
        // Neither absent nor of another type is an object.
      }
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const fuzz::ScratchFolder scratch;
  static unsigned runs = 0;
  std::string text(reinterpret_cast<const char*>(data), size);
  try {
    read_all(Config(sanitize_config(text, "FILE"), "FILE"), 2);
  } catch (const ConfigError& error) {
    require(std::string(error.what()).find("FILE") != std::string::npos);
  }
  if (++runs % 64 == 0) {
    try {
      scratch.write("config.json", text);
      read_config(scratch.path());
      std::filesystem::remove(scratch.path() / "config.json");
      read_config(scratch.path());
      std::abort();
    } catch (const ConfigError& error) {
      require(
          std::string(error.what()).find(scratch.path().string()) !=
          std::string::npos);
    }
  }
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(
    uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  fuzz::JsonMutator mutator(seed, kWords);
  std::string text = mutator.mutate(
      std::string(reinterpret_cast<char*>(data), size), max_size);
  std::copy(text.begin(), text.end(), data);
  return text.size();
}

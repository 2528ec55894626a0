// adapter_config.json in our form and in PEFT's: no crash, every refusal names
// the file, and what is accepted has a finite factor.
// covers: src/adapters/config.cpp src/adapters/peft_config.cpp
// seeds: lora/adapters/*/adapter_config.json lora/bad/*/adapter_config.json
// links: mlxcel_io
// clang-format off
// sources: src/adapters/config.cpp src/adapters/folder.cpp src/adapters/peft_config.cpp
// clang-format on
#include "adapters/config.h"
#include "adapters/peft_config.h"
#include "core/error.h"
#include "json_mutator.h"
#include "scratch_folder.h"

#include <algorithm>
#include <cmath>

using namespace mlxcel;

namespace {

constexpr std::string_view kWords[] = {
    "\"fine_tune_type\"",
    "\"lora\"",
    "\"dora\"",
    "\"lora_parameters\"",
    "\"rank\"",
    "\"scale\"",
    "\"lora_alpha\"",
    "\"task_name\"",
    "\"peft_type\":\"LORA\"",
    "\"r\"",
    "\"use_rslora\"",
    "\"rank_pattern\":{\"q_proj\":4}",
    "\"alpha_pattern\":{\"layers\\\\.[0-9]+\\\\.mlp\":4.5}",
    "\"bias\":\"none\"",
    "\"modules_to_save\"",
    "\"init_lora_weights\"",
    "1e308",
    "5e-324",
};

void require(bool ok) {
  if (!ok) {
    std::abort();
  }
}

bool names(const AdapterError& error, const std::string& file) {
  return std::string(error.what()).find(file) != std::string::npos;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const fuzz::ScratchFolder scratch;
  static unsigned runs = 0;
  std::string text(reinterpret_cast<const char*>(data), size);
  try {
    AdapterConfig config = parse_adapter_config(text, "FILE");
    require(config.rank >= 1);
    require(std::isfinite(config.factor()));
  } catch (const AdapterError& error) {
    require(names(error, "FILE"));
  }
  try {
    PeftConfig config = PeftConfig::parse(text, "FILE");
    for (const char* module :
         {"model.layers.0.self_attn.q_proj", "model.layers.11.mlp.up_proj"}) {
      require(config.rank_of(module) >= 1);
      require(std::isfinite(config.factor_of(module)));
    }
  } catch (const AdapterError& error) {
    require(names(error, "FILE"));
  }
  if (++runs % 64 == 0) {
    try {
      scratch.write("adapter_config.json", text);
      read_adapter_config(scratch.path());
      std::filesystem::remove(scratch.path() / "adapter_config.json");
      read_adapter_config(scratch.path());
      std::abort();
    } catch (const AdapterError& error) {
      require(names(error, scratch.path().string()));
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

// Turns an adapter that PEFT saved into the form that the loader reads.
#pragma once

#include <cstdint>
#include <filesystem>

namespace mlxcel {

struct AdapterConversion {
  int64_t pairs = 0;
  int64_t rank = 0;     // the largest one
  double factor = 0;    // on B A, as the new config gives it
  int64_t folded = 0;   // pairs whose own factor went into lora_b
  int64_t widened = 0;  // of those, with lora_b in F32 to keep it exact
  uint64_t bytes = 0;   // of the tensors
};

// Reads adapter_config.json and adapter_model.safetensors of `peft` and writes
// adapter_config.json and adapters.safetensors to `out`, which must be empty or
// absent; nothing is left there after an error.
//
// The term of a pair is lora_alpha / r * B A, or lora_alpha / sqrt(r) * B A
// with use_rslora, where alpha_pattern and rank_pattern can give a module its
// own alpha and r. Our config has one factor for all pairs: the one most pairs
// have. Where a pair's own differs, lora_b is multiplied by the ratio in f64
// and keeps its dtype if that loses nothing, else it becomes F32 (one rounding
// to 24 bits).
//
// Throws AdapterError that names the field or the tensor for all that is more
// than low-rank pairs on linear layers: DoRA, modules_to_save, embedding and
// convolution pairs, trained biases, fan_in_fan_out, layer_replication, other
// PEFT methods, starts that change the base weights.
AdapterConversion convert_peft_adapter(
    const std::filesystem::path& peft, const std::filesystem::path& out);

}  // namespace mlxcel

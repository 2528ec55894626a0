// Configs that are damaged, wrong or of an unknown kind: each is refused with a
// message that says what is wrong, and none crashes or is mended by a guess.
#include "loading/config_file.h"
#include "loading/detect.h"
#include "support/temporary_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace mlxcel {
namespace {

struct Malformed {
  std::string name, text, message;
};

// A config that is accepted, with changes, and without a key.
std::string base(const std::string& changes, const std::string& without = "") {
  nlohmann::json config = {
      {"model_type", "llama"},
      {"hidden_size", 32},
      {"num_hidden_layers", 2},
      {"num_attention_heads", 4},
      {"num_key_value_heads", 2},
      {"intermediate_size", 40},
      {"vocab_size", 100},
      {"rms_norm_eps", 1e-3},
      {"hidden_act", "silu"},
      {"max_position_embeddings", 64}};
  config.update(nlohmann::json::parse(changes));
  config.erase(without);
  return config.dump();
}

std::vector<Malformed> malformed_configs() {
  return {
      {"not_json", R"({)", R"(not valid JSON at byte 2)"},
      {"an_array", R"([])", R"(expected a JSON object, found array)"},
      {"a_number", R"(3)", R"(expected a JSON object, found number)"},
      {"empty_object", R"({})", R"(nothing says which model this is)"},
      {"model_type_number",
       base(R"({"model_type": 3})"),
       R"("model_type" has the wrong type)"},
      {"model_type_list",
       base(R"({"model_type": ["llama"]})"),
       R"(expected a string, found ["llama"])"},
      {"model_type_misspelt",
       base(R"({"model_type": "lamma"})"),
       R"(did you mean llama)"},
      {"model_type_unknown",
       base(R"({"model_type": "zzzz"})"),
       R"(unknown model_type "zzzz")"},
      {"architectures_string",
       R"({"architectures": "LlamaForCausalLM"})",
       R"("architectures" has the wrong type)"},
      {"architectures_of_two",
       R"({"architectures": ["LlamaForCausalLM", "Qwen2ForCausalLM"]})",
       R"("architectures" is ambiguous)"},
      {"architectures_misspelt",
       R"({"architectures": ["LlamaForCasualLM"]})",
       R"(unknown architecture "LlamaForCasualLM")"},
      {"names_disagree",
       base(R"({"architectures": ["Qwen2ForCausalLM"]})"),
       R"("model_type" and "architectures" disagree)"},
      {"no_hidden_size",
       base(R"({})", "hidden_size"),
       R"("hidden_size" is missing)"},
      {"hidden_size_null",
       base(R"({"hidden_size": null})"),
       R"(its value is null)"},
      {"hidden_size_negative",
       base(R"({"hidden_size": -32, "head_dim": 8})"),
       R"(hidden_size is -32)"},
      {"hidden_size_text",
       base(R"({"hidden_size": "wide"})"),
       R"(expected an integer, found "wide")"},
      {"hidden_size_fraction",
       base(R"({"hidden_size": 32.5})"),
       R"(expected an integer, found 32.5)"},
      {"hidden_size_huge",
       base(R"({"hidden_size": 1000000000000})"),
       R"(found 1000000000000)"},
      {"no_layers",
       base(R"({"num_hidden_layers": 0})"),
       R"(num_hidden_layers is 0)"},
      {"too_many_layers",
       base(R"({"num_hidden_layers": 1000000})"),
       R"(more than 10000 are taken for damage)"},
      {"no_heads",
       base(R"({"num_attention_heads": 0})"),
       R"(num_attention_heads is 0)"},
      {"heads_do_not_divide",
       base(R"({"num_attention_heads": 3})"),
       R"(the head size is not stated)"},
      {"key_heads_do_not_divide",
       base(R"({"num_key_value_heads": 3})"),
       R"(is no multiple of num_key_value_heads)"},
      {"key_heads_negative",
       base(R"({"num_key_value_heads": -1})"),
       R"(num_key_value_heads is -1)"},
      {"head_dim_zero", base(R"({"head_dim": 0})"), R"(head_dim is 0)"},
      {"vocab_zero", base(R"({"vocab_size": 0})"), R"(vocab_size is 0)"},
      {"no_width",
       base(R"({})", "intermediate_size"),
       R"("intermediate_size" is missing)"},
      {"eps_negative",
       base(R"({"rms_norm_eps": -1})"),
       R"(the norm eps is -1)"},
      {"eps_nan",
       R"({"rms_norm_eps": NaN, "model_type": "llama", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 40, "vocab_size": 100, "hidden_act": "silu", "max_position_embeddings": 64})",
       R"(the norm eps is nan)"},
      {"activation_unknown",
       base(R"({"hidden_act": "swishish"})"),
       R"(hidden_act "swishish" is not known)"},
      {"rope_theta_negative",
       base(R"({"rope_theta": -1})"),
       R"(rope_theta is -1)"},
      {"rope_type_unknown",
       base(R"({"rope_scaling": {"rope_type": "spiral", "factor": 2}})"),
       R"(rope type spiral is not supported)"},
      {"longrope_without_factors",
       base(R"({"rope_scaling": {"rope_type": "longrope"}})"),
       R"("rope_scaling.short_factor" is missing)"},
      {"rope_without_factor",
       base(R"({"rope_scaling": {"rope_type": "linear"}})"),
       R"("rope_scaling.factor" is missing)"},
      {"rope_forms_differ",
       base(
           R"({"rope_scaling": {"rope_type": "linear", "factor": 2}, "rope_parameters": {"rope_type": "linear", "factor": 4}})"),
       R"(are both given and differ)"},
      {"partial_rotary_odd",
       base(R"({"partial_rotary_factor": 0.4})"),
       R"("partial_rotary_factor" is not supported for Llama)"},
      {"window_unread",
       base(R"({"sliding_window": 8})"),
       R"("sliding_window" is not supported for Llama)"},
      {"layer_types_unknown",
       base(
           R"({"model_type": "mistral", "sliding_window": 8, "layer_types": ["full_attention", "spiral"]})"),
       R"(layer_types names "spiral" for layer 1)"},
      {"layer_types_short",
       base(
           R"({"model_type": "mistral", "sliding_window": 8, "layer_types": ["full_attention"]})"),
       R"(layer_types has 1 entries)"},
      {"window_zero",
       base(R"({"model_type": "mistral", "sliding_window": 0})"),
       R"(sliding_window is 0)"},
      {"shared_layers_all",
       base(
           R"({"model_type": "gemma4", "num_kv_shared_layers": 2, "hidden_size_per_layer_input": 0})"),
       R"(at least one must have its own keys)"},
      {"streams_none",
       base(
           R"({"model_type": "gemma3n", "altup_num_inputs": 0, "num_kv_shared_layers": 0, "hidden_size_per_layer_input": 8, "head_dim": 8})"),
       R"(the number of streams is 0)"},
      {"active_stream_outside",
       base(
           R"({"model_type": "gemma3n", "altup_active_idx": 7, "num_kv_shared_layers": 0, "hidden_size_per_layer_input": 8, "head_dim": 8})"),
       R"(the active stream, of 4, is 7)"},
      {"sees_what_follows",
       base(
           R"({"model_type": "gemma4", "use_bidirectional_attention": "all"})"),
       R"(use_bidirectional_attention is "all")"},
  };
}

std::string verdict(const std::string& text) {
  testing::TemporaryFolder folder;
  folder.write("config.json", text);
  try {
    Config config = read_config(folder.path());
    Detection found = detect_model(folder.path(), config);
    decoder_spec(require_generation(found, config), config);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

class MalformedConfig : public ::testing::TestWithParam<Malformed> {};

TEST_P(MalformedConfig, IsRefusedByName) {
  std::string message = verdict(GetParam().text);
  EXPECT_THAT(message, ::testing::HasSubstr(GetParam().message));
  EXPECT_THAT(message, ::testing::HasSubstr("config.json"));
}

INSTANTIATE_TEST_SUITE_P(
    All,
    MalformedConfig,
    ::testing::ValuesIn(malformed_configs()),
    [](const auto& test) { return test.param.name; });

TEST(WellFormedConfig, TheBaseIsAccepted) {
  EXPECT_EQ(verdict(base("{}")), "accepted");
}

}  // namespace
}  // namespace mlxcel

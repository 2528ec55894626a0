#include "models/registry.h"

#include "core/error.h"
#include "models/families/families.h"

#include <algorithm>

namespace mlxcel {

namespace {

std::string joined(const std::vector<std::string>& names) {
  std::string out;
  for (const std::string& name : names) {
    out += cat(out.empty() ? "" : ", ", "`", name, "`");
  }
  return out;
}

const Family* find_by(
    std::vector<std::string> Family::* names, std::string_view name) {
  for (const Family* family : families()) {
    const std::vector<std::string>& own = family->*names;
    if (std::find(own.begin(), own.end(), name) != own.end()) {
      return family;
    }
  }
  return nullptr;
}

std::vector<std::string> all_of(std::vector<std::string> Family::* names) {
  std::vector<std::string> out;
  for (const Family* family : families()) {
    const std::vector<std::string>& own = family->*names;
    out.insert(out.end(), own.begin(), own.end());
  }
  return out;
}

// Behind those that run, those known by name alone.
std::vector<const Family*> with_unbuilt(std::vector<const Family*> list) {
  for (const Family& family : unbuilt_families()) {
    list.push_back(&family);
  }
  return list;
}

}  // namespace

const std::vector<const Family*>& families() {
  static const std::vector<const Family*> list = with_unbuilt({
      &llama,
      &mistral,
      &ministral3,
      &mistral3,
      &qwen2,
      &qwen3,
      &smollm3,
      &gemma,
      &gemma2,
      &gemma3,
      &phi3,
      &starcoder2,
      &glm,
      &glm4,
      &exaone4,
      &hunyuan_v1_dense,
      &nanochat,
      &muse_glimmer,
      &olmo2,
      &olmo3,
      &mixtral,
      &qwen2_moe,
      &qwen3_moe,
      &olmoe,
      &arcee,
      &baichuan,
      &bitnet,
      &cohere,
      &cohere2,
      &ernie4_5,
      &exaone,
      &gpt2,
      &gpt_bigcode,
      &gpt_neox,
      &gptj,
      &granite,
      &helium,
      &internlm2,
      &internlm3,
      &mimo,
      &minicpm,
      &nemotron,
      &nemotron_nas,
      &olmo,
      &openelm,
      &phi,
      &qwen,
      &seed_oss,
      &stablelm,
      &deepseek,
      &dots1,
      &ernie4_5_moe,
      &exaone_moe,
      &glm4_moe,
      &granitemoe,
      &hunyuan_v1_moe,
      &minimax_m2,
      &phimoe,
      &solar_open,
      &gpt_oss,
      &apertus,
      &plamo,
      &deepseek_v2,
      &deepseek_v3,
      &glm4_moe_lite,
      &minicpm3,
      &qwen2_vl,
      &qwen2_5_vl,
      &qwen3_vl,
      &gemma3n,
      &gemma4,
      &hunyuan,
      &afmoe,
      &llama4,
      &mamba,
      &falcon_mamba,
      &mamba2,
      &jamba,
      &recurrent_gemma,
      &rwkv7,
      &lfm2,
      &olmo_hybrid,
      &qwen3_next,
      &qwen3_5,
      &falcon_h1,
      &baichuan_m1,
      &minimax,
      &qwen3_5_moe,
      &lfm2_moe,
      &granitemoehybrid,
      &nemotron_h,
      &longcat_flash,
      &kimi_linear,
      &dbrx,
      &bailing_moe,
      &phi3small,
  });
  return list;
}

const Family* find_by_model_type(std::string_view model_type) {
  return find_by(&Family::model_types, model_type);
}

const Family* find_by_architecture(std::string_view architecture) {
  return find_by(&Family::architectures, architecture);
}

std::vector<std::string> known_model_types() {
  return all_of(&Family::model_types);
}

std::vector<std::string> known_architectures() {
  return all_of(&Family::architectures);
}

std::string families_markdown() {
  std::string out =
      "| family | type | `model_type` | architectures | kind | directory route "
      "| weight route | adapters | embedding pairs | runs |\n"
      "|---|---|---|---|---|---|---|---|---|---|\n";
  for (const Family* family : families()) {
    out +=
        cat("| ",
            family->name,
            " | ",
            family->type,
            " | ",
            family->picked_by.empty() ? joined(family->model_types)
                                      : family->picked_by,
            " | ",
            joined(family->architectures),
            " | ",
            name_of(family->kind),
            " | ",
            name_of(family->directory_route),
            " | ",
            name_of(family->weight_route),
            " | ",
            family->adapters == AdapterSupport::supported ? "yes" : "no",
            " | ",
            family->embed_pairs == EmbedPairs::when_tied ? "tied" : "no",
            " | ",
            family->decoder ? "yes" : "not yet",
            " |\n");
  }
  return out;
}

}  // namespace mlxcel

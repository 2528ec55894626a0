// Options of llama-server's and of the wider product that this server refuses,
// unless they stand at the value that changes nothing.
#include "cli/environment.h"
#include "cli/serve_options.h"

#include "core/error.h"

#include <algorithm>

namespace mlxcel::cli {

std::vector<UnbuiltOption> serve_unbuilt_options() {
  auto draft = "speculative decoding with a draft model";
  auto router = "router mode";
  auto hub = "downloads from a hub";
  auto side = "embedding and reranking models";
  auto media = "image, audio and video input";
  auto distributed = "running over several machines";
  auto gguf = "GGUF files; mlxcel import-gguf turns them into folders";
  auto device = "layers on other devices";
  auto webui = "settings of a web page; the playground needs none";
  auto tools = "tools of its own";
  auto threads = "finer placement of threads; --threads sets their number";
  auto memory = "llama.cpp's own ways with memory";
  return {
      {"--draft-max,--draft,--draft-n", draft, {"16"}},
      {"--draft-min,--draft-n-min", draft, {"0"}},
      {"--draft-p-min", draft, {}},
      {"--spec-type", draft, {"none"}},
      {"--models-dir", router, {}},
      {"--models-max", router, {"4"}},
      {"--models-autoload", router, {}, {}, true},
      {"--models-preset", router, {}},
      {"--tags", router, {}},
      {"--hf-repo,--hf", hub, {}},
      {"--hf-token", hub, {}},
      {"--offline", hub, {}, {}, true},
      {"--revision", hub, {}},
      {"--reranker-model", side, {}},
      {"--embedding-model", side, {}},
      {"--embeddings,--embedding", side, {}, {}, true},
      {"--reranking,--rerank", side, {}, {}, true},
      {"--pooling", side, {}},
      {"--embd-normalize", side, {"2"}},
      {"--embedding-batch-size", side, {"16"}},
      {"--rerank-batch-size", side, {}},
      {"--media-path", media, {}},
      {"--image-min-tokens", media, {}},
      {"--image-max-tokens", media, {}},
      {"--node-role", distributed, {}},
      {"--serving-bind", distributed, {}},
      {"--prefill-peers", distributed, {}},
      {"--decode-peers", distributed, {}},
      {"--pp-auto", distributed, {}, {}, true},
      {"--hf-file", gguf, {}},
      {"--model-url,--mu", gguf, {}},
      {"--docker-repo", gguf, {}},
      {"--mmproj", media, {}},
      {"--control-vector", "control vectors", {}},
      {"--control-vector-scaled", "control vectors", {}},
      {"--control-vector-layer-range", "control vectors", {}},
      {"--webui-config", webui, {}},
      {"--webui-config-file", webui, {}},
      {"--webui-mcp-proxy", webui, {}, {}, true},
      {"--agent", tools, {}, {}, true},
      {"--settings", "settings that change while it runs", {}, {}, true},
      {"--cache-reuse", "reuse of shifted chunks", {"0"}},
      {"--enable-vlm-prefix-cache", media, {"false"}},
      {"--decode-storage-backend",
       "other layouts of the KV cache",
       {"auto", "paged"}},
      {"--n-gpu-layers,--gpu-layers", device, {"0", "auto", "all"}},
      {"--split-mode", device, {"none"}},
      {"--tensor-split", device, {}},
      {"--main-gpu", device, {"0"}},
      {"--device", device, {"none"}},
      {"--override-tensor", device, {}},
      {"--cpu-moe", device, {}, {}, true},
      {"--n-cpu-moe", device, {"0"}},
      {"--no-kv-offload", device, {}, {}, true},
      {"--no-op-offload", device, {}, {}, true},
      {"--fit", device, {"on", "off"}},
      {"--flash-attn", "a choice of attention kernels", {"auto", "on"}},
      {"--numa", "placement by NUMA node", {}},
      {"--threads-batch", threads, {"-1"}},
      {"--cpu-mask", threads, {}},
      {"--cpu-range", threads, {}},
      {"--cpu-strict", threads, {"0"}},
      {"--cpu-mask-batch", threads, {}},
      {"--cpu-range-batch", threads, {}},
      {"--cpu-strict-batch", threads, {"0"}},
      {"--prio", threads, {"0"}},
      {"--prio-batch", threads, {"0"}},
      {"--poll", threads, {"50"}},
      {"--poll-batch", threads, {"50"}},
      {"--no-repack", memory, {}, {}, true},
      {"--no-host", memory, {}, {}, true},
      {"--swa-full", memory, {}, {}, true},
      {"--direct-io", memory, {}, {}, true},
      {"--override-kv", memory, {}},
      {"--ctx-checkpoints,--swa-checkpoints", memory, {}},
      {"--tools", tools, {}},
  };
}

namespace {

// llama-server's variables of such options.
struct Variable {
  std::string_view name, flag;
};
constexpr Variable kVariables[] = {
    {"LLAMA_ARG_HF_REPO", "--hf-repo"},
    {"LLAMA_ARG_HF_FILE", "--hf-file"},
    {"LLAMA_ARG_MODEL_URL", "--model-url"},
    {"LLAMA_ARG_DOCKER_REPO", "--docker-repo"},
    {"LLAMA_ARG_OFFLINE", "--offline"},
    {"LLAMA_OFFLINE", "--offline"},
    {"LLAMA_ARG_MMPROJ", "--mmproj"},
    {"LLAMA_ARG_MMPROJ_URL", "--mmproj"},
    {"LLAMA_ARG_MODEL_DRAFT", "--draft-model"},
    {"LLAMA_ARG_DRAFT_MAX", "--draft-max"},
    {"LLAMA_ARG_DRAFT_MIN", "--draft-min"},
    {"LLAMA_ARG_DRAFT_P_MIN", "--draft-p-min"},
    {"LLAMA_ARG_EMBEDDINGS", "--embeddings"},
    {"LLAMA_ARG_RERANKING", "--reranking"},
    {"LLAMA_ARG_POOLING", "--pooling"},
    {"LLAMA_ARG_MODELS_DIR", "--models-dir"},
    {"LLAMA_ARG_MODELS_MAX", "--models-max"},
    {"LLAMA_ARG_MODELS_PRESET", "--models-preset"},
    {"LLAMA_ARG_MODELS_AUTOLOAD", "--models-autoload"},
    {"LLAMA_ARG_TAGS", "--tags"},
    {"LLAMA_ARG_TOOLS", "--tools"},
    {"LLAMA_ARG_MEDIA_PATH", "--media-path"},
    {"LLAMA_ARG_IMAGE_MIN_TOKENS", "--image-min-tokens"},
    {"LLAMA_ARG_IMAGE_MAX_TOKENS", "--image-max-tokens"},
    {"LLAMA_ARG_CACHE_REUSE", "--cache-reuse"},
    {"LLAMA_ARG_CACHE_TYPE_K", "--cache-type-k"},
    {"LLAMA_ARG_CACHE_TYPE_V", "--cache-type-v"},
    {"LLAMA_ARG_CTX_CHECKPOINTS", "--ctx-checkpoints"},
    {"LLAMA_ARG_SWA_FULL", "--swa-full"},
    {"LLAMA_ARG_N_GPU_LAYERS", "--n-gpu-layers"},
    {"LLAMA_ARG_SPLIT_MODE", "--split-mode"},
    {"LLAMA_ARG_TENSOR_SPLIT", "--tensor-split"},
    {"LLAMA_ARG_MAIN_GPU", "--main-gpu"},
    {"LLAMA_ARG_DEVICE", "--device"},
    {"LLAMA_ARG_OVERRIDE_TENSOR", "--override-tensor"},
    {"LLAMA_ARG_CPU_MOE", "--cpu-moe"},
    {"LLAMA_ARG_N_CPU_MOE", "--n-cpu-moe"},
    {"LLAMA_ARG_NO_KV_OFFLOAD", "--no-kv-offload"},
    {"LLAMA_ARG_NO_REPACK", "--no-repack"},
    {"LLAMA_ARG_NO_HOST", "--no-host"},
    {"LLAMA_ARG_DIO", "--direct-io"},
    {"LLAMA_ARG_FIT", "--fit"},
    {"LLAMA_ARG_FLASH_ATTN", "--flash-attn"},
    {"LLAMA_ARG_NUMA", "--numa"},
};

}  // namespace

void refuse_unbuilt_serve_variables(const UnbuiltOptions& options) {
  const std::vector<std::string> off = {"0", "false", "off"};
  for (const Variable& variable : kVariables) {
    std::string value = environment(std::string(variable.name).c_str());
    auto option =
        std::find_if(options->begin(), options->end(), [&](const auto& one) {
          return one.flag.substr(0, one.flag.find(',')) == variable.flag;
        });
    // An option on the command line goes first.
    if (value.empty() || option == options->end() || !option->given.empty()) {
      continue;
    }
    const std::vector<std::string>& neutral =
        option->flag_only ? off : option->neutral;
    if (std::find(neutral.begin(), neutral.end(), value) == neutral.end()) {
      throw UsageError(
          cat(variable.name,
              "=",
              value,
              " in the environment (",
              variable.flag,
              ") is not built yet"),
          cat("this version has no ", option->subject),
          neutral.empty() ? std::string("unset it")
                          : cat("unset it, or set it to ", neutral.front()));
    }
  }
}

}  // namespace mlxcel::cli

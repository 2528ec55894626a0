// Options of llama-server's and of the wider product that this server refuses,
// unless they stand at the value that changes nothing.
#include "cli/serve_options.h"

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
  auto slots = "saved slots";
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
      {"--slot-save-path", slots, {}},
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

}  // namespace mlxcel::cli

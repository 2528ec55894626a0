#include "cli/unbuilt_options.h"

#include "core/error.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <iterator>

namespace mlxcel::cli {

namespace {

std::vector<UnbuiltOption> table() {
  auto draft = "speculative decoding with a draft model";
  auto kv = "other formats of the KV cache";
  auto parallel = "parallel running over several devices";
  auto media = "image, audio and video input";
  return {
      {"--draft-model,--model-draft", draft, {}},
      {"--num-draft-tokens", draft, {"3"}},
      {"--draft-kind", draft, {}},
      {"--draft-block-size", draft, {}},
      {"--kv-cache-mode", kv, {}},
      {"--cache-type-k", kv, {}},
      {"--cache-type-v", kv, {}},
      {"--kv-bits", kv, {"0"}},
      {"--kv-group-size", kv, {}},
      {"--kv-quant-scheme", kv, {}},
      {"--kv-skip-last-layer", kv, {"true"}},
      {"--turbo-boundary-v", kv, {}},
      {"--tp-size", parallel, {"1"}},
      {"--tp-moe-mode", parallel, {"expert_parallel"}},
      {"--tp-embedding-mode", parallel, {"replicated"}},
      {"--tp-lm-head-mode", parallel, {"replicated"}},
      {"--pp-size", parallel, {"1"}},
      {"--pp-layers", parallel, {}},
      {"--pp-micro-batch-size", parallel, {"1"}},
      {"--image", media, {}},
      {"--audio", media, {}},
      {"--video", media, {}},
      {"--fps", media, {"2.0", "2"}},
      {"--profile", "the built-in profiler", {}, {}, true},
      {"--recommend-quant", "advice on quantization", {}, {}, true},
  };
}

}  // namespace

UnbuiltOptions declare_unbuilt_options(
    CLI::App& app, std::vector<UnbuiltOption> more) {
  auto options = std::make_shared<std::vector<UnbuiltOption>>(table());
  options->insert(
      options->end(),
      std::make_move_iterator(more.begin()),
      std::make_move_iterator(more.end()));
  for (UnbuiltOption& option : *options) {
    if (option.flag_only) {
      app.add_flag_callback(
             option.flag, [&option] { option.given.emplace_back(); })
          ->group("");
    } else {
      app.add_option(option.flag, option.given)
          ->type_size(1)
          ->allow_extra_args(false)
          ->group("");
    }
  }
  return options;
}

void refuse_unbuilt(const UnbuiltOptions& options) {
  for (const UnbuiltOption& option : *options) {
    for (const std::string& value : option.given) {
      if (std::find(option.neutral.begin(), option.neutral.end(), value) ==
          option.neutral.end()) {
        std::string flag = option.flag.substr(0, option.flag.find(','));
        throw UsageError(
            cat(flag, " is not built yet"),
            cat("this version has no ", option.subject),
            option.neutral.empty()
                ? std::string("leave it out")
                : cat("leave it out, or give ", option.neutral.front()));
      }
    }
  }
}

void refuse_unbuilt_command(std::string_view command) {
  struct UnbuiltCommand {
    std::string_view name, subject;
  };
  static constexpr UnbuiltCommand kCommands[] = {
      {"prepare-external-ple", "per-layer embeddings read on demand"},
      {"prepare-expert-stream", "streaming of experts"},
      {"split-mtp", "speculative decoding"},
      {"embed", "embedding models"},
      {"rerank", "reranking models"},
      {"detect", "object detection"},
      {"download", "downloads from a hub"},
      {"list", "management of the local store"},
      {"rm", "management of the local store"},
      {"tune", "tuning of kernels"},
  };
  for (const UnbuiltCommand& unbuilt : kCommands) {
    if (command == unbuilt.name) {
      throw UsageError(
          cat("mlxcel ", command, " is not built yet"),
          cat("this version has no ", unbuilt.subject),
          "see mlxcel --help for the commands it has");
    }
  }
}

}  // namespace mlxcel::cli

// `mlxcel inspect`: what a checkpoint holds and what it needs, from config.json
// and the tensor headers alone.
#include "cli/checkpoint_facts.h"
#include "cli/command.h"
#include "cli/console.h"
#include "cli/inspect_adapter.h"
#include "cli/model_options.h"
#include "cli/model_store.h"
#include "core/error.h"
#include "loading/check_model.h"
#include "models/names.h"
#include "ops/matrix_source.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <map>
#include <memory>

namespace mlxcel::cli {

namespace {

struct InspectOptions {
  ModelOptions model;
  std::string folder;   // as an argument instead of --model
  std::string adapter;  // describe this one instead of the model
  int64_t context = 8192;
  int batch = 1;
  std::string quant = "default";
  bool json = false;
};

struct Total {
  uint64_t tensors = 0, bytes = 0;
};

int64_t count_parameters(const CheckpointFacts& facts) {
  QuantConfig quant(facts.config);
  int64_t count = 0;
  for (const auto& [key, tensor] : facts.weights) {
    auto [stem, part] = split_key(key);
    if (part == "scales" || part == "biases") {
      continue;
    }
    // A packed matrix has one scale for each group of weights.
    const WeightTensor* scales = facts.weights.find(cat(stem, ".scales"));
    int group = scales ? quant.of(stem).group_size : 0;
    count += group > 0 ? element_count(scales->shape) * group
                       : element_count(tensor.shape);
  }
  return count;
}

// What a checkpoint holds, and what it would take to run it.
struct Inspection {
  const CheckpointFacts& facts;
  std::map<std::string, Total> dtypes;
  MemoryEstimate memory;
  uint64_t budget = 0;  // free memory
  std::string refusal;  // why it does not run; "" where it does
};

Inspection inspect(
    const CheckpointFacts& facts, const InspectOptions& options) {
  Inspection out{facts, {}, {}, available_memory(), refusal_of(facts.folder)};
  MemoryUse use;
  use.weight_bytes = facts.weight_bytes;
  use.activation_dtype = facts.activation_dtype;
  use.context = options.context;
  use.batch = options.batch;
  use.output_rows = options.batch;
  out.memory = estimate_memory(facts.spec, use);
  for (const auto& [key, tensor] : facts.weights) {
    Total& total = out.dtypes[std::string(name_of(tensor.dtype))];
    total.tensors += 1;
    total.bytes += tensor.bytes;
  }
  return out;
}

void print_json(const Inspection& found, const InspectOptions& options) {
  const auto& [facts, dtypes, memory, budget, refusal] = found;
  const DecoderSpec& spec = facts.spec;
  const HeadCounts& heads = spec.blocks.front().attention.heads;
  nlohmann::ordered_json types;
  for (const auto& [name, total] : dtypes) {
    types[name] = {{"tensors", total.tensors}, {"bytes", total.bytes}};
  }
  nlohmann::ordered_json out = {
      {"path", facts.folder.string()},
      {"family", facts.family->name},
      {"type", facts.family->type},
      {"model_type", facts.detection.model_type},
      {"kind", name_of(facts.detection.kind)},
      {"runs", refusal.empty()},
      {"refusal", refusal},
      {"parameters", count_parameters(facts)},
      {"layers", spec.blocks.size()},
      {"hidden_size", spec.hidden_size},
      {"vocab_size", spec.vocab_size},
      {"heads", heads.query},
      {"kv_heads", heads.key_value},
      {"head_dim", heads.dim},
      {"max_positions", facts.max_positions},
      {"tied_head", spec.head == HeadKind::tied},
      {"activation_dtype", name_of(facts.activation_dtype)},
      {"dtypes", types},
      {"context", options.context},
      {"batch", options.batch},
      {"weights_bytes", memory.weights},
      {"kv_bytes_total", memory.kv_cache},
      {"activation_bytes", memory.activations},
      {"headroom_bytes", memory.headroom},
      {"total_bytes", memory.total()},
      {"budget_bytes", budget},
  };
  fmt::print("{}\n", out.dump(2));
}

void print_line(std::string_view name, const std::string& value) {
  fmt::print("{:<18}{}\n", name, value);
}

void print_facts(const Inspection& found) {
  const CheckpointFacts& facts = found.facts;
  const DecoderSpec& spec = facts.spec;
  const HeadCounts& heads = spec.blocks.front().attention.heads;
  print_line("Path", facts.folder.string());
  print_line(
      "Family",
      cat(facts.family->name,
          " (model_type ",
          facts.detection.model_type,
          ")"));
  print_line(
      "Runs", found.refusal.empty() ? "yes" : cat("no: ", found.refusal));
  print_line(
      "Parameters",
      fmt::format("{:.1f} M", double(count_parameters(facts)) / 1e6));
  print_line(
      "Layers",
      cat(spec.blocks.size(),
          ", hidden size ",
          spec.hidden_size,
          ", ",
          heads.query,
          " heads, ",
          heads.key_value,
          " key/value heads of ",
          heads.dim));
  print_line(
      "Vocabulary",
      cat(spec.vocab_size,
          spec.head == HeadKind::tied ? ", head tied to the embedding"
                                      : ", head of its own"));
  if (facts.max_positions > 0) {
    print_line("Context", cat(facts.max_positions, " tokens"));
  }
  print_line("Activations", std::string(name_of(facts.activation_dtype)));
  for (const auto& [name, total] : found.dtypes) {
    print_line(
        cat("Tensors ", name),
        cat(total.tensors, ", ", format_bytes(double(total.bytes))));
  }
}

void print_memory(const Inspection& found, const InspectOptions& options) {
  const MemoryEstimate& memory = found.memory;
  fmt::print(
      "\nMemory for {} sequence{} of {} tokens\n",
      options.batch,
      options.batch == 1 ? "" : "s",
      options.context);
  print_line("  weights", format_bytes(double(memory.weights)));
  print_line("  KV cache", format_bytes(double(memory.kv_cache)));
  print_line("  activations", format_bytes(double(memory.activations)));
  print_line("  headroom", format_bytes(double(memory.headroom)));
  print_line("  total", format_bytes(double(memory.total())));
  print_line("  available", format_bytes(double(found.budget)));
}

int run_inspect(const InspectOptions& options) {
  if (options.quant != "default") {
    throw UsageError(
        cat("--quant ", options.quant, " is not built yet"),
        "this version estimates checkpoints as they are stored",
        "leave it out, or give default");
  }
  const std::string& model =
      options.folder.empty() ? options.model.model : options.folder;
  if (!options.adapter.empty()) {
    return inspect_adapter(options.adapter, model, options.json);
  }
  CheckpointFacts facts = read_checkpoint_facts(find_model(model));
  Inspection found = inspect(facts, options);
  if (options.json) {
    print_json(found, options);
  } else {
    print_facts(found);
    print_memory(found, options);
  }
  return kOk;
}

}  // namespace

Action declare_inspect(CLI::App& app) {
  auto options = std::make_shared<InspectOptions>();
  declare_model_path(app, options->model);
  app.add_option("model", options->folder, "The checkpoint, without --model")
      ->type_name("DIR");
  app.add_option(
         "--adapter",
         options->adapter,
         "Describe this LoRA adapter, and whether it fits the model if one is "
         "given")
      ->type_name("DIR");
  app.add_option("-n,--context", options->context, "Positions of a sequence")
      ->capture_default_str()
      ->check(CLI::Range(int64_t(1), int64_t(1) << 40));
  app.add_option("--batch", options->batch, "Sequences at a time")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--quant", options->quant)->group("");
  app.add_flag("--json", options->json, "Print JSON");
  return [options] { return run_inspect(*options); };
}

}  // namespace mlxcel::cli

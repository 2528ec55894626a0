// `mlxcel logits`: a model's logits for given tokens, for parity checks. Works
// on token ids alone, so no tokenizer is needed.
#include "cli/command.h"
#include "cli/console.h"
#include "cli/model_options.h"
#include "engine/engine.h"
#include "io/output_target.h"
#include "io/safetensors.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <span>
#include <stdexcept>

namespace mlxcel::cli {

namespace {

struct LogitsOptions {
  ModelOptions model;
  std::string input, output;
  int max_tokens = 0;
  int prefill_chunk = 0;
};

struct Input {
  int64_t rows = 0, length = 0;
  std::vector<int32_t> ids;      // [rows, length]
  std::vector<int64_t> lengths;  // [rows]
  std::vector<float> scales;     // [rows, num_scales]
  int64_t num_scales = 0;
};

template <typename T>
std::vector<T> read_tensor(const WeightTensor& tensor) {
  std::vector<T> values(size_t(element_count(tensor.shape)));
  std::memcpy(values.data(), tensor.data, tensor.bytes);
  return values;
}

const WeightTensor* find_input(
    const WeightMap& tensors,
    const std::string& file,
    std::string_view name,
    DType dtype,
    const Shape& shape) {
  const WeightTensor* tensor = tensors.find(name);
  if (!tensor) {
    return nullptr;
  }
  bool fits = tensor->ndim() == int64_t(shape.size());
  for (size_t i = 0; fits && i < shape.size(); ++i) {
    fits = shape[i] < 0 || tensor->shape[i] == shape[i];
  }
  if (tensor->dtype != dtype || !fits) {
    throw CheckpointError(
        cat("wrong input tensor ", name),
        cat(file, " has it as ", tensor->dtype, " ", to_string(tensor->shape)),
        cat("it has to be ",
            dtype,
            " of shape ",
            to_string(shape),
            " (-1 stands for any length)"));
  }
  return tensor;
}

Input read_input(const std::string& file, size_t num_live_adapters) {
  WeightMap tensors = read_safetensors(file).tensors;
  Input input;
  const WeightTensor* ids =
      find_input(tensors, file, "input_ids", DType::i32, {-1, -1});
  if (!ids) {
    throw CheckpointError(
        "no tensor input_ids",
        fmt::format("{} has {}", file, fmt::join(tensors.keys(), ", ")),
        "save the tokens as input_ids, I32 of shape [batch, length]");
  }
  input.rows = ids->dim(0);
  input.length = ids->dim(1);
  input.ids = read_tensor<int32_t>(*ids);
  if (input.rows == 0 || input.length == 0) {
    throw CheckpointError(
        "input_ids is empty",
        cat(file, " has it as ", to_string(ids->shape)),
        "give at least one row of one token");
  }
  input.lengths.assign(size_t(input.rows), input.length);
  if (const WeightTensor* lengths =
          find_input(tensors, file, "lengths", DType::i32, {input.rows})) {
    std::vector<int32_t> values = read_tensor<int32_t>(*lengths);
    for (size_t i = 0; i < values.size(); ++i) {
      if (values[i] < 1 || values[i] > input.length) {
        throw CheckpointError(
            "wrong length of a row",
            cat("lengths[",
                i,
                "] in ",
                file,
                " is ",
                values[i],
                ", the rows have ",
                input.length,
                " tokens"),
            "lengths count the tokens before the right padding");
      }
      input.lengths[i] = values[i];
    }
  }
  if (const WeightTensor* scales = find_input(
          tensors, file, "adapter_scales", DType::f32, {input.rows, -1})) {
    input.num_scales = scales->dim(1);
    if (size_t(input.num_scales) != num_live_adapters) {
      throw CheckpointError(
          "adapter_scales do not fit the adapters",
          cat(file,
              " has ",
              input.num_scales,
              " scales a row, the command ",
              num_live_adapters,
              " unfused adapters"),
          "give one scale for each adapter of --lora and --lora-scaled");
    }
    input.scales = read_tensor<float>(*scales);
    for (float scale : input.scales) {
      if (!std::isfinite(scale)) {
        throw CheckpointError(
            "wrong adapter scale",
            cat(file, " has the value ", scale, " in adapter_scales"),
            "scales are finite numbers");
      }
    }
  }
  return input;
}

// Past its context a model's rotations are another's, or there are none.
void check_lengths(
    const Input& input, int64_t max_positions, int64_t max_tokens) {
  int64_t longest = *std::ranges::max_element(input.lengths);
  if (max_positions > 0 && longest + max_tokens > max_positions) {
    throw CheckpointError(
        "a row is longer than the context",
        cat("it has ",
            longest,
            " tokens",
            max_tokens > 0 ? cat(" and ", max_tokens, " to come") : "",
            ", the context ",
            max_positions),
        "shorten the row");
  }
}

int run_logits(const LogitsOptions& options) {
  // Before the work, not after it.
  check_output("--output", options.output, {options.input});
  LoadOptions load = load_options(options.model);
  size_t num_live = adapter_scales(load).size();
  Input input = read_input(options.input, num_live);
  LoadedModel model = load_model(load);
  clear_progress();
  check_lengths(input, model.max_positions, options.max_tokens);

  int64_t vocab = model.model->vocab_size();
  EngineOptions engine_options;
  if (options.prefill_chunk > 0) {
    engine_options.prefill_chunk = options.prefill_chunk;
  }
  Engine engine(*model.model, *model.backend, engine_options);

  std::byte* bytes = nullptr;
  WeightMap out;
  WeightTensor logits =
      make_weight(DType::f32, {input.rows, input.length, vocab}, &bytes);
  std::memset(bytes, 0, logits.bytes);  // padding stays zero
  float* values = reinterpret_cast<float*>(bytes);
  out.set("logits", logits);

  std::vector<int64_t> ids;
  for (int64_t row = 0; row < input.rows; ++row) {
    SequenceOptions sequence;
    int64_t length = input.lengths[size_t(row)];
    auto begin = input.ids.begin() + ptrdiff_t(row * input.length);
    sequence.prompt.assign(begin, begin + ptrdiff_t(length));
    sequence.max_tokens = options.max_tokens;
    if (input.num_scales > 0) {
      auto first = input.scales.begin() + ptrdiff_t(row * input.num_scales);
      sequence.adapter_scales.assign(
          first, first + ptrdiff_t(input.num_scales));
    } else {
      sequence.adapter_scales = adapter_scales(load);
    }
    sequence.all_prompt_logits = true;
    float* out_row = values + row * input.length * vocab;
    sequence.on_logits = [=](int64_t position, std::span<const float> result) {
      if (position < length) {  // not the generated ones
        std::copy(result.begin(), result.end(), out_row + position * vocab);
      }
    };
    ids.push_back(engine.add(std::move(sequence)));
  }
  while (!engine.idle()) {
    for (const Event& event : engine.step()) {
      if (event.finish == FinishReason::no_memory) {
        throw Error(
            "no memory is left for the KV cache",
            cat("it holds ",
                int64_t(engine.blocks().used()) * kKvBlockSize,
                " positions; all rows are read together"),
            "give fewer or shorter rows");
      }
      if (event.finish == FinishReason::failed) {
        std::rethrow_exception(engine.failure(event.sequence));
      }
    }
  }
  if (options.max_tokens > 0) {
    WeightTensor greedy = make_weight(
        DType::i32, {input.rows, int64_t(options.max_tokens)}, &bytes);
    for (size_t row = 0; row < ids.size(); ++row) {
      std::span<const int32_t> tokens = engine.generated(ids[row]);
      if (tokens.size() != size_t(options.max_tokens)) {
        throw std::logic_error(
            cat("row ", row, " ended after ", tokens.size(), " tokens"));
      }
      std::memcpy(
          bytes + row * tokens.size_bytes(),
          tokens.data(),
          tokens.size_bytes());
    }
    out.set("greedy", greedy);
  }
  write_safetensors(options.output, out);
  return kOk;
}

}  // namespace

Action declare_logits(CLI::App& app) {
  auto options = std::make_shared<LogitsOptions>();
  declare_model_options(app, options->model);
  app.add_option(
         "--input",
         options->input,
         "Safetensors file with input_ids I32 [B, T]; optional lengths I32 [B] "
         "for right-padded rows and adapter_scales F32 [B, A]")
      ->type_name("FILE")
      ->required();
  app.add_option(
         "--output",
         options->output,
         "Receives logits F32 [B, T, V], and greedy I32 [B, N]")
      ->type_name("FILE")
      ->required();
  app.add_option(
         "-n,--max-tokens",
         options->max_tokens,
         "Continue each row greedily by this many tokens")
      ->check(CLI::Range(0, 1 << 24));
  app.add_option(
         "--prefill-chunk",
         options->prefill_chunk,
         "Prompt tokens a step; the result does not depend on it")
      ->check(CLI::Range(1, 1 << 20));
  return [options] { return run_logits(*options); };
}

}  // namespace mlxcel::cli

// `mlxcel perplexity`: how well a model predicts a text, and how far it is from
// another one whose logits were saved.
#include "engine/perplexity.h"
#include "cli/command.h"
#include "cli/console.h"
#include "cli/session.h"
#include "io/json.h"
#include "io/safetensors.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <sstream>

namespace mlxcel::cli {

namespace {

struct PerplexityOptions {
  ModelOptions model;
  std::string text, save_logits, kl_base;
  int64_t context = 0;
  bool json = false;
};

std::string read_text(const std::string& file) {
  std::error_code error;
  if (std::filesystem::is_directory(file, error)) {
    throw UsageError(
        cat("--text ", file, " is a folder"),
        "the text to score comes from a file",
        "give --text the path of a text file");
  }
  if (std::filesystem::is_regular_file(file, error)) {
    return read_text_file(file);
  }
  std::ifstream in(file, std::ios::binary);  // a pipe, or nothing
  std::ostringstream text;
  text << in.rdbuf();
  if (!in) {
    throw Error(
        cat("cannot read ", file),
        "the text to score comes from this file",
        "give --text the path of a text file");
  }
  return text.str();
}

// Saved predictions to compare with.
struct Base {
  WeightTensor logits;  // F32 [positions, vocab]
  size_t next = 0;

  std::span<const float> row(std::vector<float>& buffer) {
    size_t vocab = size_t(logits.dim(1));
    buffer.resize(vocab);
    std::memcpy(
        buffer.data(),
        logits.data + next++ * vocab * sizeof(float),
        vocab * sizeof(float));
    return buffer;
  }
};

Base open_base(
    const std::string& file,
    const std::vector<int32_t>& tokens,
    const std::vector<int32_t>& positions,
    int64_t vocab) {
  WeightMap tensors = read_safetensors(file).tensors;
  Base base{tensors.at("logits")};
  auto same = [&](std::string_view name, const std::vector<int32_t>& values) {
    const WeightTensor& tensor = tensors.at(name);
    return tensor.dtype == DType::i32 &&
           tensor.bytes == values.size() * sizeof(int32_t) &&
           std::memcmp(tensor.data, values.data(), tensor.bytes) == 0;
  };
  if (base.logits.dtype != DType::f32 ||
      base.logits.shape != Shape{int64_t(positions.size()), vocab} ||
      !same("tokens", tokens) || !same("positions", positions)) {
    throw CheckpointError(
        "saved logits of another text",
        cat(file,
            " has ",
            to_string(base.logits.shape),
            ", this run [",
            positions.size(),
            ", ",
            vocab,
            "], or its tokens differ"),
        "save the base with the same text, tokenizer and --ctx");
  }
  return base;
}

int run_perplexity(const PerplexityOptions& options) {
  if (options.context == 1) {
    throw UsageError(
        "wrong --ctx 1",
        "a window of one token predicts nothing",
        "give at least 2, or 0 for the model's context");
  }
  if (!options.save_logits.empty()) {
    check_output(
        "--save-logits", options.save_logits, {options.text, options.kl_base});
  }
  std::string text = read_text(options.text);
  ChatOptions chat;
  chat.no_chat_template = true;
  Session session = open_session(options.model, chat);
  std::vector<int32_t> tokens = session.encode(text, PromptKind::plain);
  if (tokens.size() < 2) {
    throw TextError(
        "the text is too short",
        cat(options.text, " has ", tokens.size(), " tokens"),
        "a score needs at least two");
  }
  int64_t context = options.context;
  if (context == 0) {
    context = session.model.max_positions > 0 ? session.model.max_positions
                                              : int64_t(tokens.size());
  }
  context = std::min(context, int64_t(tokens.size()));
  if (session.model.max_positions > 0 &&
      context > session.model.max_positions) {
    throw UsageError(
        cat("windows of ", context, " tokens are too long"),
        cat("the model's context is ", session.model.max_positions),
        "give fewer with --ctx, or 0 for the model's context");
  }
  std::vector<int32_t> positions =
      predicted_positions(int64_t(tokens.size()), context);
  int64_t vocab = session.model.model->vocab_size();

  std::optional<Base> base;
  if (!options.kl_base.empty()) {
    base = open_base(options.kl_base, tokens, positions, vocab);
  }
  std::unique_ptr<LogitsWriter> writer;
  if (!options.save_logits.empty()) {
    writer = std::make_unique<LogitsWriter>(
        options.save_logits, tokens, positions, vocab);
  }

  Engine engine(*session.model.model, *session.model.backend);
  double nll = 0, kl = 0;
  std::vector<double> divergences;
  int64_t same_top = 0;
  std::vector<float> buffer;
  for_each_prediction(
      engine,
      tokens,
      context,
      session.adapter_scales,
      [&](int64_t i, std::span<const float> logits) {
        nll += negative_log_likelihood(logits, tokens[size_t(i)]);
        if (base) {
          Divergence d = divergence(base->row(buffer), logits);
          kl += d.kl;
          same_top += d.same_top ? 1 : 0;
          divergences.push_back(d.kl);
        }
        if (writer) {
          writer->add(logits);
        }
      });
  if (writer) {
    writer->finish();
  }
  double count = double(positions.size());
  double mean = nll / count;
  if (options.json) {
    nlohmann::ordered_json out = {
        {"tokens", tokens.size()},
        {"predicted", positions.size()},
        {"context", context},
        {"mean_nll", mean},
        {"perplexity", std::exp(mean)},
    };
    if (base) {
      out["mean_kl"] = kl / count;
      out["max_kl"] = *std::max_element(divergences.begin(), divergences.end());
      out["top1_agreement"] = double(same_top) / count;
    }
    fmt::print("{}\n", out.dump(2));
    return kOk;
  }
  fmt::print(
      "perplexity {:.4f} over {} tokens (mean nll {:.5f})\n",
      std::exp(mean),
      positions.size(),
      mean);
  if (base) {
    fmt::print(
        "mean KL {:.6f}, largest {:.6f}, same first token {:.2f}%\n",
        kl / count,
        *std::max_element(divergences.begin(), divergences.end()),
        100 * double(same_top) / count);
  }
  return kOk;
}

}  // namespace

Action declare_perplexity(CLI::App& app) {
  auto options = std::make_shared<PerplexityOptions>();
  declare_model_options(app, options->model);
  app.add_option("--text", options->text, "The text to score")
      ->type_name("FILE")
      ->required();
  app.add_option(
         "--ctx,--ctx-size",
         options->context,
         "Tokens a window; 0 for the model's context")
      ->check(CLI::Range(int64_t(0), int64_t(1) << 40));
  app.add_option(
         "--save-logits",
         options->save_logits,
         "Keep the predictions for --kl-base of another run")
      ->type_name("FILE");
  app.add_option(
         "--kl-base",
         options->kl_base,
         "Compare with these predictions: mean KL(base || model)")
      ->type_name("FILE");
  app.add_flag("--json", options->json, "Print JSON");
  return [options] { return run_perplexity(*options); };
}

}  // namespace mlxcel::cli

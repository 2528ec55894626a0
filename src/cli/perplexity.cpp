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

// The length of the windows that a text is scored in.
int64_t window_length(
    int64_t wanted, int64_t max_positions, int64_t num_tokens) {
  int64_t length = wanted > 0          ? wanted
                   : max_positions > 0 ? max_positions
                                       : num_tokens;
  length = std::min(length, num_tokens);
  if (max_positions > 0 && length > max_positions) {
    throw UsageError(
        cat("windows of ", length, " tokens are too long"),
        cat("the model's context is ", max_positions),
        "give fewer with --ctx, or 0 for the model's context");
  }
  return length;
}

// Means over the predicted tokens, but for max_kl.
struct Score {
  int64_t tokens = 0, predicted = 0, context = 0;
  double nll = 0;
  bool compared = false;
  double kl = 0, max_kl = 0, same_top = 0;
};

Score score(
    Session& session,
    const PerplexityOptions& options,
    const std::vector<int32_t>& tokens) {
  Score out;
  out.tokens = int64_t(tokens.size());
  out.context =
      window_length(options.context, session.model.max_positions, out.tokens);
  std::vector<int32_t> positions = predicted_positions(out.tokens, out.context);
  out.predicted = int64_t(positions.size());
  int64_t vocab = session.model.model->vocab_size();
  std::optional<Base> base;
  if (!options.kl_base.empty()) {
    base = open_base(options.kl_base, tokens, positions, vocab);
  }
  std::optional<LogitsWriter> writer;
  if (!options.save_logits.empty()) {
    writer.emplace(options.save_logits, tokens, positions, vocab);
  }
  out.compared = base.has_value();
  out.max_kl = -INFINITY;

  Engine engine(*session.model.model, *session.model.backend);
  std::vector<float> buffer;
  for_each_prediction(
      engine,
      tokens,
      out.context,
      session.adapter_scales,
      [&](int64_t i, std::span<const float> logits) {
        out.nll += negative_log_likelihood(logits, tokens[size_t(i)]);
        if (base) {
          Divergence d = divergence(base->row(buffer), logits);
          out.kl += d.kl;
          out.max_kl = std::max(out.max_kl, d.kl);
          out.same_top += d.same_top ? 1 : 0;
        }
        if (writer) {
          writer->add(logits);
        }
      });
  if (writer) {
    writer->finish();
  }
  for (double* sum : {&out.nll, &out.kl, &out.same_top}) {
    *sum /= double(out.predicted);
  }
  return out;
}

void print_score(const Score& score, bool json) {
  double perplexity = std::exp(score.nll);
  if (json) {
    nlohmann::ordered_json out = {
        {"tokens", score.tokens},
        {"predicted", score.predicted},
        {"context", score.context},
        {"mean_nll", score.nll},
        {"perplexity", perplexity},
    };
    if (score.compared) {
      out["mean_kl"] = score.kl;
      out["max_kl"] = score.max_kl;
      out["top1_agreement"] = score.same_top;
    }
    fmt::print("{}\n", out.dump(2));
    return;
  }
  fmt::print(
      "perplexity {:.4f} over {} tokens (mean nll {:.5f})\n",
      perplexity,
      score.predicted,
      score.nll);
  if (score.compared) {
    fmt::print(
        "mean KL {:.6f}, largest {:.6f}, same first token {:.2f}%\n",
        score.kl,
        score.max_kl,
        100 * score.same_top);
  }
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
  print_score(score(session, options, tokens), options.json);
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

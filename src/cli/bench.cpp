// `mlxcel bench`: speed and memory of a model, beside what the machine can do.
#include "cli/checkpoint_facts.h"
#include "cli/command.h"
#include "cli/console.h"
#include "cli/machine_peak.h"
#include "cli/model_options.h"
#include "cli/model_store.h"
#include "cli/random_checkpoint.h"
#include "cli/random_shapes.h"
#include "engine/engine.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>

namespace mlxcel::cli {

namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

struct BenchOptions {
  ModelOptions model;
  int prompt_tokens = 512;
  int gen_tokens = 128;
  int depth = 1;
  int batch = 1;
  int repeat = 5;
  bool adapter_rows = false;
  std::string shape;
  int bits = 4;
  std::string save;
  bool json = false;
};

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle]
                                : (values[middle - 1] + values[middle]) / 2;
}

// Token ids spread over the vocabulary, other ones in each sequence.
std::vector<int32_t> made_up_prompt(int count, int64_t vocab, int sequence) {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < count; ++i) {
    tokens.push_back(
        int32_t((i * 7919 + int64_t(sequence) * 104729 + 11) % vocab));
  }
  return tokens;
}

struct Timing {
  double prompt = 0;  // seconds until every sequence has its first token
  double decode = 0;  // seconds of the steps from there on
};

// The scales of one sequence: all of the command's, or with --adapter-rows
// those of a single live adapter, another one for each sequence in turn.
std::vector<float> row_scales(
    const std::vector<float>& scales,
    const std::vector<int>& live,
    const BenchOptions& options,
    int sequence) {
  if (!options.adapter_rows) {
    return scales;
  }
  std::vector<float> out(scales.size(), 0.f);
  auto id = size_t(live[size_t(sequence) % live.size()]);
  out[id] = scales[id];
  return out;
}

// Ids of the adapters that are kept beside the weights.
std::vector<int> live_adapters(const LoadOptions& load) {
  std::vector<int> out;
  for (size_t i = 0; i < load.adapters.size(); ++i) {
    if (!load.adapters[i].fuse) {
      out.push_back(int(i));
    }
  }
  return out;
}

// Reads the prompts, then takes so many steps with a row of every sequence.
// Long prompts are read in several steps, so some sequences answer before
// others; none ends before the last step.
Timing run_once(
    Engine& engine,
    const BenchOptions& options,
    const std::vector<float>& scales,
    const std::vector<int>& live,
    int prompt_tokens,
    int steps) {
  std::vector<int64_t> ids;
  for (int i = 0; i < options.batch; ++i) {
    SequenceOptions sequence;
    sequence.prompt = made_up_prompt(prompt_tokens, engine.vocab_size(), i);
    sequence.max_tokens = -1;
    sequence.adapter_scales = row_scales(scales, live, options, i);
    ids.push_back(engine.add(std::move(sequence)));
  }
  auto step = [&] {
    for (const Event& event : engine.step()) {
      if (event.finish == FinishReason::no_memory) {
        throw Error(
            "no memory is left for the KV cache",
            cat("it holds ",
                int64_t(engine.blocks().used()) * kKvBlockSize,
                " positions of ",
                options.batch,
                " sequences"),
            "give a smaller --batch or --prompt-tokens");
      }
      if (event.finish == FinishReason::failed) {
        std::rethrow_exception(engine.failure(event.sequence));
      }
    }
  };
  auto started = [&](int64_t id) { return !engine.generated(id).empty(); };
  Timing timing;
  Clock::time_point begin = Clock::now();
  while (!std::all_of(ids.begin(), ids.end(), started)) {
    step();
  }
  timing.prompt = seconds_since(begin);
  begin = Clock::now();
  for (int i = 0; i < steps; ++i) {
    step();
  }
  timing.decode = seconds_since(begin);
  for (int64_t id : ids) {
    engine.release(id);
  }
  return timing;
}

// Weights that a prompt row multiplies with, and bytes that a decode step
// reads.
struct Work {
  double row_weights = 0;
  double step_bytes = 0;
};

// The share of a mixture's experts that `rows` rows use, where the router sends
// each anywhere alike.
double used_share(const MoeSpec& moe, int rows) {
  double routes = double(moe.experts) + moe.identity_experts;
  return 1 - std::pow(1 - moe.experts_per_token / routes, double(rows));
}

// Bytes of the experts that a decode step of `rows` rows does not read.
double idle_bytes(const CheckpointFacts& facts, int rows) {
  NameMap names(facts.family->names, facts.spec);
  double idle = 0;
  for (const auto& [key, tensor] : facts.weights) {
    auto parts = names.parts_of(split_key(key).first);
    if (!parts.empty() && parts[0].role.kind.starts_with("moe.experts.")) {
      const auto& moe = facts.spec.blocks[size_t(parts[0].role.layer)].moe;
      idle += double(tensor.bytes) * (1 - used_share(*moe, rows));
    }
  }
  return idle;
}

// Bytes of the cache that a decode step reads for one sequence: the recurrent
// states, and keys and values of `positions`, or of a window where that is
// less.
double cache_bytes(const CheckpointFacts& facts, double positions) {
  double bytes = 0;
  for (const BlockSpec& block : facts.spec.blocks) {
    const KvLayerSpec kept = cache_of(block);
    bytes += double(kept.state) * sizeof(float);
    double seen = positions;
    const AttentionSpec* attention = attention_of(block);
    if (attention != nullptr && attention->window.size > 0) {
      seen = std::min(seen, double(attention->window.size));
    }
    bytes += seen * kept.num_kv_heads * (kept.k_dim + kept.v_dim) *
             double(size_of(facts.activation_dtype));
  }
  return bytes;
}

Work work_of(const CheckpointFacts& facts, const BenchOptions& options) {
  const int batch = options.batch;
  Work work;
  double hidden = facts.spec.hidden_size;
  for (const BlockSpec& block : facts.spec.blocks) {
    for (const RoleShape& role : roles_of(block, facts.spec.hidden_size)) {
      // Latent attention's heads stand beside the matrix that holds them all.
      if (!role.kind.starts_with("moe.experts.") &&
          !role.kind.starts_with("attention.heads.")) {
        work.row_weights += double(role.rows) * double(role.cols);
      }
    }
    if (const auto& moe = block.moe) {
      work.row_weights += (moe->expert.kind == MlpKind::gated ? 3.0 : 2.0) *
                          moe->experts_per_token *
                          moe->expert.intermediate_size * hidden;
    }
  }
  // A lookup reads one row of the table; a tied head reads it all.
  work.step_bytes = double(facts.weight_bytes) - idle_bytes(facts, batch);
  work.step_bytes +=
      batch * cache_bytes(facts, options.depth + options.gen_tokens / 2.0);
  if (facts.spec.head == HeadKind::own) {
    NameMap names(facts.family->names, facts.spec);
    if (auto rows = names.locate("embedding", facts.weights)) {
      for (const char* part : {".weight", ".scales", ".biases"}) {
        const WeightTensor* tensor = facts.weights.find(rows->stem + part);
        work.step_bytes -= tensor ? double(tensor->bytes) : 0;
      }
    }
  }
  return work;
}

struct Measured {
  // One a repetition.
  std::vector<double> prefill, decode, first_token, read_bandwidth;
  double load_seconds = 0;
  uint64_t weight_bytes = 0, peak_memory = 0;
  std::string backend;
};

// The bandwidth is read beside each repetition, not once: where a machine is
// shared, both change together.
Measured measure(
    const BenchOptions& options, const LoadOptions& load, ThreadPool& pool) {
  Measured out;
  Clock::time_point begin = Clock::now();
  LoadedModel model = load_model(load);
  clear_progress();
  out.load_seconds = seconds_since(begin);
  out.weight_bytes = model.weight_bytes;
  out.backend = model.backend->description();
  EngineOptions engine_options;
  engine_options.max_sequences = options.batch;
  Engine engine(*model.model, *model.backend, engine_options);
  std::vector<float> scales = adapter_scales(load);
  std::vector<int> live = live_adapters(load);
  run_once(
      engine, options, scales, live, std::min(options.prompt_tokens, 64), 3);
  std::optional<BandwidthProbe> probe;
  for (int i = 0; i < options.repeat; ++i) {
    Timing prefill =
        run_once(engine, options, scales, live, options.prompt_tokens, 0);
    out.first_token.push_back(prefill.prompt);
    out.prefill.push_back(
        double(options.batch) * options.prompt_tokens / prefill.prompt);
    if (options.gen_tokens > 0) {
      Timing decode = run_once(
          engine, options, scales, live, options.depth, options.gen_tokens);
      out.decode.push_back(
          double(options.batch) * options.gen_tokens / decode.decode);
    }
    if (i == 0) {  // the others need no more; the probe would count
      out.peak_memory = peak_memory_bytes();
      probe.emplace(pool);
    }
    out.read_bandwidth.push_back(probe->measure());
  }
  return out;
}

// The samples' medians, and their shares of what the machine can do.
struct Report {
  double prefill = 0, decode = 0;  // tokens/s
  double bandwidth = 0;            // bytes/s
  std::vector<double> bandwidth_shares;
  double bandwidth_share = 0, compute_share = 0;
};

Report summarize(
    const BenchOptions& options,
    const Measured& m,
    const Work& work,
    const ComputePeak& peak) {
  Report out;
  out.prefill = median(m.prefill);
  out.decode = m.decode.empty() ? 0 : median(m.decode);
  out.bandwidth = median(m.read_bandwidth);
  out.compute_share = 2 * work.row_weights * out.prefill / peak.rate;
  // The weights are read once for all sequences of a step; each has a cache.
  for (size_t i = 0; i < m.decode.size(); ++i) {
    out.bandwidth_shares.push_back(
        work.step_bytes * m.decode[i] / options.batch / m.read_bandwidth[i]);
  }
  out.bandwidth_share =
      out.bandwidth_shares.empty() ? 0 : median(out.bandwidth_shares);
  return out;
}

void print_json(
    const BenchOptions& options,
    const Measured& m,
    const Report& report,
    const ComputePeak& peak,
    int threads) {
  std::vector<double> bandwidths;  // in GB/s
  for (double value : m.read_bandwidth) {
    bandwidths.push_back(value / 1e9);
  }
  nlohmann::ordered_json out = {
      {"backend", m.backend},
      {"threads", threads},
      {"prompt_tokens", options.prompt_tokens},
      {"gen_tokens", options.gen_tokens},
      {"depth", options.depth},
      {"batch", options.batch},
      {"repeat", options.repeat},
      {"prefill_tokens_per_second", report.prefill},
      {"decode_tokens_per_second", report.decode},
      {"time_to_first_token_seconds", median(m.first_token)},
      {"load_seconds", m.load_seconds},
      {"weights_bytes", m.weight_bytes},
      {"peak_memory_bytes", m.peak_memory},
      {"read_bandwidth_gb_per_second", report.bandwidth / 1e9},
      {"read_bandwidth_share", report.bandwidth_share},
      {"compute_peak_gflop_per_second", peak.rate / 1e9},
      {"compute_peak_kind", peak.kind},
      {"compute_peak_share", report.compute_share},
      {"prefill_samples", m.prefill},
      {"decode_samples", m.decode},
      {"read_bandwidth_samples", bandwidths},
      {"read_bandwidth_share_samples", report.bandwidth_shares},
  };
  fmt::print("{}\n", out.dump(2));
}

void print_text(
    const BenchOptions& options,
    const Measured& m,
    const Report& report,
    const ComputePeak& peak) {
  auto spread = [](const std::vector<double>& samples) {
    auto [low, high] = std::minmax_element(samples.begin(), samples.end());
    return fmt::format("{:.1f} to {:.1f}", *low, *high);
  };
  fmt::print("{}\n", m.backend);
  fmt::print(
      "prefill {:>6} tokens   {:>9.1f} tokens/s  ({})  {:.0f}% of the {} "
      "peak of {:.0f} GFLOP/s\n",
      options.prompt_tokens,
      report.prefill,
      spread(m.prefill),
      100 * report.compute_share,
      peak.kind,
      peak.rate / 1e9);
  if (!m.decode.empty()) {
    fmt::print(
        "decode  {:>6} tokens   {:>9.1f} tokens/s  ({})  {:.0f}% of the read "
        "bandwidth of {:.1f} GB/s\n",
        options.gen_tokens,
        report.decode,
        spread(m.decode),
        100 * report.bandwidth_share,
        report.bandwidth / 1e9);
  }
  fmt::print(
      "first token after {:.1f} ms, loaded in {:.3f} s, weights {}, peak "
      "memory {}\n",
      1000 * median(m.first_token),
      m.load_seconds,
      format_bytes(double(m.weight_bytes)),
      format_bytes(double(m.peak_memory)));
}

// A new folder that goes with the object.
class ScratchFolder {
 public:
  ScratchFolder() {
    std::string name = fs::temp_directory_path() / "mlxcel-bench-XXXXXX";
    if (mkdtemp(name.data()) == nullptr) {
      throw Error(
          cat("cannot make the folder ", name),
          std::generic_category().message(errno),
          "give --save, or a TMPDIR that can be written to");
    }
    path_ = name;
  }
  ~ScratchFolder() {
    std::error_code error;
    fs::remove_all(path_, error);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const fs::path& path() const {
    return path_;
  }

 private:
  fs::path path_;
};

int run_bench(const BenchOptions& given) {
  BenchOptions options = given;
  std::optional<ScratchFolder> scratch;
  if (!options.shape.empty()) {
    if (!options.model.model.empty()) {
      throw UsageError(
          "both --model and --shape",
          "--shape makes the model that is measured",
          "give one of them");
    }
    random_shape_config(options.shape);  // refuses what is unknown
    if (options.save.empty()) {
      scratch.emplace();
    }
    const fs::path folder = scratch ? scratch->path() : fs::path(options.save);
    print_note(
        cat("Writing a random ",
            options.shape,
            " checkpoint to ",
            folder.string()));
    write_random_checkpoint(folder, options.shape, options.bits);
    options.model.model = folder.string();
  } else if (!options.save.empty()) {
    throw UsageError(
        "--save without --shape",
        "there is no random checkpoint to keep",
        "give --shape too");
  }
  LoadOptions load = load_options(options.model);
  if (options.adapter_rows && live_adapters(load).empty()) {
    throw UsageError(
        "--adapter-rows without unfused adapters",
        "there is nothing to spread over the sequences",
        "give adapters with --lora or --lora-scaled");
  }
  Work work = work_of(read_checkpoint_facts(load.model), options);
  ThreadPool pool(options.model.threads);
  Measured measured = measure(options, load, pool);
  ComputePeak peak = measure_compute(pool);
  Report report = summarize(options, measured, work, peak);
  if (options.json) {
    print_json(options, measured, report, peak, pool.size());
  } else {
    print_text(options, measured, report, peak);
  }
  return kOk;
}

}  // namespace

Action declare_bench(CLI::App& app) {
  auto options = std::make_shared<BenchOptions>();
  declare_model_options(app, options->model);
  auto number = [&](const char* name, int& value, int least, const char* help) {
    app.add_option(name, value, help)
        ->capture_default_str()
        ->check(CLI::Range(least, 1 << 24));
  };
  number("--prompt-tokens", options->prompt_tokens, 1, "Tokens to read");
  number("--gen-tokens", options->gen_tokens, 0, "Tokens to generate");
  number(
      "--depth",
      options->depth,
      1,
      "Tokens of context before the generated ones");
  number("--batch", options->batch, 1, "Sequences at a time");
  app.add_flag(
         "--adapter-rows",
         options->adapter_rows,
         "Each sequence uses one of the unfused adapters, in turn, instead of "
         "all of them")
      ->group("Adapters");
  number("--repeat", options->repeat, 1, "Repetitions; the median counts");
  app.add_option(
         "--shape",
         options->shape,
         cat("Measure a random checkpoint of this shape: ",
             random_shape_names(),
             ", or the path of a config.json"))
      ->type_name("NAME");
  number("--bits", options->bits, 1, "Its bits a weight: 4, 8 or 16");
  app.add_option("--save", options->save, "Keep the random checkpoint here")
      ->type_name("DIR");
  app.add_flag("--json", options->json, "Print JSON");
  return [options] { return run_bench(*options); };
}

}  // namespace mlxcel::cli

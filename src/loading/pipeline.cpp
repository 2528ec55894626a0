#include "loading/pipeline.h"

#include "core/log.h"
#include "io/checkpoint.h"
#include "loading/check_model.h"
#include "loading/compose.h"
#include "loading/config_file.h"
#include "loading/content_digest.h"
#include "loading/detect.h"
#include "loading/materialize.h"
#include "loading/sanitize_weights.h"
#include "models/builder.h"
#include "ops/matrix_source.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string_view>
#include <utility>

namespace mlxcel {

namespace fs = std::filesystem;

namespace {

// Times the phases of a load and reports them: to the caller, and as
// "[TTFT] load <phase> <ms>" lines under MLXCEL_PROFILE_TTFT.
class PhaseClock {
 public:
  explicit PhaseClock(const LoadOptions& options) : options_(options) {
    const char* profile = std::getenv("MLXCEL_PROFILE_TTFT");
    profile_ = profile != nullptr && std::string_view(profile) != "" &&
               std::string_view(profile) != "0";
  }

  // Ends the running phase and begins the next.
  void begin(std::string_view phase) {
    end();
    phase_ = phase;
    begun_ = Clock::now();
    advance(0);
  }

  void advance(double done) const {
    if (options_.progress) {
      options_.progress(phase_, done);
    }
  }

  void end() {
    if (!phase_.empty() && profile_) {
      log_info(fmt::format(
          "[TTFT] load {} {:.2f} ms", phase_, 1000 * since(begun_)));
    }
    phase_ = {};
  }

  double finish() {
    end();
    double seconds = since(start_);
    if (profile_) {
      log_info(fmt::format("[TTFT] load total {:.2f} ms", 1000 * seconds));
    }
    return seconds;
  }

 private:
  using Clock = std::chrono::steady_clock;
  static double since(Clock::time_point then) {
    return std::chrono::duration<double>(Clock::now() - then).count();
  }

  const LoadOptions& options_;
  bool profile_ = false;
  Clock::time_point start_ = Clock::now(), begun_ = start_;
  std::string_view phase_;
};

bool wants_graph(const LoadOptions& options) {
  return options.backend == BackendKind::graph ||
         (options.backend == BackendKind::automatic && graph_backend_has_gpu());
}

std::unique_ptr<Backend> make_backend(
    const LoadOptions& options, bool graph, DType activation_dtype) {
  BackendOptions backend;
  backend.threads = options.threads;
  backend.prefill_int8 = options.prefill_int8;
  backend.activation_dtype = activation_dtype;
  return graph ? make_graph_backend(backend) : make_cpu_backend(backend);
}

void check_dtype(const LoadOptions& options) {
  if (options.dtype && *options.dtype != DType::f32 &&
      *options.dtype != DType::f16 && *options.dtype != DType::bf16) {
    throw UsageError(
        cat("activations cannot be ", *options.dtype),
        "",
        "choose f32, f16 or bf16");
  }
}

void check_rope(const LoadOptions& options, const DecoderSpec& spec) {
  bool turns =
      std::any_of(spec.blocks.begin(), spec.blocks.end(), has_rotation);
  if (options.rope.changes() && !turns) {
    throw UsageError(
        "the --rope options change nothing here",
        "this model has no rotary embedding",
        "leave them out");
  }
}

// The checkpoint's tensors in the form that surgery and adapters expect.
WeightMap read_weights(
    const LoadOptions& options,
    const NameMap& names,
    Composition& composition,
    LoadedModel& out) {
  WeightMap weights =
      load_weights(out.folder, {.mmap = options.mmap, .mlock = options.mlock});
  out.weight_bytes = weights.total_bytes();
  sanitize_weights(out.config, names, weights);
  // A recipe that cannot be applied is named before a format that cannot be
  // computed on: surgery may be wrong for reasons of its own.
  composition.plan_surgery(names, weights);
  check_formats(weights, out.config);
  return weights;
}

std::vector<WeightTensor> used_tensors(
    const Family& family, size_t layers, const WeightMap& weights) {
  std::vector<WeightTensor> used;
  for (const auto& [key, tensor] : weights) {
    if (!is_dropped(family, key, layers)) {
      used.push_back(tensor);
    }
  }
  return used;
}

// `lazy`: weights are read at their first use.
LoadedModel load(const LoadOptions& options, PhaseClock& clock, bool lazy) {
  check_dtype(options);
  // A wrong recipe or adapter is reported whatever state the model is in.
  Composition composition(options);

  clock.begin("detect");
  LoadedModel out;
  out.folder = checkpoint_folder(options.model);
  out.config = read_config(out.folder);
  override_rope(out.config, options.rope);
  Detection detection = detect_model(out.folder, out.config);
  const Family& family = require_generation(detection, out.config);
  out.family = &family;
  NameMap names(family.names, decoder_spec(family, out.config));
  check_rope(options, names.spec());
  out.max_positions = max_positions_of(out.config);

  clock.begin("weights");
  WeightMap weights = read_weights(options, names, composition, out);

  clock.begin("compose");
  composition.apply_surgery(weights);
  composition.apply_adapters(family, names, weights);

  out.adapters = composition.loaded();
  if (options.digest) {
    clock.begin("digest");
    out.digest = content_digest(out.config, weights, options.threads);
  }

  bool graph = wants_graph(options);
  auto read_in = [&] {
    clock.begin("materialize");
    materialize(
        used_tensors(family, names.spec().blocks.size(), weights),
        options.threads,
        [&](double done) { clock.advance(done); });
  };
  // The graph backend copies the weights while the model is built.
  if (graph && !lazy) {
    read_in();
  }

  clock.begin("build");
  out.activation_dtype =
      options.dtype.value_or(activation_dtype_of(names, weights));
  out.backend = make_backend(options, graph, out.activation_dtype);
  MatrixSource source(weights, out.config);
  out.model = build_model(
      family,
      {.backend = *out.backend,
       .names = names,
       .source = source,
       .cache_dtype = out.activation_dtype,
       .terms = composition.take_terms()});

  if (!graph && !lazy) {
    read_in();
  }
  out.seconds = clock.finish();
  return out;
}

}  // namespace

LoadedModel load_model(const LoadOptions& options) {
  PhaseClock clock(options);
  LoadedModel out = load(options, clock, lazy_materialization());
  log_info(fmt::format("Model loaded in {:.2f} s", out.seconds));
  return out;
}

std::string refusal_of(const fs::path& model) {
  // Neither a recipe of the environment nor more than a thread counts here.
  LoadOptions options;
  options.model = model;
  options.backend = BackendKind::cpu;
  options.threads = 1;
  options.surgery = "";
  std::string refusal;
  LogSink previous = set_log_sink([](LogLevel, std::string_view) {});
  try {
    PhaseClock clock(options);
    load(options, clock, true);
  } catch (const Error& error) {
    refusal = error.summary() + (error.why().empty() ? "" : ": ") + error.why();
  }
  set_log_sink(std::move(previous));
  return refusal;
}

}  // namespace mlxcel

// The decoder: embedding, blocks of two halves each, final norm and head.
#include "core/error.h"
#include "core/log.h"
#include "models/builder.h"
#include "models/parts.h"
#include "models/per_layer_inputs.h"
#include "ops/ops.h"

#include <algorithm>
#include <utility>

namespace mlxcel {

namespace {

struct Half {
  std::shared_ptr<const Norm> norm, post_norm;  // null: not in this placement
  std::unique_ptr<Sublayer> sublayer;
  float scale = 1;
  // Reads what the half before it has read, and adds to its result.
  bool beside = false;

  Tensor forward(
      const Flow& flow, const Tensor& x, const Tensor& residual) const {
    return sublayer->forward(
        flow,
        x,
        {.norm = norm.get(),
         .output_norm = post_norm.get(),
         .residual = &residual,
         .output_scale = scale});
  }
};

// How far back the layers look; 0 when one sees everything. Parts of other
// kinds that keep keys and values are taken to see everything.
int64_t longest_window(const DecoderSpec& spec) {
  int64_t longest = 0;
  for (const BlockSpec& block : spec.blocks) {
    bool reads_another = block.attention.extras.shared.kind == Sharing::cached;
    if (cache_of(block).num_kv_heads == 0 && (block.mixer || !reads_another)) {
      continue;
    }
    if (block.mixer || block.attention.window.size == 0) {
      return 0;
    }
    longest = std::max(longest, block.attention.window.size);
  }
  return longest;
}

void warn_of_whole_sequences(const std::vector<std::string>& tensors) {
  std::string others =
      tensors.size() > 1 ? cat(" and ", tensors.size() - 1, " like it") : "";
  log_warning(
      cat("by the checkpoint's ",
          tensors.front(),
          others,
          " positions depend on later tokens, or on where a pass begins: "
          "each token takes a pass over its whole sequence, prompts are read "
          "in one piece, and no prompt cache is kept"));
}

class Decoder : public Model {
 public:
  Decoder(const PartBuilder& builder, Backend& backend, DType cache_dtype)
      : backend_(backend), spec_(builder.names().spec()) {
    embedding_ = builder.embedding("embedding");
    cache_spec_.dtype = cache_dtype;
    for (size_t layer = 0; layer < spec_.blocks.size(); ++layer) {
      add_block(builder, spec_.blocks[layer], int(layer));
    }
    if (spec_.extras.positions.rows > 0) {
      positions_ = builder.embedding("positions");
    }
    per_layer_ = PerLayerInputs::make(builder);
    for (int i = 1; i < spec_.extras.streams.count; ++i) {
      spread_.push_back(builder.linear({cat("streams.in.", i - 1)}, false));
      merge_.push_back(builder.linear({cat("streams.out.", i - 1)}, false));
    }
    if (spec_.extras.embedding_norm) {
      embedding_norm_ =
          builder.norm("embedding_norm", *spec_.extras.embedding_norm);
    }
    final_norm_ = builder.norm("final_norm", spec_.final_norm);
    head_ = builder.head(spec_);
    traits_.window = longest_window(spec_);
    traits_.rope_switch_length = builder.rope_switch_length();
    if (!builder.whole_sequence_tensors().empty()) {
      traits_.whole_sequence = true;
      traits_.window = 0;  // every pass reads all positions again
      warn_of_whole_sequences(builder.whole_sequence_tensors());
    }
  }

  int64_t vocab_size() const override {
    return spec_.vocab_size;
  }

  KvCacheSpec kv_cache_spec() const override {
    return cache_spec_;
  }

  ContextTraits context_traits() const override {
    return traits_;
  }

  Tensor forward(const Step& step, KvCache& cache) override {
    Kept kept;
    Flow flow{backend_, step, cache, kept};
    Tensor x = ops::embed(backend_, step, *embedding_, spec_.embedding_scale);
    if (positions_) {
      x = ops::add(
          backend_, step, x, ops::embed(backend_, place(step), *positions_));
    }
    if (embedding_norm_) {
      x = ops::norm(backend_, step, x, *embedding_norm_);
    }
    if (per_layer_) {
      kept.per_layer = per_layer_->forward(backend_, step, x);
    }
    spread(flow, x);
    Tensor input = x;
    for (const Half& half : halves_) {
      if (!half.beside) {
        input = x;
      }
      x = half.forward(flow, input, x);
    }
    return ops::head(
        backend_,
        step,
        merged(flow, x),
        {.norm = final_norm_.get(),
         .head = head_.get(),
         .scale = spec_.extras.logit_scale,
         .softcap = spec_.logit_softcap});
  }

 private:
  // The step with each row's place in the table of positions for its token.
  Step place(const Step& step) const {
    Step placed = step;
    for (const Segment& segment : step.segments) {
      for (int row = 0; row < segment.num_rows; ++row) {
        placed.tokens[size_t(segment.first_row + row)] =
            int32_t(segment.position + row + spec_.extras.positions.offset);
      }
    }
    return placed;
  }

  // Streams beyond the first are projections of the embedding, of its size.
  void spread(const Flow& flow, const Tensor& x) const {
    if (spread_.empty()) {
      return;
    }
    flow.kept.streams = {x};
    for (const auto& linear : spread_) {
      Tensor stream = ops::linear(flow.backend, flow.step, x, *linear);
      flow.kept.streams.push_back(
          ops::match_size(flow.backend, flow.step, stream, x));
    }
  }

  // The mean of the first stream and the others' projections, of its size.
  Tensor merged(const Flow& flow, const Tensor& x) const {
    const std::vector<Tensor>& streams = flow.kept.streams;
    if (streams.empty()) {
      return x;
    }
    Tensor sum = streams[0];
    for (size_t i = 0; i < merge_.size(); ++i) {
      Tensor stream =
          ops::linear(flow.backend, flow.step, streams[i + 1], *merge_[i]);
      stream = ops::match_size(flow.backend, flow.step, stream, streams[0]);
      sum = ops::add(flow.backend, flow.step, sum, stream);
    }
    return ops::add(
        flow.backend, flow.step, sum, sum, 1 / float(streams.size()) - 1);
  }

  void add_block(
      const PartBuilder& builder, const BlockSpec& block, int layer) {
    cache_spec_.layers.push_back(cache_of(block));
    std::string name = cat("layers.", layer);
    if (block.halves != Halves::feed_forward_only) {
      add_half(
          builder,
          block,
          name + ".attention",
          block.mixer ? block.mixer->build(builder, block, layer)
                      : make_attention(builder, block, layer));
    }
    if (block.halves != Halves::mixer_only) {
      add_half(
          builder,
          block,
          name + ".mlp",
          make_feed_forward(builder, block, layer));
    }
  }

  static std::unique_ptr<Sublayer> make_feed_forward(
      const PartBuilder& builder, const BlockSpec& block, int layer) {
    if (block.feed_forward) {
      return block.feed_forward->build(builder, block, layer);
    }
    return block.moe ? make_moe(builder, *block.moe, layer)
                     : make_mlp(builder, block, layer);
  }

  void add_half(
      const PartBuilder& builder,
      const BlockSpec& block,
      const std::string& role,
      std::unique_ptr<Sublayer> sublayer) {
    Half half;
    half.scale = spec_.extras.residual_scale;
    half.beside = is_parallel(block.norms) && role.ends_with(".mlp");
    if (half.beside && block.norms == NormPlacement::parallel) {
      half.norm = halves_.back().norm;
    } else if (norms_input(block.norms)) {
      half.norm = builder.norm(role + "_norm", block.norm);
    }
    if (norms_output(block.norms)) {
      NormSpec norm = block.norm;
      norm.eps = norm.output_eps.value_or(norm.eps);
      half.post_norm = builder.norm(role + "_post_norm", norm);
    }
    half.sublayer = std::move(sublayer);
    halves_.push_back(std::move(half));
  }

  Backend& backend_;
  DecoderSpec spec_;
  KvCacheSpec cache_spec_;
  ContextTraits traits_;
  std::unique_ptr<Embedding> embedding_;
  std::unique_ptr<Embedding> positions_;       // null: none are learned
  std::vector<Half> halves_;                   // of all blocks, in order
  std::unique_ptr<PerLayerInputs> per_layer_;  // null: none
  std::vector<std::unique_ptr<Linear>> spread_, merge_;
  std::unique_ptr<Norm> embedding_norm_;  // null: none
  std::unique_ptr<Norm> final_norm_;
  std::unique_ptr<Linear> head_;
};

// A tensor nobody reads is a wrong model or a wrong file, unless the family
// lists it.
void check_all_used(
    const Family& family, const MatrixSource& source, size_t layers) {
  std::string names;
  size_t count = 0;
  for (const std::string& key : source.unclaimed()) {
    // Parts of size 0 are stored too.
    if (is_dropped(family, key, layers) ||
        element_count(source.weights().at(key).shape) == 0) {
      continue;
    }
    constexpr size_t kNamed = 5;
    if (count++ < kNamed) {
      names += (names.empty() ? "" : ", ") + key;
    }
  }
  if (count > 0) {
    throw CheckpointError(
        cat(count,
            count == 1 ? " tensor has" : " tensors have",
            " no place in a ",
            family.name,
            " model"),
        cat("not used: ", names, count > 5 ? ", ..." : ""),
        "check that config.json belongs to these weights");
  }
}

}  // namespace

std::unique_ptr<Model> build_model(const Family& family, BuildInputs inputs) {
  PartBuilder builder(inputs);
  auto model =
      std::make_unique<Decoder>(builder, inputs.backend, inputs.cache_dtype);
  check_all_used(family, inputs.source, inputs.names.spec().blocks.size());
  if (!inputs.terms.empty()) {
    throw AdapterError(
        "an adapter cannot be applied live",
        cat("the model has no linear ", inputs.terms.begin()->first),
        "fuse the adapter, or leave out its pair");
  }
  return model;
}

}  // namespace mlxcel

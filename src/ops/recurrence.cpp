#include "ops/recurrence.h"

#include "core/error.h"
#include "ops/ops.h"

namespace mlxcel {

std::unique_ptr<Constants> Backend::prepare_constants(std::vector<float>) {
  throw Error("this backend has no recurrent layers", "", "use another one");
}

Tensor Backend::recurrence(const Step&, const Recurrence&, KvCache&, int) {
  throw Error("this backend has no recurrent layers", "", "use another one");
}

namespace {

struct Columns {
  int64_t operator()(const ShortConvolution& op) const {
    return op.form == ConvolutionForm::replaced ? op.x->cols()
                                                : op.convolution.channels;
  }
  int64_t operator()(const SelectiveScan& op) const {
    return op.channels;
  }
  int64_t operator()(const StateSpaceDual& op) const {
    return op.heads * op.head_dim;
  }
  int64_t operator()(const GatedDelta& op) const {
    return op.value_heads * op.value_dim;
  }
  int64_t operator()(const RealGatedRecurrence& op) const {
    return op.width;
  }
  int64_t operator()(const LightningAttention& op) const {
    return op.heads * op.head_dim;
  }
  int64_t operator()(const LightningBlocks& op) const {
    return op.heads * op.head_dim;
  }
  int64_t operator()(const TokenShift& op) const {
    return op.x->cols();
  }
  int64_t operator()(const ChannelBlend& op) const {
    return op.x->cols();
  }
  int64_t operator()(const Rwkv7& op) const {
    return op.heads * op.head_dim;
  }
};

// Collects what an op needs, and compares it with what it was given.
class Check {
 public:
  Check(const Step& step, const KvCache& cache, int layer)
      : step_(step),
        rows_(step.num_rows()),
        state_(
            layer >= 0 && size_t(layer) < cache.spec().layers.size()
                ? cache.spec().layers[size_t(layer)].state
                : 0) {}

  void operator()(const ShortConvolution& op) {
    int64_t channels = op.convolution.channels;
    bool gated = op.form == ConvolutionForm::gated;
    input("x", op.x, gated ? 3 * channels : op.first + channels);
    convolution(op.convolution);
  }
  void operator()(const SelectiveScan& op) {
    input("x", op.x, op.channels);
    input("dt", op.dt, op.channels);
    input("B and C", op.bc, 2 * op.state_size);
    input("z", op.z, op.z_first + op.channels);
    constants("a", op.a, op.state_size * op.channels);
    constants("d", op.d, op.channels);
    state(op.state, op.state_size * op.channels);
  }
  void operator()(const StateSpaceDual& op) {
    int64_t inner = op.heads * op.head_dim;
    int64_t channels = inner + 2 * op.groups * op.state_size;
    divides("groups", op.groups, "heads", op.heads);
    input("projection", op.projection, inner + channels + op.heads);
    equal("convolution", op.convolution.channels, channels);
    convolution(op.convolution);
    constants("a", op.a, op.heads);
    constants("d", op.d, op.heads);
    constants("dt_bias", op.dt_bias, op.heads);
    norm(op.norm, inner);
    state(op.state, inner * op.state_size);
  }
  void operator()(const GatedDelta& op) {
    int64_t keys = op.key_heads * op.key_dim;
    int64_t values = op.value_heads * op.value_dim;
    divides("key heads", op.key_heads, "value heads", op.value_heads);
    int64_t group = op.value_heads / op.key_heads;
    columns("q", op.projection, op.q, op.key_heads, op.key_dim);
    columns("k", op.projection, op.k, op.key_heads, op.key_dim);
    columns("v", op.projection, op.v, op.key_heads, group * op.value_dim);
    columns("beta", op.projection, op.beta_columns, op.key_heads, group);
    columns(
        "gate", op.gate, op.gate_columns, op.key_heads, group * op.value_dim);
    int64_t rates = group * (op.decay_by_channel ? op.key_dim : 1);
    columns("decay", op.decay, op.decay_columns, op.key_heads, rates);
    equal("convolution", op.convolution.channels, 2 * keys + values);
    convolution(op.convolution);
    constants("a", op.a, op.key_heads * rates);
    constants("dt_bias", op.dt_bias, op.key_heads * rates);
    norm(op.norm, values);
    state(op.state, values * op.key_dim);
  }
  void operator()(const RealGatedRecurrence& op) {
    divides("blocks", op.blocks, "width", op.width);
    input("projection", op.projection, 2 * op.width);
    equal("convolution", op.convolution.channels, op.width);
    convolution(op.convolution);
    int64_t weights = op.width * (op.width / op.blocks);
    constants("input gate", op.input_weight, weights);
    constants("input gate bias", op.input_bias, op.width);
    constants("recurrent gate", op.recurrent_weight, weights);
    constants("recurrent gate bias", op.recurrent_bias, op.width);
    constants("decay", op.decay, op.width);
    state(op.state, op.width);
  }
  void operator()(const LightningAttention& op) {
    int64_t width = op.heads * op.head_dim;
    input("projection", op.projection, 4 * width);
    constants("decay", op.decay, op.heads);
    norm(op.norm, width);
    state(op.state, width * op.head_dim);
  }
  void operator()(const LightningBlocks& op) {
    int64_t width = op.heads * op.head_dim;
    input("projection", op.projection, 4 * width);
    constants("query decay", op.query_decay, op.heads * op.size);
    constants("key decay", op.key_decay, op.heads * op.size);
    constants("decay inside", op.inside, op.heads * op.size * op.size);
    constants("block decay", op.block_decay, op.heads);
    norm(op.norm, width);
    for (const Segment& segment : step_.segments) {
      equal("the segment's first position", segment.position, 0);
    }
  }
  void operator()(const TokenShift& op) {
    input("x", op.x, 1);
    state(op.state, op.x->cols());
  }
  void operator()(const ChannelBlend& op) {
    input("x", op.x, 1);
    input("delta", op.delta, op.x->cols());
    constants("mix", op.mix, op.x->cols());
  }
  void operator()(const Rwkv7& op) {
    int64_t width = op.heads * op.head_dim;
    for (const Tensor* tensor : {op.r, op.w, op.k, op.v, op.a, op.g}) {
      input("an input", tensor, width);
    }
    if (op.v_mix != nullptr) {
      input("v_mix", op.v_mix, width);
      input("v_first", op.v_first, width);
    }
    for (const Constants* numbers :
         {op.k_k, op.k_a, op.r_k, op.norm_weight, op.norm_bias}) {
      constants("a vector", numbers, width);
    }
    state(op.state, width * op.head_dim);
  }

 private:
  [[noreturn]] static void fail(const std::string& what, std::string why) {
    throw ShapeError(
        cat("recurrence: ", what),
        std::move(why),
        "check the sizes in config.json against the weights");
  }
  static void equal(const char* name, int64_t have, int64_t need) {
    if (have != need) {
      fail(cat(name, " does not fit"), cat("it has ", have, ", not ", need));
    }
  }
  void input(const char* name, const Tensor* tensor, int64_t cols) const {
    if (tensor == nullptr || tensor->rows() != rows_ || tensor->cols() < cols) {
      fail(
          cat(name, " does not fit"),
          tensor == nullptr ? "it is missing"
                            : cat("[",
                                  tensor->rows(),
                                  ", ",
                                  tensor->cols(),
                                  "], expected [",
                                  rows_,
                                  ", ",
                                  cols,
                                  "] or more columns"));
    }
  }
  void columns(
      const char* name,
      const Tensor* tensor,
      const HeadColumns& place,
      int heads,
      int64_t width) const {
    input(name, tensor, place.first + (heads - 1) * place.stride + width);
  }
  static void constants(
      const char* name, const Constants* values, int64_t size) {
    if (values == nullptr || values->size() != size) {
      fail(
          cat(name, " does not fit"),
          cat("it has ", values ? values->size() : 0, " values, not ", size));
    }
  }
  static void divides(
      const char* name, int64_t divisor, const char* whole, int64_t count) {
    if (divisor <= 0 || count <= 0 || count % divisor != 0) {
      fail(
          cat(whole, " do not divide into ", name),
          cat(count, " ", whole, ", ", divisor, " ", name));
    }
  }
  void convolution(const Convolution& conv) const {
    if (conv.taps < 1) {
      fail("the convolution has no taps", cat(conv.taps));
    }
    constants("convolution", conv.weight, conv.taps * conv.channels);
    if (conv.bias != nullptr) {
      constants("convolution bias", conv.bias, conv.channels);
    }
    state(conv.state, conv.state_size());
  }
  static void norm(const GatedNorm& norm, int64_t features) {
    if (norm.gate == GateForm::silu) {
      return;
    }
    divides("groups of the norm", norm.group, "features", features);
    constants(
        "norm",
        norm.weight,
        norm.weight && norm.weight->size() == norm.group ? norm.group
                                                         : features);
  }
  void state(int64_t first, int64_t size) const {
    if (first < 0 || first + size > state_) {
      throw ShapeError(
          "recurrence: the cache's layer does not fit",
          cat("values [", first, ", ", first + size, ") of ", state_),
          "make the cache from the model's own specification");
    }
  }

  const Step& step_;
  int64_t rows_, state_;
};

}  // namespace

int64_t output_columns(const Recurrence& op) {
  return std::visit(Columns(), op);
}

Tensor ops::recurrence(
    Backend& backend,
    const Step& step,
    const Recurrence& op,
    KvCache& cache,
    int layer) {
  std::visit(Check(step, cache, layer), op);
  if (!std::holds_alternative<ChannelBlend>(op)) {
    for (const Segment& segment : step.segments) {
      if (segment.state < 0 || segment.state >= cache.num_states()) {
        throw ShapeError(
            "recurrence: the sequence has no slot of recurrent state",
            cat("slot ", segment.state, " of ", cache.num_states()),
            "reserve the slots in the cache before the step");
      }
    }
  }
  return backend.recurrence(step, op, cache, layer);
}

}  // namespace mlxcel

#include "models/lightning.h"

#include "core/error.h"
#include "models/recurrent_mixer.h"

#include <cmath>

namespace mlxcel {

namespace {

class Lightning : public RecurrentMixer<LightningAttention> {
 public:
  Lightning(const PartBuilder& builder, const LightningSpec& spec, int layer)
      : RecurrentMixer(layer) {
    std::string role = cat("layers.", layer, ".lightning.");
    in_ = builder.linear({role + "qkv", role + "gate"}, false);
    out_ = builder.linear({role + "out"}, false);
    norm_ =
        vector_constants(builder, role + "norm", spec.heads * spec.head_dim);
    std::vector<float> slopes, decay;
    for (int head = 1; head <= spec.heads; ++head) {
      double slope = std::exp2(-8.0 * head / spec.heads);
      slopes.push_back(float(slope * double(spec.slope_factor)));
      decay.push_back(std::exp(-slopes.back()));
    }
    check_slopes(builder, role + "slope", slopes);
    decay_ = builder.backend().prepare_constants(std::move(decay));
    op_ = {
        .heads = spec.heads,
        .head_dim = spec.head_dim,
        .decay = decay_.get(),
        .norm = {
            .gate = GateForm::sigmoid_of_norm,
            .weight = norm_.get(),
            .group = spec.heads * spec.head_dim,
            .eps = spec.norm_eps}};
  }

 private:
  // Checkpoints may carry the rates, and tables made of them.
  static void check_slopes(
      const PartBuilder& builder,
      const std::string& role,
      const std::vector<float>& slopes) {
    if (!builder.has(role)) {
      return;
    }
    int64_t heads = int64_t(slopes.size());
    std::vector<float> stored =
        read_numbers(builder, role, {{heads, 1, 1}, {heads}});
    for (size_t head = 0; head < slopes.size(); ++head) {
      constexpr float tolerance = 1e-2f;  // of bf16, with room
      if (!(std::fabs(stored[head] - slopes[head]) <=
            tolerance * slopes[head])) {
        throw CheckpointError(
            cat("the decay rates in ", role, " are not the model's"),
            cat("head ",
                head,
                " has ",
                stored[head],
                ", the layer's place gives ",
                slopes[head]),
            "take the weights from the model's original publisher");
      }
    }
  }

  ConstantsPtr norm_, decay_;
};

}  // namespace

std::vector<RoleShape> LightningSpec::roles(int64_t hidden_size) const {
  int64_t inner = heads * head_dim;
  return {
      {"lightning.qkv", 3 * inner, hidden_size, "lightning.in"},
      {"lightning.gate", inner, hidden_size, "lightning.in"},
      {"lightning.norm", inner, 0, {}},
      {"lightning.slope", heads, 0, {}},
      {"lightning.out", hidden_size, inner, {}}};
}

KvLayerSpec LightningSpec::cache() const {
  return {.state = heads * head_dim * head_dim};
}

int64_t LightningSpec::columns() const {
  return 8 * heads * head_dim;
}

std::unique_ptr<Sublayer> LightningSpec::build(
    const PartBuilder& builder, const BlockSpec&, int layer) const {
  return std::make_unique<Lightning>(builder, *this, layer);
}

}  // namespace mlxcel

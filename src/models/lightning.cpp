#include "models/lightning.h"

#include "core/error.h"
#include "models/recurrent_mixer.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace mlxcel {

namespace {

// What a checkpoint stores of a layer's decays.
struct DecayTables {
  std::vector<float> slope;     // [heads]
  std::vector<float> query;     // [heads, block]
  std::vector<float> key;       // [heads, block]
  std::vector<float> diagonal;  // [heads, block, block]
};

constexpr const char* kTableRoles[] = {
    "slope", "query_decay", "key_decay", "diagonal_decay"};

std::vector<float> read_table(
    const PartBuilder& builder,
    const std::string& role,
    const std::vector<Shape>& shapes) {
  WeightTensor tensor = builder.tensor(role, shapes);
  std::vector<float> numbers(size_t(element_count(tensor.shape)));
  read_as_f32(tensor, numbers.data());
  auto bad = std::find_if(numbers.begin(), numbers.end(), [](float number) {
    return !std::isfinite(number);
  });
  if (bad != numbers.end()) {
    throw CheckpointError(
        cat("the decays in ", builder.key_of(role), " are no numbers"),
        cat(tensor.file, ": entry ", bad - numbers.begin(), " is ", *bad),
        "take the weights from the model's original publisher");
  }
  return numbers;
}

// `role`: up to the last dot. Nothing where the checkpoint has no tables.
std::optional<DecayTables> read_tables(
    const PartBuilder& builder,
    const std::string& role,
    const LightningSpec& spec) {
  std::vector<std::string> missing;
  for (const char* kind : kTableRoles) {
    if (!builder.has(role + kind)) {
      missing.push_back(builder.names().stems_of(role + kind).front().stem);
    }
  }
  if (missing.size() == std::size(kTableRoles)) {
    return std::nullopt;
  }
  if (!missing.empty()) {
    throw CheckpointError(
        cat("the checkpoint has no ", missing.front()),
        "it has others of the layer's decay tables, which belong together: "
        "slope_rate, query_decay, key_decay and diagonal_decay",
        "take the weights from the model's original publisher");
  }
  int64_t heads = spec.heads, size = spec.block_size;
  DecayTables tables;
  tables.slope = read_table(builder, role + "slope", {{heads, 1, 1}, {heads}});
  tables.query = read_table(
      builder, role + "query_decay", {{heads, size, 1}, {heads, size}});
  tables.key = read_table(
      builder, role + "key_decay", {{heads, size, 1}, {heads, size}});
  tables.diagonal = read_table(
      builder,
      role + "diagonal_decay",
      {{1, heads, size, size}, {heads, size, size}});
  return tables;
}

// Whether the tables are those of the rates s, with i and j counted from 0:
// exp(-s (i + 1)), exp(-s (size - 1 - i)), exp(-s (i - j)) or 0 where j > i.
bool follow_from_slopes(const DecayTables& tables, int64_t size) {
  // Tables of bf16, which may stand in a wider type by now: a rounding of the
  // rate, of the exponent and of the result.
  constexpr float tolerance = 1.0f / 128;
  auto near = [](float stored, float derived) {
    return std::isfinite(derived) &&
           std::fabs(stored - derived) <=
               tolerance * std::max(1.0f, std::fabs(derived));
  };
  std::vector<float> powers(size_t(size) + 1);
  for (size_t head = 0; head < tables.slope.size(); ++head) {
    for (size_t n = 0; n < powers.size(); ++n) {
      powers[n] = std::exp(-tables.slope[head] * float(n));
    }
    const float* query = tables.query.data() + int64_t(head) * size;
    const float* key = tables.key.data() + int64_t(head) * size;
    const float* row = tables.diagonal.data() + int64_t(head) * size * size;
    for (int64_t i = 0; i < size; ++i, row += size) {
      if (!near(query[i], powers[size_t(i + 1)]) ||
          !near(key[i], powers[size_t(size - 1 - i)])) {
        return false;
      }
      for (int64_t j = 0; j < size; ++j) {
        if (!near(row[j], j > i ? 0 : powers[size_t(i - j)])) {
          return false;
        }
      }
    }
  }
  return true;
}

// exp(-n s) of each rate s.
std::vector<float> decays_of(
    const PartBuilder& builder,
    const std::string& role,
    const std::vector<float>& slopes,
    int64_t n) {
  std::vector<float> decays;
  for (float slope : slopes) {
    decays.push_back(std::exp(-slope * float(n)));
    if (!std::isfinite(decays.back())) {
      throw CheckpointError(
          cat("a state grows without bound by ", builder.key_of(role)),
          cat("a rate is ", slope, ", over ", n, " tokens"),
          "take the weights from the model's original publisher");
    }
  }
  return decays;
}

// The rates of the layer's place, as the published class computes them.
std::vector<float> own_slopes(const LightningSpec& spec) {
  std::vector<float> slopes;
  for (int head = 1; head <= spec.heads; ++head) {
    double slope = std::exp2(-8.0 * head / spec.heads);
    slopes.push_back(float(slope * double(spec.slope_factor)));
  }
  return slopes;
}

// What both forms of the layer read.
template <typename Op>
class LightningMixer : public RecurrentMixer<Op> {
 protected:
  LightningMixer(
      const PartBuilder& builder, const LightningSpec& spec, int layer)
      : RecurrentMixer<Op>(layer) {
    std::string role = cat("layers.", layer, ".lightning.");
    this->in_ = builder.linear({role + "qkv", role + "gate"}, false);
    this->out_ = builder.linear({role + "out"}, false);
    int64_t inner = spec.heads * spec.head_dim;
    norm_ = vector_constants(builder, role + "norm", inner);
    this->op_.heads = spec.heads;
    this->op_.head_dim = spec.head_dim;
    this->op_.norm = {
        .gate = GateForm::sigmoid_of_norm,
        .weight = norm_.get(),
        .group = inner,
        .eps = spec.norm_eps};
  }

 private:
  ConstantsPtr norm_;
};

class Lightning : public LightningMixer<LightningAttention> {
 public:
  Lightning(
      const PartBuilder& builder,
      const LightningSpec& spec,
      int layer,
      std::vector<float> decay)
      : LightningMixer(builder, spec, layer) {
    decay_ = builder.backend().prepare_constants(std::move(decay));
    op_.decay = decay_.get();
  }

 private:
  ConstantsPtr decay_;
};

class LightningByTables : public LightningMixer<LightningBlocks> {
 public:
  LightningByTables(
      const PartBuilder& builder,
      const LightningSpec& spec,
      int layer,
      DecayTables tables,
      std::vector<float> block_decay)
      : LightningMixer(builder, spec, layer) {
    Backend& backend = builder.backend();
    query_ = backend.prepare_constants(std::move(tables.query));
    key_ = backend.prepare_constants(std::move(tables.key));
    inside_ = backend.prepare_constants(std::move(tables.diagonal));
    block_ = backend.prepare_constants(std::move(block_decay));
    op_.size = spec.block_size;
    op_.query_decay = query_.get();
    op_.key_decay = key_.get();
    op_.inside = inside_.get();
    op_.block_decay = block_.get();
  }

 private:
  ConstantsPtr query_, key_, inside_, block_;
};

}  // namespace

std::vector<RoleShape> LightningSpec::roles(int64_t hidden_size) const {
  int64_t inner = heads * head_dim;
  std::vector<RoleShape> out = {
      {"lightning.qkv", 3 * inner, hidden_size, "lightning.in"},
      {"lightning.gate", inner, hidden_size, "lightning.in"},
      {"lightning.norm", inner, 0, {}},
      {"lightning.out", hidden_size, inner, {}}};
  for (const char* kind : kTableRoles) {
    out.push_back({cat("lightning.", kind), heads, 0, {}});
  }
  return out;
}

KvLayerSpec LightningSpec::cache() const {
  return {.state = heads * head_dim * head_dim};
}

int64_t LightningSpec::columns() const {
  return 8 * heads * head_dim;
}

std::unique_ptr<Sublayer> LightningSpec::build(
    const PartBuilder& builder, const BlockSpec&, int layer) const {
  std::string role = cat("layers.", layer, ".lightning.");
  auto tables = read_tables(builder, role, *this);
  std::string slope = role + "slope";
  if (tables && !follow_from_slopes(*tables, block_size)) {
    builder.need_whole_sequence(role + "diagonal_decay");
    auto decays = decays_of(builder, slope, tables->slope, block_size);
    return std::make_unique<LightningByTables>(
        builder, *this, layer, std::move(*tables), std::move(decays));
  }
  auto decays =
      decays_of(builder, slope, tables ? tables->slope : own_slopes(*this), 1);
  return std::make_unique<Lightning>(builder, *this, layer, std::move(decays));
}

}  // namespace mlxcel

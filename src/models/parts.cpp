#include "models/parts.h"

#include "core/error.h"
#include "core/row_kernels.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

namespace mlxcel {

namespace {

// Elements [first, first + count) of a vector: a view.
WeightTensor slice_vector(
    const WeightTensor& vector, int64_t first, int64_t count) {
  WeightTensor out = vector;
  out.shape = {count};
  out.data = vector.data + size_t(first) * size_of(vector.dtype);
  out.bytes = size_t(count) * size_of(vector.dtype);
  return out;
}

// A head's bias, or zeros, with -infinity for tokens that are never chosen.
WeightTensor masked_bias(
    const WeightTensor* stored,
    int64_t size,
    const std::vector<int32_t>& tokens) {
  std::vector<float> values(static_cast<size_t>(size));
  if (stored != nullptr) {
    read_as_f32(*stored, values.data());
  }
  for (int32_t token : tokens) {
    if (token >= 0 && token < size) {
      values[size_t(token)] = -std::numeric_limits<float>::infinity();
    }
  }
  std::byte* data = nullptr;
  WeightTensor bias = make_weight(DType::f32, {size}, &data);
  std::memcpy(data, values.data(), bias.bytes);
  return bias;
}

// Divides each row of a float matrix by its length, in a copy.
void normalize_rows(MatrixWeight& matrix) {
  const WeightTensor& old = matrix.weight;
  std::byte* data = nullptr;
  WeightTensor out = make_weight(old.dtype, old.shape, &data);
  size_t row_bytes = size_t(matrix.in) * size_of(old.dtype);
  std::vector<float> row(static_cast<size_t>(matrix.in));
  for (int64_t r = 0; r < matrix.out; ++r) {
    convert_to_f32(
        old.dtype, old.data + size_t(r) * row_bytes, matrix.in, row.data());
    double squares = 0;
    for (float value : row) {
      squares += double(value) * double(value);
    }
    // torch.nn.functional.normalize's bound for rows of zeros
    double length = std::max(std::sqrt(squares), 1e-12);
    for (float& value : row) {
      value = float(double(value) / length);
    }
    convert_from_f32(
        row.data(), matrix.in, old.dtype, data + size_t(r) * row_bytes);
  }
  matrix.weight = std::move(out);
}

// Divides each column of a float matrix by its length and a little, in a copy.
void normalize_columns(MatrixWeight& matrix) {
  const WeightTensor& old = matrix.weight;
  auto rows = size_t(matrix.out), cols = size_t(matrix.in);
  std::vector<float> values(rows * cols);
  read_as_f32(old, values.data());
  std::vector<double> lengths(cols);
  for (size_t i = 0; i < values.size(); ++i) {
    lengths[i % cols] += double(values[i]) * double(values[i]);
  }
  for (double& length : lengths) {
    length = std::sqrt(length) + 1e-7;
  }
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = float(double(values[i]) / lengths[i % cols]);
  }
  std::byte* data = nullptr;
  WeightTensor out = make_weight(old.dtype, old.shape, &data);
  convert_from_f32(values.data(), int64_t(values.size()), old.dtype, data);
  matrix.weight = std::move(out);
}

int64_t total_rows(const NameMap& names, std::string_view stem) {
  int64_t rows = 0;
  for (const RolePart& part : names.parts_of(stem)) {
    rows += part.count;
  }
  return rows;
}

}  // namespace

StemRows PartBuilder::require(std::string_view role) const {
  const NameMap& names = inputs_.names;
  if (auto rows = names.locate(role, inputs_.source.weights())) {
    return *std::move(rows);
  }
  std::string accepted;
  for (const StemRows& rows : names.stems_of(role)) {
    accepted += cat(accepted.empty() ? "" : ", ", rows.stem, ".weight");
  }
  throw CheckpointError(
      cat("the checkpoint has no tensor for ", role),
      cat("its config.json asks for it; looked for ", accepted),
      role == "head"
          ? "check that all weight files are there; where the embedding table "
            "is the head too, config.json says so by tie_word_embeddings"
          : "check that all weight files are there and that config.json is "
            "theirs");
}

std::vector<MatrixWeight> PartBuilder::matrices(std::string_view role) const {
  StemRows rows = require(role);
  int64_t total = total_rows(inputs_.names, rows.stem);
  int64_t cols = inputs_.names.cols(parse_role(role));
  MatrixWeight whole =
      rows.stacked > 0
          ? inputs_.source.stack(
                rows.stem, rows.stacked, total / rows.stacked, cols)
          : inputs_.source.matrix(rows.stem, total, cols);
  if (rows.count == total) {
    return {whole};
  }
  std::vector<MatrixWeight> out;
  for (const StemRows& run :
       inputs_.names.locate_all(role, inputs_.source.weights())) {
    out.push_back(slice_rows(whole, run.first, run.count));
  }
  return out;
}

bool PartBuilder::has(std::string_view role) const {
  return inputs_.names.locate(role, inputs_.source.weights()).has_value();
}

MatrixWeight PartBuilder::matrix(std::string_view role) const {
  return matrices(role).front();
}

std::vector<WeightTensor> PartBuilder::vectors(
    std::string_view role, std::string_view suffix) const {
  StemRows rows = require(role);
  int64_t total = total_rows(inputs_.names, rows.stem);
  WeightTensor whole =
      inputs_.source.tensor(cat(rows.stem, ".", suffix), {total});
  if (rows.count == total) {
    return {whole};
  }
  std::vector<WeightTensor> out;
  for (const StemRows& run :
       inputs_.names.locate_all(role, inputs_.source.weights())) {
    out.push_back(slice_vector(whole, run.first, run.count));
  }
  return out;
}

WeightTensor PartBuilder::vector(
    std::string_view role, std::string_view suffix) const {
  return vectors(role, suffix).front();
}

std::vector<LowRankTerm> PartBuilder::take_terms(std::string_view slot) const {
  auto found = inputs_.terms.find(slot);
  if (found == inputs_.terms.end()) {
    return {};
  }
  std::vector<LowRankTerm> terms = std::move(found->second);
  inputs_.terms.erase(found);
  return terms;
}

std::unique_ptr<Linear> PartBuilder::linear(
    const std::vector<std::string>& roles, bool bias, size_t unbiased) const {
  LinearWeights weights;
  weights.name = inputs_.names.slot_of(parse_role(roles.front()));
  for (size_t i = 0; i < roles.size(); ++i) {
    for (MatrixWeight& part : matrices(roles[i])) {
      weights.parts.push_back(std::move(part));
    }
    if (bias && i + unbiased < roles.size()) {
      for (WeightTensor& part : vectors(roles[i], "bias")) {
        weights.biases.emplace_back(std::move(part));
      }
    } else if (bias) {
      weights.biases.resize(weights.parts.size());
    }
  }
  weights.terms = take_terms(weights.name);
  return inputs_.backend.prepare_linear(std::move(weights));
}

std::unique_ptr<Experts> PartBuilder::experts(
    int layer,
    int count,
    const std::vector<std::string>& parts,
    bool bias) const {
  ExpertWeights weights;
  weights.name = cat("layers.", layer, ".moe.experts.", parts.back());
  weights.experts.resize(size_t(count));
  for (const std::string& part : parts) {
    auto role = [&](int expert) {
      return cat("layers.", layer, ".moe.experts.", expert, ".", part);
    };
    StemRows first = require(role(0));
    std::optional<MatrixWeight> stack;
    std::optional<WeightTensor> biases;
    if (first.stacked > 0) {
      int64_t rows = total_rows(inputs_.names, first.stem) / count;
      stack = inputs_.source.stack(
          first.stem, count, rows, inputs_.names.cols(parse_role(role(0))));
      if (bias) {
        biases = inputs_.source.tensor(cat(first.stem, ".bias"), {count, rows});
      }
    }
    for (int expert = 0; expert < count; ++expert) {
      LinearWeights& linear = weights.experts[size_t(expert)];
      linear.name = role(expert);
      if (!stack) {
        linear.parts.push_back(matrix(linear.name));
        if (bias) {
          linear.biases.emplace_back(vector(linear.name, "bias"));
        }
        continue;
      }
      StemRows rows = require(linear.name);
      linear.parts.push_back(slice_rows(*stack, rows.first, rows.count));
      if (biases) {
        linear.biases.emplace_back(
            slice_vector(*biases, rows.first, rows.count));
      }
    }
  }
  return inputs_.backend.prepare_experts(std::move(weights));
}

std::unique_ptr<Embedding> PartBuilder::embedding(std::string_view role) const {
  return inputs_.backend.prepare_embedding(
      {.table = matrix(role), .terms = take_terms(role)});
}

std::unique_ptr<Linear> PartBuilder::head(const DecoderSpec& spec) const {
  bool own = spec.head == HeadKind::own ||
             inputs_.names.locate("head", inputs_.source.weights());
  LinearWeights weights;
  weights.name = "head";
  weights.parts.push_back(matrix(own ? "head" : "embedding"));
  MatrixWeight& table = weights.parts.front();
  if (!table.quant.packed()) {
    if (spec.extras.head.rows == HeadRows::normalized) {
      normalize_rows(table);
    } else if (spec.extras.head.rows == HeadRows::columns_normalized) {
      normalize_columns(table);
    }
  }
  if (spec.extras.head.bias == HeadBias::stored) {
    weights.biases.emplace_back(vector("head", "bias"));
  }
  if (const auto& tokens = spec.extras.head.masked_tokens; !tokens.empty()) {
    weights.biases = {masked_bias(
        weights.biases.empty() ? nullptr : &*weights.biases.front(),
        table.out,
        tokens)};
  }
  weights.terms = take_terms("head");
  return inputs_.backend.prepare_linear(std::move(weights));
}

std::unique_ptr<Norm> PartBuilder::norm(
    std::string_view role, const NormSpec& spec) const {
  NormWeights weights{
      .kind = spec.kind,
      .size = inputs_.names.rows(parse_role(role)),
      .eps = spec.eps,
      .weight_offset = spec.weight_offset};
  if (spec.tensors == NormTensors::none) {
    weights.size = inputs_.names.spec().hidden_size;
    return inputs_.backend.prepare_norm(std::move(weights));
  }
  weights.weight = vector(role, "weight");
  if (spec.kind == NormKind::layer && spec.tensors == NormTensors::usual) {
    weights.bias = vector(role, "bias");
  }
  return inputs_.backend.prepare_norm(std::move(weights));
}

std::unique_ptr<Norm> PartBuilder::norm_of_heads(
    std::string_view role, const NormSpec& spec, int heads) const {
  NormWeights weights{
      .kind = spec.kind,
      .size = inputs_.names.rows(parse_role(role)),
      .eps = spec.eps,
      .weight_offset = spec.weight_offset,
      .parts = heads};
  const int64_t dim = weights.size / heads;
  if (has(role)) {
    weights.weight = tensor(role, {{heads, dim}});
    return inputs_.backend.prepare_norm(std::move(weights));
  }
  std::byte* data = nullptr;
  weights.weight = make_weight(DType::f32, {weights.size}, &data);
  for (int head = 0; head < heads; ++head) {
    std::vector<float> values(static_cast<size_t>(dim));
    read_as_f32(tensor(cat(role, "s.", head), {{dim}}), values.data());
    size_t bytes = values.size() * sizeof(float);
    std::memcpy(data + size_t(head) * bytes, values.data(), bytes);
  }
  return inputs_.backend.prepare_norm(std::move(weights));
}

std::shared_ptr<const Rope> PartBuilder::rope(const RopeTable* table) const {
  if (table == nullptr) {
    return nullptr;
  }
  std::shared_ptr<const Rope>& rope = ropes_[table];
  if (rope == nullptr) {
    rope = inputs_.backend.prepare_rope(*table);
  }
  return rope;
}

int64_t PartBuilder::rope_switch_length() const {
  int64_t least = 0;
  for (const auto& [table, rope] : ropes_) {
    if (table && table->switch_length > 0) {
      least = least == 0 ? table->switch_length
                         : std::min(least, table->switch_length);
    }
  }
  return least;
}

std::unique_ptr<Embedding> PartBuilder::row(std::string_view role) const {
  int64_t size = inputs_.names.rows(parse_role(role));
  MatrixWeight table{.name = std::string(role), .out = 1, .in = size};
  table.weight = tensor(role, {{size}});
  table.weight.shape = {1, size};
  return inputs_.backend.prepare_embedding({.table = std::move(table)});
}

WeightTensor PartBuilder::tensor(
    std::string_view role, const std::vector<Shape>& shapes) const {
  StemRows rows = require(role);
  std::string key = cat(rows.stem, ".weight");
  if (!inputs_.source.has(key)) {
    key = rows.stem;
  }
  const int64_t total = total_rows(inputs_.names, rows.stem);
  const bool part = rows.count < total;
  std::vector<Shape> accepted = shapes;
  for (Shape& shape : accepted) {
    if (part && !shape.empty()) {
      shape.front() = total;
    }
  }
  const WeightTensor& found = inputs_.source.weights().at(key);
  auto fits = std::find(accepted.begin(), accepted.end(), found.shape);
  WeightTensor whole = inputs_.source.tensor(
      key, fits == accepted.end() ? accepted.front() : *fits);
  if (part && !whole.shape.empty()) {
    size_t row = whole.bytes / size_t(total);
    whole.shape.front() = rows.count;
    whole.data += size_t(rows.first) * row;
    whole.bytes = size_t(rows.count) * row;
  }
  return whole;
}

}  // namespace mlxcel

#include "support/models/reference_backend.h"

#include "support/models/reference_activation.h"
#include "support/models/reference_cache.h"
#include "support/models/reference_latent.h"
#include "support/models/reference_parts.h"
#include "support/models/reference_recurrence.h"
#include "support/models/reference_routing.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

namespace mlxcel::testing {

namespace {

using namespace reference;

class ReferenceBackend : public Backend {
 public:
  std::string description() const override {
    return "reference";
  }
  std::unique_ptr<Linear> prepare_linear(LinearWeights weights) override {
    return reference_linear(weights);
  }
  std::unique_ptr<Experts> prepare_experts(ExpertWeights weights) override {
    std::vector<std::unique_ptr<ReferenceLinear>> experts;
    for (const LinearWeights& expert : weights.experts) {
      experts.push_back(reference_linear(expert));
    }
    return std::make_unique<ReferenceExperts>(std::move(experts));
  }
  std::unique_ptr<HeadLinear> prepare_heads(HeadWeights weights) override {
    std::vector<std::unique_ptr<ReferenceLinear>> heads;
    for (const LinearWeights& head : weights.heads) {
      heads.push_back(reference_linear(head));
    }
    return std::make_unique<ReferenceHeads>(std::move(heads));
  }
  std::unique_ptr<Embedding> prepare_embedding(
      EmbeddingWeights weights) override {
    return std::make_unique<ReferenceEmbedding>(weights);
  }
  std::unique_ptr<Norm> prepare_norm(NormWeights weights) override {
    return std::make_unique<ReferenceNorm>(weights);
  }
  std::unique_ptr<Rope> prepare_rope(RopeTable table) override {
    return std::make_unique<ReferenceRope>(std::move(table));
  }
  std::unique_ptr<Constants> prepare_constants(
      std::vector<float> values) override {
    return std::make_unique<ReferenceConstants>(values);
  }
  std::unique_ptr<KvCache> make_kv_cache(const KvCacheSpec& spec) override {
    return std::make_unique<ReferenceCache>(spec);
  }

  Tensor embed(const Step& step, const Embedding& table, float scale) override {
    const auto& own = static_cast<const ReferenceEmbedding&>(table);
    Rows out;
    for (const Segment& segment : step.segments) {
      for (int i = 0; i < segment.num_rows; ++i) {
        size_t token = size_t(step.tokens[size_t(segment.first_row + i)]);
        Row row = own.table[token];
        for (const Term& term : own.terms) {
          for (size_t c = 0; c < row.size(); ++c) {
            row[c] +=
                adapter_scale(segment, term.adapter) * term.matrix[token][c];
          }
        }
        for (double& value : row) {
          value *= double(scale);
        }
        out.push_back(std::move(row));
      }
    }
    return wrap(std::move(out), table.hidden());
  }

  Tensor norm(const Step&, const Tensor& x, const Norm& norm) override {
    Rows rows = rows_of(x);
    for (Row& row : rows) {
      static_cast<const ReferenceNorm&>(norm).apply(row, 0, row.size());
    }
    return wrap(std::move(rows), x.cols());
  }

  Tensor linear(
      const Step& step,
      const Tensor& x,
      const Linear& weight,
      const LinearOptions& options) override {
    Rows rows = rows_of(x);
    normalize(rows, options.norm);
    return wrap(finish(multiply(step, rows, weight), options), weight.out());
  }

  Tensor mlp(
      const Step& step,
      const Tensor& x,
      const MlpWeights& weights,
      const LinearOptions& options) override {
    Rows rows = rows_of(x);
    normalize(rows, options.norm);
    return wrap(
        finish(dense_mlp(step, rows, weights), options), weights.down->out());
  }

  Tensor moe(
      const Step& step,
      const Tensor& x,
      const MoeWeights& weights,
      const LinearOptions& options) override {
    Rows rows = rows_of(x);
    normalize(rows, options.norm);
    Rows logits = weights.logits != nullptr
                      ? rows_of(*weights.logits)
                      : multiply(step, rows, *weights.router);
    Rows out;
    if (weights.shared.up != nullptr) {
      out = dense_mlp(step, rows, weights.shared);
      Rows gates = weights.shared_gate != nullptr
                       ? multiply(step, rows, *weights.shared_gate)
                       : Rows(rows.size(), Row{INFINITY});
      for (size_t r = 0; r < rows.size(); ++r) {
        for (double& value : out[r]) {
          value /= 1 + std::exp(-gates[r][0]);
        }
      }
    } else {
      out.assign(rows.size(), Row(size_t(weights.down->out())));
    }
    for (size_t r = 0; r < rows.size(); ++r) {
      add_experts(rows[r], logits[r], weights, out[r]);
    }
    return wrap(finish(std::move(out), options), weights.down->out());
  }

  Tensor attention(
      const Step& step,
      const Tensor& qkv,
      const AttentionArgs& args,
      KvCache& cache,
      int layer,
      const Tensor* shared) override {
    auto& entries = static_cast<ReferenceCache&>(cache).entries[size_t(layer)];
    Rows out;
    for (const Segment& segment : step.segments) {
      Rows queries;
      for (int i = 0; i < segment.num_rows; ++i) {
        size_t r = size_t(segment.first_row + i);
        int64_t position = segment.position + i;
        queries.push_back(
            prepared(rows_of(qkv)[r], 0, true, args, segment, position));
        if (args.key_values != KeyValues::cached) {
          const Row& source = rows_of(shared ? *shared : qkv)[r];
          entries[place(segment, position)] =
              key_and_value(source, args, segment, position);
        }
      }
      for (int i = 0; i < segment.num_rows; ++i) {
        Row row = attend(
            queries[size_t(i)], segment, segment.position + i, args, entries);
        if (args.gated) {
          const Row& all = rows_of(qkv)[size_t(segment.first_row + i)];
          for (size_t c = 0; c < row.size(); ++c) {
            row[c] /= 1 + std::exp(-all[all.size() - row.size() + c]);
          }
        }
        out.push_back(std::move(row));
      }
    }
    return wrap(std::move(out), int64_t(args.num_heads) * args.head_dim);
  }

  Tensor latent_attention(
      const Step& step,
      const Tensor& q,
      const Tensor& kv,
      const LatentAttentionArgs& args,
      KvCache& cache,
      int layer) override {
    auto& entries = static_cast<ReferenceCache&>(cache).entries[size_t(layer)];
    return reference::latent_attention(
        step,
        q,
        kv,
        args,
        [&](const Segment& segment, int64_t position) -> CacheEntry& {
          return entries[place(segment, position)];
        });
  }

  Tensor recurrence(
      const Step& step,
      const Recurrence& op,
      KvCache& cache,
      int layer) override {
    return reference::recurrence(
        step, op, static_cast<ReferenceCache&>(cache).states[size_t(layer)]);
  }

  Tensor add(
      const Step&, const Tensor& x, const Tensor& y, float scale) override {
    Rows rows = rows_of(x);
    for (size_t r = 0; r < rows.size(); ++r) {
      for (size_t c = 0; c < rows[r].size(); ++c) {
        rows[r][c] += double(scale) * rows_of(y)[r][c];
      }
    }
    return wrap(std::move(rows), x.cols());
  }

  Tensor multiply(
      const Step&,
      const Tensor& x,
      const Tensor* y,
      const MultiplyOptions& options) override {
    Rows rows = rows_of(x);
    for (size_t r = 0; r < rows.size(); ++r) {
      for (size_t c = 0; c < rows[r].size(); ++c) {
        rows[r][c] = double(options.scale) *
                     reference::activate(options.activation, rows[r][c]) *
                     (y ? rows_of(*y)[r][size_t(options.column) + c] : 1);
      }
    }
    return wrap(std::move(rows), x.cols());
  }

  Tensor weighted_sum(
      const Step&,
      const Tensor& base,
      const std::vector<Tensor>& inputs,
      const Tensor& weights,
      int64_t first) override {
    Rows rows = rows_of(base);
    for (size_t r = 0; r < rows.size(); ++r) {
      for (size_t k = 0; k < inputs.size(); ++k) {
        for (size_t c = 0; c < rows[r].size(); ++c) {
          rows[r][c] +=
              rows_of(weights)[r][size_t(first) + k] * rows_of(inputs[k])[r][c];
        }
      }
    }
    return wrap(std::move(rows), base.cols());
  }

  Tensor match_size(const Step&, const Tensor& x, const Tensor& like) override {
    Rows rows = rows_of(x);
    for (size_t r = 0; r < rows.size(); ++r) {
      double size = double(rows[r].size());
      double own = std::max(dot(rows[r], rows[r]) / size, 1e-5);
      const Row& other = rows_of(like)[r];
      for (double& value : rows[r]) {
        value *= std::sqrt(dot(other, other) / size / own);
      }
    }
    return wrap(std::move(rows), x.cols());
  }

  Tensor cut_below(
      const Step&,
      const Tensor& x,
      int64_t columns,
      float deviations) override {
    Rows rows = rows_of(x);
    for (Row& row : rows) {
      row.resize(size_t(columns));
      double mean = 0, variance = 0;
      for (double value : row) {
        mean += value / double(columns);
      }
      for (double value : row) {
        variance += std::pow(value - mean, 2) / double(columns);
      }
      double cut = mean + double(deviations) * std::sqrt(variance);
      for (double& value : row) {
        value = std::max(0.0, value - cut);
      }
    }
    return wrap(std::move(rows), columns);
  }

  Tensor head(
      const Step& step, const Tensor& x, const HeadArgs& args) override {
    Rows rows = rows_of(x);
    normalize(rows, args.norm);
    Rows all = multiply(step, rows, *args.head);
    Rows out;
    for (int32_t row : step.output_rows) {
      out.push_back(all[size_t(row)]);
      for (double& value : out.back()) {
        value =
            reference::cap(value * double(args.scale), double(args.softcap));
      }
    }
    return wrap(std::move(out), args.head->out());
  }

  void read(const Tensor& tensor, float* out) override {
    for (const Row& row : rows_of(tensor)) {
      for (double value : row) {
        *out++ = float(value);
      }
    }
  }

 private:
  using Entries = std::map<std::pair<int, int>, ReferenceCache::Entry>;

  static void normalize(Rows& rows, const Norm* norm) {
    if (norm != nullptr) {
      for (Row& row : rows) {
        static_cast<const ReferenceNorm*>(norm)->apply(row, 0, row.size());
      }
    }
  }

  static std::unique_ptr<ReferenceLinear> reference_linear(
      const LinearWeights& weights) {
    int64_t out = 0;
    for (const MatrixWeight& part : weights.parts) {
      out += part.out;
    }
    return std::make_unique<ReferenceLinear>(weights, out);
  }

  static Rows dense_mlp(
      const Step& step, const Rows& x, const MlpWeights& weights) {
    Rows inner = multiply(step, x, *weights.up);
    for (Row& row : inner) {
      reference::apply_activation(row, weights);
    }
    normalize(inner, weights.inner_norm);
    return multiply(step, inner, *weights.down);
  }

  static Row multiply(const Row& x, const Experts& experts, size_t expert) {
    const ReferenceLinear& own =
        *static_cast<const ReferenceExperts&>(experts).experts[expert];
    Row out;
    for (size_t o = 0; o < own.matrix.size(); ++o) {
      out.push_back(own.bias[o] + dot(own.matrix[o], x));
    }
    return out;
  }

  static void add_experts(
      const Row& x, const Row& logits, const MoeWeights& weights, Row& out) {
    bool on_input = weights.routing.target == RouterTarget::input;
    for (const auto& [e, chosen] : choose(logits, weights)) {
      const double share = weights.share_scale.empty()
                               ? chosen
                               : chosen * weights.share_scale[e];
      bool identity = e >= size_t(weights.up->count());
      Row result = x;
      if (!identity) {
        for (double& value : result) {
          value *= on_input ? share : 1;
        }
        result = multiply(result, *weights.up, e);
        reference::apply_activation(
            result,
            {.activation = weights.activation,
             .gated = weights.gated,
             .clamp = weights.clamp});
        result = multiply(result, *weights.down, e);
      }
      for (size_t i = 0; i < out.size(); ++i) {
        out[i] += (on_input && !identity ? 1 : share) * result[i];
      }
    }
  }

  static Rows multiply(const Step& step, const Rows& x, const Linear& weight) {
    const auto& own = static_cast<const ReferenceLinear&>(weight);
    Rows out(x.size(), Row(own.matrix.size()));
    for (const Segment& segment : step.segments) {
      for (int i = 0; i < segment.num_rows; ++i) {
        size_t r = size_t(segment.first_row + i);
        for (size_t o = 0; o < own.matrix.size(); ++o) {
          out[r][o] = own.bias[o] + dot(own.matrix[o], x[r]);
        }
        for (const Term& term : own.terms) {
          double scale = adapter_scale(segment, term.adapter);
          for (size_t o = 0; o < term.matrix.size(); ++o) {
            out[r][size_t(term.row_begin) + o] +=
                scale * dot(term.matrix[o], x[r]);
          }
        }
      }
    }
    return out;
  }

  static double dot(const Row& a, const Row& b) {
    double sum = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      sum += a[i] * b[i];
    }
    return sum;
  }

  static Rows finish(Rows rows, const LinearOptions& options) {
    normalize(rows, options.output_norm);
    for (size_t r = 0; r < rows.size(); ++r) {
      for (size_t c = 0; c < rows[r].size(); ++c) {
        rows[r][c] *= double(options.output_scale);
        if (options.residual != nullptr) {
          rows[r][c] += rows_of(*options.residual)[r][c];
        }
      }
    }
    return rows;
  }

  // Queries or keys of a row, which begin at a column: normalized and turned.
  static Row prepared(
      const Row& all,
      size_t begin,
      bool queries,
      const AttentionArgs& args,
      const Segment& segment,
      int64_t position) {
    int heads = queries ? args.num_heads : args.num_kv_heads;
    const auto* norm =
        static_cast<const ReferenceNorm*>(queries ? args.q_norm : args.k_norm);
    auto first = all.begin() + int64_t(begin);
    Row row(first, first + int64_t(heads) * args.head_dim);
    if (norm != nullptr && !args.norm_after_rope) {
      norm->apply(row, 0, row.size());
    }
    limit(row, args);
    if (args.rope != nullptr) {
      static_cast<const ReferenceRope*>(args.rope)->apply(
          row, 0, row.size(), args.head_dim, segment, position);
    }
    if (norm != nullptr && args.norm_after_rope) {
      norm->apply(row, 0, row.size());
    }
    if (queries && args.query_scaling.length > 0) {
      const QueryScaling& scaling = args.query_scaling;
      double whole = std::floor(
          double(position + scaling.offset) / double(scaling.length));
      for (double& value : row) {
        value *= 1 + double(scaling.slope) * std::log(1 + whole);
      }
    }
    return row;
  }

  static void limit(Row& row, const AttentionArgs& args) {
    for (double& value : row) {
      value = args.clip > 0
                  ? std::clamp(value, -double(args.clip), double(args.clip))
                  : value;
    }
  }

  static ReferenceCache::Entry key_and_value(
      const Row& source,
      const AttentionArgs& args,
      const Segment& segment,
      int64_t position) {
    size_t begin = size_t(args.num_heads * args.head_dim);
    size_t width = size_t(args.num_kv_heads * args.head_dim);
    auto first =
        source.begin() +
        int64_t(
            args.key_values == KeyValues::from_keys ? begin : begin + width);
    Row v(first, first + int64_t(width));
    if (args.v_norm != nullptr) {
      static_cast<const ReferenceNorm*>(args.v_norm)->apply(v, 0, width);
    }
    limit(v, args);
    return {prepared(source, begin, false, args, segment, position), v};
  }

  static std::pair<int, int> place(const Segment& segment, int64_t position) {
    return {
        segment.blocks[size_t(position / kKvBlockSize)],
        int(position % kKvBlockSize)};
  }

  static Row attend(
      const Row& query,
      const Segment& segment,
      int64_t position,
      const AttentionArgs& args,
      Entries& entries) {
    Row out(query.size());
    const Window& window = args.window;
    int64_t first = 0;
    for (int64_t p = 0; window.size > 0 && p < position; ++p) {
      bool hidden = window.chunked ? p / window.size != position / window.size
                                   : p + window.size <= position;
      first = hidden ? p + 1 : first;
    }
    size_t dim = size_t(args.head_dim);
    for (int head = 0; head < args.num_heads; ++head) {
      size_t q_at = size_t(head) * dim;
      int kv_head = args.head_order == HeadOrder::cycled
                        ? head % args.num_kv_heads
                        : head / (args.num_heads / args.num_kv_heads);
      size_t kv_at = size_t(kv_head) * dim;
      Row scores;
      for (int64_t other = first; other <= position; ++other) {
        const Row& k = entries[place(segment, other)].k;
        double score = 0;
        for (size_t i = 0; i < dim; ++i) {
          score += query[q_at + i] * k[kv_at + i];
        }
        score =
            reference::cap(score * double(args.scale), double(args.softcap));
        if (!args.alibi_slopes.empty()) {
          score += double(args.alibi_slopes[size_t(head)]) *
                   double(other - position);
        }
        if (const SparseBlocks& sparse = args.sparse; sparse.size > 0) {
          int64_t block = other / sparse.size;
          if (position / sparse.size - block >= sparse.local &&
              (block + head + 1) % sparse.stride != 0) {
            score = -INFINITY;
          }
        }
        scores.push_back(score);
      }
      double sum =
          args.sinks.empty() ? 0 : std::exp(double(args.sinks[size_t(head)]));
      for (double& score : scores) {
        score = std::exp(score);
        sum += score;
      }
      for (int64_t other = first; other <= position; ++other) {
        const Row& v = entries[place(segment, other)].v;
        double share = scores[size_t(other - first)] / sum;
        for (size_t i = 0; i < dim; ++i) {
          out[q_at + i] += share * v[kv_at + i];
        }
      }
    }
    return out;
  }
};

}  // namespace

std::unique_ptr<Backend> make_reference_backend() {
  return std::make_unique<ReferenceBackend>();
}

}  // namespace mlxcel::testing

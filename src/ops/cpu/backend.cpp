// The CPU backend: binds the interface to the functions beside it.
#include "ops/backend.h"

#include "core/error.h"
#include "ops/cpu/attention.h"
#include "ops/cpu/elementwise.h"
#include "ops/cpu/latent_attention.h"
#include "ops/cpu/matmul.h"
#include "ops/cpu/read_ahead.h"
#include "ops/cpu/recurrence.h"
#include "ops/host_work.h"

#include <cstring>

namespace mlxcel {

namespace cpu {

namespace {

class CpuBackend : public Backend, public HostWork {
 public:
  explicit CpuBackend(const BackendOptions& options) : context_(options) {}

  std::string description() const override {
    int threads = context_.pool.size();
    return cat(
        "cpu (",
        name_of(context_.isa),
        ", ",
        threads,
        threads == 1 ? " thread)" : " threads)");
  }

  std::unique_ptr<Linear> prepare_linear(LinearWeights weights) override {
    return cpu::prepare_linear(context_, std::move(weights));
  }
  std::unique_ptr<Experts> prepare_experts(ExpertWeights weights) override {
    return cpu::prepare_experts(context_, std::move(weights));
  }
  std::unique_ptr<HeadLinear> prepare_heads(HeadWeights weights) override {
    return cpu::prepare_heads(context_, std::move(weights));
  }
  std::unique_ptr<Embedding> prepare_embedding(
      EmbeddingWeights weights) override {
    return cpu::prepare_embedding(context_, std::move(weights));
  }
  std::unique_ptr<Norm> prepare_norm(NormWeights weights) override {
    return std::make_unique<CpuNorm>(weights, context_.isa);
  }
  std::unique_ptr<Rope> prepare_rope(RopeTable table) override {
    return cpu::prepare_rope(std::move(table));
  }
  std::unique_ptr<Constants> prepare_constants(
      std::vector<float> values) override {
    return std::make_unique<CpuConstants>(std::move(values));
  }
  std::unique_ptr<KvCache> make_kv_cache(const KvCacheSpec& spec) override {
    return cpu::make_kv_cache(spec);
  }

  Tensor embed(const Step& step, const Embedding& table, float scale) override {
    // A step begins.
    context_.pool.adapt();
    context_.ahead->begin_step();
    return cpu::embed(context_, step, table, scale);
  }
  Tensor norm(const Step&, const Tensor& x, const Norm& norm) override {
    return cpu::norm(context_, x, norm);
  }
  Tensor linear(
      const Step& step,
      const Tensor& x,
      const Linear& weight,
      const LinearOptions& options) override {
    return cpu::linear(context_, step, x, weight, options);
  }
  Tensor mlp(
      const Step& step,
      const Tensor& x,
      const MlpWeights& weights,
      const LinearOptions& options) override {
    return cpu::mlp(context_, step, x, weights, options);
  }
  Tensor moe(
      const Step& step,
      const Tensor& x,
      const MoeWeights& weights,
      const LinearOptions& options) override {
    return cpu::moe(context_, step, x, weights, options);
  }
  Tensor attention(
      const Step& step,
      const Tensor& qkv,
      const AttentionArgs& args,
      KvCache& cache,
      int layer,
      const Tensor* shared) override {
    return cpu::attention(context_, step, qkv, args, cache, layer, shared);
  }
  Tensor latent_attention(
      const Step& step,
      const Tensor& q,
      const Tensor& kv,
      const LatentAttentionArgs& args,
      KvCache& cache,
      int layer) override {
    return cpu::latent_attention(context_, step, q, kv, args, cache, layer);
  }
  Tensor recurrence(
      const Step& step,
      const Recurrence& op,
      KvCache& cache,
      int layer) override {
    return cpu::recurrence(context_, step, op, cache, layer);
  }
  Tensor add(
      const Step&, const Tensor& x, const Tensor& y, float scale) override {
    return cpu::add(context_, x, y, scale);
  }
  Tensor multiply(
      const Step&,
      const Tensor& x,
      const Tensor* y,
      const MultiplyOptions& options) override {
    return cpu::multiply(context_, x, y, options);
  }
  Tensor weighted_sum(
      const Step&,
      const Tensor& base,
      const std::vector<Tensor>& inputs,
      const Tensor& weights,
      int64_t first) override {
    return cpu::weighted_sum(context_, base, inputs, weights, first);
  }
  Tensor match_size(const Step&, const Tensor& x, const Tensor& like) override {
    return cpu::match_size(context_, x, like);
  }
  Tensor cut_below(
      const Step&,
      const Tensor& x,
      int64_t columns,
      float deviations) override {
    return cpu::cut_below(context_, x, columns, deviations);
  }
  Tensor head(
      const Step& step, const Tensor& x, const HeadArgs& args) override {
    return cpu::head(context_, step, x, args);
  }
  void read(const Tensor& tensor, float* out) override {
    size_t count = size_t(tensor.rows()) * size_t(tensor.cols());
    if (count != 0) {
      std::memcpy(out, data(tensor), count * sizeof(float));
    }
  }

  float* values(const Tensor& tensor) override {
    return data(tensor);
  }
  ThreadPool& pool() override {
    return context_.pool;
  }

 private:
  Context context_;
};

}  // namespace

}  // namespace cpu

std::unique_ptr<Backend> make_cpu_backend(const BackendOptions& options) {
  return std::make_unique<cpu::CpuBackend>(options);
}

}  // namespace mlxcel

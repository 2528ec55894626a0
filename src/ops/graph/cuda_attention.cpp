#include "ops/graph/cuda_attention.h"

#include "core/error.h"
#include "ops/graph/cuda_attention_kernel.h"
#include "ops/graph/cuda_kernel.h"
#include "ops/graph/norm.h"

#include <bit>

namespace mlxcel::graph {

namespace {

constexpr int kWarps = 8;  // of a block
// Query heads that share what a block reads of a key head, at most.
constexpr int kMostShared = 4;
// Keys of a block, at least: fewer do not pay for joining the results.
constexpr int64_t kLeastKeys = 64;
// Blocks that fill a large device.
constexpr int64_t kManyBlocks = 264;
constexpr int kMostRuns = 32;

// The norm of single heads as the kernel takes it.
const mx::array* head_factors(const Norm* norm) {
  return norm ? static_cast<const GraphNorm*>(norm)->factors() : nullptr;
}

bool takes_norm(const Norm* norm, int dim) {
  return !norm || (norm->size() == dim && head_factors(norm));
}

const mx::array* turn_of(const AttentionArgs& args) {
  return args.rope ? static_cast<const GraphRope*>(args.rope)->factors()
                   : nullptr;
}

const CudaKernel& place_kernel(bool q_norm, bool k_norm) {
  auto make = [](bool q, bool k) {
    std::vector<std::string> inputs{
        "qkv", "table", "periods", "keys", "values"};
    std::string header;
    if (q) {
      inputs.emplace_back("q_factors");
      header += "#define MLXCEL_Q_NORM\n";
    }
    if (k) {
      inputs.emplace_back("k_factors");
      header += "#define MLXCEL_K_NORM\n";
    }
    return CudaKernel(
        cat("place_", int(q), int(k)),
        inputs,
        {"HEADS", "KV_HEADS", "DIM", "STRIDE", "TURNED", "PAIRED", "WARPS"},
        kPlaceSource,
        header + kAttentionHeader);
  };
  static const CudaKernel plain = make(false, false),
                          queries = make(true, false), keys = make(false, true),
                          normed = make(true, true);
  return q_norm ? (k_norm ? normed : queries) : (k_norm ? keys : plain);
}

// Equal runs of the keys that blocks of their own read: a power of two.
int runs_of(int64_t keys, int64_t blocks) {
  int runs = 1;
  while (runs < kMostRuns && runs * blocks < kManyBlocks &&
         keys >= 2 * runs * kLeastKeys) {
    runs *= 2;
  }
  return runs;
}

}  // namespace

bool cuda_takes_attention(
    const Context& context,
    const Plan& plan,
    const mx::array& qkv,
    const AttentionArgs& args,
    const GraphKvCache& cache,
    int layer) {
  int dim = args.head_dim;
  return context.cuda && context.compute != mx::float32 &&
         qkv.dtype() == context.compute &&
         cache.keys(layer).dtype() == context.compute &&
         (dim == 64 || dim == 128 || dim == 256) && plan.single_rows() &&
         args.key_values == KeyValues::projected &&
         args.head_order == HeadOrder::grouped && args.softcap == 0 &&
         !args.window.chunked && args.clip == 0 && !args.v_norm &&
         !args.norm_after_rope && takes_norm(args.q_norm, dim) &&
         takes_norm(args.k_norm, dim) && (!args.rope || turn_of(args)) &&
         args.query_scaling.length == 0 && args.sinks.empty() &&
         args.alibi_slopes.empty() && args.sparse.size == 0;
}

mx::array cuda_attention(
    Plan& plan,
    const mx::array& qkv,
    const AttentionArgs& args,
    const GraphKvCache& cache,
    int layer) {
  int rows = qkv.shape(0), dim = args.head_dim;
  int heads = args.num_heads, kv_heads = args.num_kv_heads;
  const mx::array& table = plan.table(cache.num_blocks());
  const mx::array& keys = cache.keys(layer);
  const mx::array& values = cache.values(layer);

  const mx::array* turn = turn_of(args);
  // Without a rotation the kernel reads none; any array will do.
  std::vector<mx::array> inputs{qkv, table, turn ? *turn : table, keys, values};
  const mx::array* q_factors = head_factors(args.q_norm);
  const mx::array* k_factors = head_factors(args.k_norm);
  for (const mx::array* factors : {q_factors, k_factors}) {
    if (factors) {
      inputs.push_back(*factors);
    }
  }
  constexpr int kPlaceWarps = 4;
  int all = heads + 2 * kv_heads;
  mx::array q = place_kernel(q_factors, k_factors)(
      std::move(inputs),
      {heads,
       kv_heads,
       dim,
       qkv.shape(1),
       turn ? int_of(args.rope->dims()) : 0,
       turn && static_cast<const GraphRope*>(args.rope)->interleaved(),
       kPlaceWarps},
      {.blocks = {(all + kPlaceWarps - 1) / kPlaceWarps, rows, 1},
       .threads = kPlaceWarps * 32},
      {rows, heads, dim},
      qkv.dtype());

  int shared = kMostShared;
  while (heads / kv_heads % shared != 0) {
    --shared;
  }
  int64_t longest = 0;
  for (const Plan::RowSegment& segment : plan.segments) {
    longest =
        std::max(longest, segment.end() - args.window.first(segment.position));
  }
  int blocks = heads / shared;
  int runs = runs_of(longest, int64_t(blocks) * rows);
  static const CudaKernel attend(
      "attend",
      {"q", "table", "keys", "values"},
      {"HEADS",
       "KV_HEADS",
       "DIM",
       "GROUP",
       "WINDOW",
       "SCALE",
       "BLOCK",
       "PARTS",
       "WARPS"},
      kAttendSource,
      kAttentionHeader);
  bool parts = runs > 1;
  mx::array y = attend(
      {q, table, keys, values},
      {heads,
       kv_heads,
       dim,
       shared,
       int_of(args.window.size),
       std::bit_cast<int>(args.scale),
       kKvBlockSize,
       parts,
       kWarps},
      {.blocks = {blocks, runs, rows}, .threads = kWarps * 32},
      parts ? mx::Shape{rows * heads, runs, dim + 2}
            : mx::Shape{rows, heads * dim},
      parts ? mx::float32 : qkv.dtype());
  if (!parts) {
    return y;
  }
  static const CudaKernel merge(
      "merge", {"x"}, {"DIM", "RUNS"}, kMergeSource, kAttentionHeader);
  return merge(
      {y},
      {dim, runs},
      {.blocks = {rows * heads, 1, 1}, .threads = dim},
      {rows, heads * dim},
      qkv.dtype());
}

}  // namespace mlxcel::graph

#include "adapters/live.h"

#include "core/error.h"
#include "core/row_kernels.h"

#include <cstring>

namespace mlxcel {

namespace {

// Rows [first, first + count) of b as it multiplies A x: a view when the rows
// are stored one after the other, else an owned copy.
WeightTensor slice_outputs(
    const WeightTensor& b, bool rank_first, int64_t first, int64_t count) {
  int64_t rows = rank_first ? b.dim(0) : b.dim(1);
  if (first == 0 && count == rows) {
    return b;
  }
  size_t element = size_of(b.dtype);
  if (rank_first) {
    WeightTensor out = b;
    size_t stride = size_t(b.dim(1)) * element;
    out.data = b.data + size_t(first) * stride;
    out.shape[0] = count;
    out.bytes = size_t(count) * stride;
    return out;
  }
  std::byte* data = nullptr;
  WeightTensor out = make_weight(b.dtype, {b.dim(0), count}, &data);
  size_t width = size_t(count) * element;
  for (int64_t r = 0; r < b.dim(0); ++r) {
    std::memcpy(
        data + size_t(r) * width,
        b.data + (size_t(r) * size_t(rows) + size_t(first)) * element,
        width);
  }
  return out;
}

// Backends have no terms in f64: a copy in f32.
WeightTensor narrowed(const WeightTensor& tensor) {
  if (tensor.dtype != DType::f64) {
    return tensor;
  }
  std::byte* data = nullptr;
  WeightTensor out = make_weight(DType::f32, tensor.shape, &data);
  convert_to_f32(
      tensor.dtype,
      tensor.data,
      element_count(tensor.shape),
      reinterpret_cast<float*>(data));
  return out;
}

LowRankTerm term_of(const ResolvedPair& pair, int adapter, double factor) {
  LowRankTerm term;
  term.adapter = adapter;
  term.rows = pair.rows;
  term.rank = pair.rank;
  term.scale = float(factor);
  return term;
}

void add_embedding(
    const ResolvedPair& pair,
    int adapter,
    double factor,
    bool tied,
    LiveTerms& out) {
  // The lookup reads rows of a matrix [vocab, rank]; the head multiplies by the
  // same product. Each of the three layouts is one orientation of either.
  LowRankTerm lookup = term_of(pair, adapter, factor);
  LowRankTerm head = lookup;
  if (pair.layout == PairLayout::embedding) {
    lookup.a = pair.a;
    lookup.b = pair.b;
    head.a = pair.b;
    head.b = pair.a;
    head.rank_first = true;
  } else {
    lookup.a = pair.b;
    lookup.b = pair.a;
    lookup.rank_first = pair.layout == PairLayout::linear_first;
    head.a = pair.a;
    head.b = pair.b;
    head.rank_first = pair.layout == PairLayout::rank_first;
  }
  // The lookup's outputs are the hidden features.
  lookup.rows = lookup.b.dim(lookup.rank_first ? 0 : 1);
  out["embedding"].push_back(lookup);
  if (tied) {
    out["head"].push_back(head);
  }
}

// Rows of one expert come and go with the router; the backends have no terms
// for them.
void refuse_expert(const ResolvedPair& pair, const ResolvedAdapter& adapter) {
  for (const Target& target : pair.targets) {
    if (parse_role(target.slot).kind.starts_with("moe.experts.")) {
      throw AdapterError(
          cat("cannot apply adapter ", adapter.folder, " live"),
          cat("its pair on ", pair.stem, " changes an expert of a mixture"),
          "fuse the adapter into the weights");
    }
  }
}

}  // namespace

LiveTerms live_terms(
    const std::vector<LiveAdapter>& adapters, const DecoderSpec& spec) {
  LiveTerms out;
  for (const auto& [id, adapter] : adapters) {
    for (ResolvedPair pair : adapter->pairs) {
      refuse_expert(pair, *adapter);
      pair.a = narrowed(pair.a);
      pair.b = narrowed(pair.b);
      if (pair.on_embedding) {
        add_embedding(
            pair, id, adapter->factor, spec.head == HeadKind::tied, out);
        continue;
      }
      for (const Target& target : pair.targets) {
        LowRankTerm term = term_of(pair, id, adapter->factor);
        term.row_begin = target.slot_first;
        term.rows = target.rows.count;
        term.rank_first = pair.layout == PairLayout::rank_first;
        term.a = pair.a;
        term.b = slice_outputs(
            pair.b, term.rank_first, target.named_first, target.rows.count);
        out[target.slot].push_back(term);
      }
    }
  }
  return out;
}

}  // namespace mlxcel

// Products with weight matrices in the graph backend.
#pragma once

#include "ops/graph/cuda_product.h"
#include "ops/graph/norm.h"
#include "ops/graph/plan.h"

namespace mlxcel::graph {

// A weight matrix on the device: plain, or packed with scales.
struct DeviceMatrix {
  Quant quant;
  SharedArray weight;
  SharedArray scales, biases;  // null when plain; no biases outside affine

  // Stacks parts of one format.
  DeviceMatrix(Context& context, const std::vector<const MatrixWeight*>& parts);
  int in() const {
    return quant.packed() ? weight->shape(1) * 32 / quant.bits
                          : weight->shape(1);
  }
  mx::array multiply(const Context& context, const mx::array& x) const;
  // x [count, rows, in] times `count` equal blocks of rows, one each.
  mx::array multiply_each(
      const Context& context, const mx::array& x, int count) const;
  // The same with one of `count` equal blocks of rows for each row of x.
  mx::array multiply_blocks(
      const Context& context,
      const mx::array& x,
      int count,
      const mx::array& ids,
      bool sorted) const;
  // Rows of the matrix, in the compute type.
  mx::array rows(const Context& context, const mx::array& ids) const;

 private:
  // The plain matrix in the compute type.
  mx::array unpacked(const Context& context) const;
};

// All low-rank terms of one matrix, stacked along the rank, so that two
// products serve every adapter.
class LowRankTerms {
 public:
  // `in`: rows of A. A's orientation follows each term's rank_first.
  LowRankTerms(
      const Context& context,
      const std::vector<LowRankTerm>& terms,
      int64_t in,
      int64_t out);
  // y + scale * B (A x); rows whose scales are zero keep their bits.
  mx::array add_to(
      const Context& context,
      const mx::array& y,
      const mx::array& x,
      Plan& plan) const;
  // The same with rows of A chosen by id instead of multiplied.
  mx::array add_rows_to(
      const Context& context,
      const mx::array& y,
      const mx::array& ids,
      Plan& plan) const;
  // Whether any row of the step has a scale.
  bool active(Plan& plan) const {
    return plan.row_scales(adapters_) != nullptr;
  }

 private:
  mx::array finish(
      const Context& context,
      const mx::array& y,
      const mx::array& low,
      const Plan::RowScales& scales) const;

  std::vector<int> adapters_;  // one a column of A
  mx::array a_;                // [in, columns]
  mx::array b_;                // [columns, out], the terms' own scales inside
};

class GraphLinear : public Linear {
 public:
  GraphLinear(Context& context, const LinearWeights& weights);
  // x W^T + bias + adapter terms, with the fusions around it
  mx::array apply(
      const Context& context,
      const mx::array& x,
      Plan& plan,
      Fusions fusions = {}) const;

 private:
  std::vector<DeviceMatrix> parts_;  // stacked along the output
  std::optional<mx::array> bias_;
  std::optional<LowRankTerms> terms_;
};

// The experts' matrices stacked to [experts, out, in], part by part.
class GraphExperts : public Experts {
 public:
  GraphExperts(Context& context, const ExpertWeights& weights);
  // Row i of x [rows, in] times the matrices of expert ids[i], with their bias;
  // `sorted`: the ids ascend.
  mx::array apply(
      const Context& context,
      const mx::array& x,
      const mx::array& ids,
      bool sorted) const;

 private:
  std::vector<DeviceMatrix> parts_;  // [experts * out, in] each
  std::optional<mx::array> bias_;    // [experts, out]
};

// The heads' matrices stacked to [heads, out, in].
class GraphHeads : public HeadLinear {
 public:
  GraphHeads(Context& context, const HeadWeights& weights);
  // x: [heads, rows, in]; returns [heads, rows, out].
  mx::array apply(const Context& context, const mx::array& x, Plan& plan) const;

 private:
  DeviceMatrix matrices_;            // [heads * out, in]
  std::vector<LowRankTerms> terms_;  // one a head, or none
};

class GraphEmbedding : public Embedding {
 public:
  GraphEmbedding(Context& context, const EmbeddingWeights& weights);
  mx::array apply(
      const Context& context, const mx::array& ids, Plan& plan) const;

 private:
  DeviceMatrix table_;
  std::optional<LowRankTerms> terms_;
};

mx::array activate(Activation activation, const mx::array& x);
// Rows of gate and up in turn as rows [gate, up].
mx::array parted(const mx::array& x);
// act(gate) * up of rows [gate, up].
mx::array gated(
    Activation activation, const SwigluClamp& clamp, const mx::array& x);
mx::array xielu(const Xielu& numbers, const mx::array& x);

}  // namespace mlxcel::graph

// A linear of the CPU backend, and one product with it inside a fork-join.
#pragma once

#include "ops/cpu/context.h"
#include "ops/cpu/kernels/matmul_kernels.h"

#include <atomic>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace mlxcel::cpu {

// Checks a matrix (dtypes, shapes, byte counts) and describes it to the
// kernels. Throws CheckpointError.
Matrix make_matrix(
    const Kernels& kernels,
    const MatrixWeight& weight,
    const BackendOptions& options);

// Checks a low-rank term's shapes against in and out. Throws AdapterError.
void check_term(
    const LowRankTerm& term, const std::string& name, int64_t in, int64_t out);

class CpuLinear : public Linear {
 public:
  struct Part {
    Matrix matrix;
    int64_t first = 0;        // its first output
    std::vector<float> bias;  // empty: zeros
    int decode_format = 0;    // index into decode_formats()
    int prefill_format = 0;
  };

  CpuLinear(Context& context, LinearWeights weights);

  const Kernels& kernels() const {
    return kernels_;
  }
  std::span<const Part> parts() const {
    return parts_;
  }
  // One matrix for each distinct form of packed activations.
  std::span<const Matrix> decode_formats() const {
    return decode_formats_;
  }
  std::span<const Matrix> prefill_formats() const {
    return prefill_formats_;
  }
  std::span<const LowRankTerm> terms() const {
    return weights_.terms;
  }
  // Output `o` such that outputs [0, o) hold about part / parts of the bytes.
  int64_t split_by_bytes(int part, int parts) const;

 private:
  LinearWeights weights_;  // keeps the mapped data alive
  const Kernels& kernels_;
  std::vector<Part> parts_;
  std::vector<Matrix> decode_formats_, prefill_formats_;
};

class CpuEmbedding : public Embedding {
 public:
  CpuEmbedding(Context& context, EmbeddingWeights weights);
  const Kernels& kernels() const {
    return kernels_;
  }
  const Matrix& matrix() const {
    return matrix_;
  }
  std::span<const LowRankTerm> terms() const {
    return weights_.terms;
  }

 private:
  EmbeddingWeights weights_;
  const Kernels& kernels_;
  Matrix matrix_;
};

// Memory of one call, recycled by the context.
class Scratch {
 public:
  Scratch(Context& context, size_t bytes);
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  std::byte* data() const {
    return data_;
  }

 private:
  std::shared_ptr<BufferPool> pool_;
  size_t capacity_ = 0;
  std::byte* data_;
};

// The rows of a product: prompt rows first, then decode rows.
struct RowPlan {
  int prompt_rows = 0;
  int decode_rows = 0;
  int rows() const {
    return prompt_rows + decode_rows;
  }
};

// A term that some rows use, with those rows and their factors.
struct ActiveTerm {
  const LowRankTerm* term;
  std::vector<std::pair<int, float>> rows;  // row, run-time scale * scale
};

// The terms that the step's rows use. `rows`: rows of the step in the order of
// the product, or empty for all.
std::vector<ActiveTerm> active_terms(
    const Step& step,
    std::span<const LowRankTerm> terms,
    std::span<const int32_t> rows = {});

// A x is summed over ranges of this many columns, then range by range in order:
// threads may share the ranges of one row.
constexpr int64_t kTermColumns = 1024;

// t = A x over columns [begin, end), one range, f32 sums. t: [rank]
void term_down(
    const Kernels& kernels,
    const LowRankTerm& term,
    int64_t in,
    int64_t begin,
    int64_t end,
    const float* x,
    float* t);

// y[0 : end - begin] += factor * (B t)[begin, end) of the term's rows.
// `scratch`: end - begin floats.
void term_up(
    const Kernels& kernels,
    const LowRankTerm& term,
    int64_t begin,
    int64_t end,
    const float* t,
    float factor,
    float* y,
    float* scratch);

// Outputs [begin, end) of the decode rows: y[r * ldy + o - begin] of row r.
struct DecodeRange {
  int64_t begin = 0, end = 0;
  float* y = nullptr;
  int64_t ldy = 0;
};

// One linear over the rows of a step. Every thread of the pool calls pack, then
// the compute functions. The results do not depend on the number of threads.
class Product {
 public:
  Product(
      Context& context,
      const CpuLinear& linear,
      RowPlan plan,
      std::vector<ActiveTerm> terms);

  // Rows of x are at x + row * ldx, or where `row_index` says.
  void set_input(
      const float* x,
      int64_t ldx,
      const CpuNorm* norm,
      std::span<const int32_t> row_index = {});

  // Says which product of the same shape every thread computes after this one,
  // to be read ahead of.
  void set_next(const Product* next) {
    next_ = next;
  }

  // Makes the packed activations. Ends with a barrier where later stages need
  // other threads' results.
  void pack(int thread);

  // All of this thread's outputs, with bias and terms. Every thread calls it
  // once, without outputs too: there may be a barrier inside.
  void decode(int thread, std::span<const DecodeRange> ranges) const;

  // Panels of output rows for the prompt rows: [begin, end) within one part.
  struct Panel {
    int part = 0;
    int64_t begin = 0, end = 0;  // outputs of the linear
  };
  int tile_count() const {
    return tiles_;
  }
  std::pair<int, int> tile(int index) const;  // first row, rows
  int64_t panel_columns(const Panel& panel) const;
  size_t panel_bytes() const;  // largest of all parts
  void panel_pack(
      const Panel& panel, int64_t k0, int64_t k1, std::byte* out) const;
  // Brings part `part` of `parts` of the panel's weights near, ahead of
  // panel_pack.
  void panel_fetch(const Panel& panel, int part, int parts) const;
  // y[i * ldy + o - panel.begin] of the tile's row i; bias and terms are added
  // with the last columns.
  void panel_multiply(
      const Panel& panel,
      const std::byte* data,
      int64_t k0,
      int64_t k1,
      int tile_index,
      float* y,
      int64_t ldy,
      float* scratch) const;

  const CpuLinear& linear() const {
    return linear_;
  }
  const RowPlan& plan() const {
    return plan_;
  }

 private:
  // A row's use of a term: `at` is where its A x is, in floats.
  struct TermUse {
    int term = 0, user = 0;  // users: ActiveTerm::rows
    int64_t at = 0;
  };

  const float* input_row(int row) const;
  float* normed_memory() const;  // null: none is needed
  // As the terms read it: with the norm applied.
  const float* term_input(int thread, int row) const;
  void pack_decode_rows(int thread, int begin, int end);
  void place_terms();
  // A piece is a range of columns of one use: uses times ranges_ in all.
  std::span<float> piece(int index) const;
  void down(int thread, int piece) const;
  void fetch_down(int piece, FetchList& list) const;
  // What A x of a use is, into `values` at its place.
  void sum_pieces(const TermUse& use, float* values) const;
  float* values(int copy) const;
  void terms_of_all_rows(int thread) const;
  // `after`: what the thread reads next, if not the outputs that follow.
  void multiply(
      int thread,
      const DecodeRange& range,
      FetchList* fetch,
      const FirstRows* after) const;
  FirstRows rows_from(int64_t output) const;
  void decode_with_terms(int thread, std::span<const DecodeRange> ranges) const;
  void fetch_up(int64_t begin, int64_t end, FetchList& list) const;
  void add_bias(
      int rows, int64_t begin, int64_t end, float* y, int64_t ldy) const;
  // Rows [row, row + rows) of the product, outputs [begin, end).
  void add_terms(
      const float* values,
      int row,
      int rows,
      int64_t begin,
      int64_t end,
      float* y,
      int64_t ldy,
      float* scratch) const;

  Context& context_;
  const CpuLinear& linear_;
  const Product* next_ = nullptr;
  RowPlan plan_;
  std::vector<ActiveTerm> terms_;
  int tiles_ = 0;
  bool shared_ = false;  // decode rows are packed once for all threads
  const float* x_ = nullptr;
  int64_t ldx_ = 0;
  const CpuNorm* norm_ = nullptr;
  std::span<const int32_t> row_index_;

  // Offsets into the scratch memory.
  std::vector<size_t> decode_offset_;  // a format
  std::vector<size_t> tile_offset_, tile_stride_;
  size_t decode_bytes_ = 0;  // of all formats, one copy
  size_t normed_bytes_ = 0;

  std::vector<TermUse> uses_;  // by term, then by row
  int ranges_ = 1;             // of columns, in each A x
  int64_t values_ = 0;         // floats of all uses
  // Without prompt rows the terms are computed beside the product, which
  // fetches them.
  bool terms_in_decode_ = false;
  std::unique_ptr<Scratch> packed_, normed_, term_values_;
};

}  // namespace mlxcel::cpu

#include "surgery/edits.h"

#include "core/row_kernels.h"
#include "io/mapped_file.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace mlxcel {

namespace {

// Elements at a time: two rows of f32 scratch stay in the first-level cache.
constexpr int64_t kBlock = 4096;

// f32 scratch of a thread.
struct Scratch {
  alignas(64) float a[kBlock];
  alignas(64) float b[kBlock];
};

Scratch& scratch() {
  thread_local Scratch scratch;
  return scratch;
}

// body(at, n) for blocks [at, at + n) of [0, count).
template <typename Body>
void each_block(int64_t count, const Body& body) {
  for (int64_t at = 0; at < count; at += kBlock) {
    body(at, std::min(kBlock, count - at));
  }
}

const std::byte* element(const WeightTensor& tensor, int64_t index) {
  return tensor.data + size_t(index) * size_of(tensor.dtype);
}

void release_elements(
    const WeightTensor& tensor, int64_t first, int64_t count) {
  release_pages(element(tensor, first), size_t(count) * size_of(tensor.dtype));
}

class ScaleEdit : public Edit {
 public:
  explicit ScaleEdit(float factor) : factor_(factor) {}
  void apply(
      const WeightTensor& target,
      int64_t,
      int64_t count,
      std::byte* bytes) const override {
    float* values = scratch().a;
    each_block(count, [&](int64_t at, int64_t n) {
      std::byte* block = bytes + size_t(at) * size_of(target.dtype);
      convert_to_f32(target.dtype, block, n, values);
      for (int64_t i = 0; i < n; ++i) {
        values[i] *= factor_;
      }
      convert_from_f32(values, n, target.dtype, block);
    });
  }

 private:
  float factor_;
};

class AddEdit : public Edit {
 public:
  AddEdit(WeightTensor source, float alpha)
      : source_(std::move(source)), alpha_(alpha) {}
  void apply(
      const WeightTensor& target,
      int64_t first,
      int64_t count,
      std::byte* bytes) const override {
    auto& [values, added] = scratch();
    bool round = size_of(target.dtype) == 2 && source_.dtype != target.dtype;
    each_block(count, [&](int64_t at, int64_t n) {
      std::byte* block = bytes + size_t(at) * size_of(target.dtype);
      convert_to_f32(source_.dtype, element(source_, first + at), n, added);
      if (round) {
        // The values' place is free until the base is read.
        convert_from_f32(added, n, target.dtype, values);
        convert_to_f32(target.dtype, values, n, added);
      }
      convert_to_f32(target.dtype, block, n, values);
      row_kernels().combine(values, 1, added, alpha_, n);
      convert_from_f32(values, n, target.dtype, block);
    });
  }
  void release(int64_t first, int64_t count) const override {
    release_elements(source_, first, count);
  }

 private:
  WeightTensor source_;
  float alpha_;
};

class ZeroEdit : public Edit {
 public:
  explicit ZeroEdit(Spans spans) : spans_(std::move(spans)) {}
  void apply(
      const WeightTensor& target,
      int64_t first,
      int64_t count,
      std::byte* bytes) const override {
    int64_t columns = target.ndim() < 2 ? 1 : target.shape.back();
    size_t size = size_of(target.dtype);
    for (int64_t i = 0; i < count; i += columns) {
      int64_t row = (first + i) / columns;
      std::byte* line = bytes + size_t(i) * size;
      for (const auto& [begin, end] : spans_.rows) {
        if (begin <= row && row < end) {
          std::memset(line, 0, size_t(columns) * size);
        }
      }
      for (const auto& [begin, end] : spans_.columns) {
        std::memset(line + size_t(begin) * size, 0, size_t(end - begin) * size);
      }
    }
  }

 private:
  Spans spans_;
};

class ZeroAllEdit : public Edit {
 public:
  void apply(
      const WeightTensor& target,
      int64_t,
      int64_t count,
      std::byte* bytes) const override {
    std::memset(bytes, 0, size_t(count) * size_of(target.dtype));
  }
  bool overwrites() const override {
    return true;
  }
};

class ReplaceEdit : public Edit {
 public:
  explicit ReplaceEdit(WeightTensor source) : source_(std::move(source)) {}
  void apply(
      const WeightTensor& target,
      int64_t first,
      int64_t count,
      std::byte* bytes) const override {
    std::memcpy(
        bytes, element(source_, first), size_t(count) * size_of(target.dtype));
  }
  void release(int64_t first, int64_t count) const override {
    release_elements(source_, first, count);
  }
  bool overwrites() const override {
    return true;
  }
  const WeightTensor* replacement() const override {
    return &source_;
  }

 private:
  WeightTensor source_;
};

class InterpolateEdit : public Edit {
 public:
  InterpolateEdit(
      WeightTensor a, WeightTensor b, double ratio, Interpolation method)
      : a_(std::move(a)),
        b_(std::move(b)),
        ratio_(ratio),
        method_(method),
        from_a_(float(1 - ratio)),
        from_b_(float(ratio)) {}

  bool prepares() const override {
    return method_ != Interpolation::lerp;
  }
  void prepare(ThreadPool& pool, const WeightMap&) override {
    if (!prepares()) {
      return;
    }
    // Partial sums by fixed chunk, so that the angle does not depend on the
    // number of threads.
    constexpr int64_t kChunk = 1 << 16;
    constexpr int64_t kKeep = 1 << 22;  // smaller ones are read again at once
    int64_t total = element_count(a_.shape);
    int64_t chunks = (total + kChunk - 1) / kChunk;
    std::vector<double> sums(size_t(chunks) * 3);
    pool.run([&](int thread) {
      auto [begin, end] = split_range(chunks, thread, pool.size());
      for (int64_t c = begin; c < end; ++c) {
        int64_t first = c * kChunk;
        int64_t count = std::min(kChunk, total - first);
        auto& [x, y] = scratch();
        each_block(count, [&](int64_t at, int64_t n) {
          convert_to_f32(a_.dtype, element(a_, first + at), n, x);
          convert_to_f32(b_.dtype, element(b_, first + at), n, y);
          row_kernels().add_dots(x, y, n, &sums[size_t(c) * 3]);
        });
        if (total >= kKeep) {
          release(first, count);
        }
      }
    });
    double aa = 0;
    double bb = 0;
    double ab = 0;
    for (int64_t c = 0; c < chunks; ++c) {
      aa += sums[size_t(c) * 3];
      bb += sums[size_t(c) * 3 + 1];
      ab += sums[size_t(c) * 3 + 2];
    }
    if (aa == 0 || bb == 0) {
      return;
    }
    double cosine = ab / (std::sqrt(aa) * std::sqrt(bb));
    constexpr double kParallel = 0.9995;  // the usual bound of slerp merges
    if (!(std::abs(cosine) <= kParallel)) {
      return;
    }
    double angle = std::acos(cosine);
    from_a_ = float(std::sin((1 - ratio_) * angle) / std::sin(angle));
    from_b_ = float(std::sin(ratio_ * angle) / std::sin(angle));
  }

  void apply(
      const WeightTensor& target,
      int64_t first,
      int64_t count,
      std::byte* bytes) const override {
    if (a_.dtype == DType::bf16 && b_.dtype == DType::bf16 &&
        target.dtype == DType::bf16) {
      row_kernels().blend_bf16(
          element(a_, first),
          from_a_,
          element(b_, first),
          from_b_,
          count,
          bytes);
      return;
    }
    auto& [values, other] = scratch();
    each_block(count, [&](int64_t at, int64_t n) {
      convert_to_f32(a_.dtype, element(a_, first + at), n, values);
      convert_to_f32(b_.dtype, element(b_, first + at), n, other);
      row_kernels().combine(values, from_a_, other, from_b_, n);
      convert_from_f32(
          values, n, target.dtype, bytes + size_t(at) * size_of(target.dtype));
    });
  }
  void release(int64_t first, int64_t count) const override {
    release_elements(a_, first, count);
    release_elements(b_, first, count);
  }
  bool overwrites() const override {
    return true;
  }

 private:
  WeightTensor a_, b_;
  double ratio_;
  Interpolation method_;
  float from_a_, from_b_;
};

}  // namespace

std::shared_ptr<Edit> scale_edit(float factor) {
  return std::make_shared<ScaleEdit>(factor);
}

std::shared_ptr<Edit> add_edit(WeightTensor source, float alpha) {
  return std::make_shared<AddEdit>(std::move(source), alpha);
}

std::shared_ptr<Edit> zero_edit(Spans spans) {
  return std::make_shared<ZeroEdit>(std::move(spans));
}

std::shared_ptr<Edit> zero_all_edit() {
  return std::make_shared<ZeroAllEdit>();
}

std::shared_ptr<Edit> replace_edit(WeightTensor source) {
  return std::make_shared<ReplaceEdit>(std::move(source));
}

std::shared_ptr<Edit> interpolate_edit(
    WeightTensor a, WeightTensor b, double ratio, Interpolation method) {
  return std::make_shared<InterpolateEdit>(
      std::move(a), std::move(b), ratio, method);
}

}  // namespace mlxcel

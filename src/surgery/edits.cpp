#include "surgery/edits.h"

#include "core/row_kernels.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace mlxcel {

namespace {

// f32 scratch of a thread, at least n elements.
float* scratch(int slot, int64_t n) {
  thread_local std::vector<float> buffers[3];
  std::vector<float>& buffer = buffers[slot];
  if (int64_t(buffer.size()) < n) {
    buffer.resize(size_t(n));
  }
  return buffer.data();
}

const std::byte* element(const WeightTensor& tensor, int64_t index) {
  return tensor.data + size_t(index) * size_of(tensor.dtype);
}

class ScaleEdit : public Edit {
 public:
  explicit ScaleEdit(float factor) : factor_(factor) {}
  void apply(
      const WeightTensor& target,
      int64_t,
      int64_t count,
      std::byte* bytes) const override {
    float* values = scratch(0, count);
    convert_to_f32(target.dtype, bytes, count, values);
    for (int64_t i = 0; i < count; ++i) {
      values[i] *= factor_;
    }
    convert_from_f32(values, count, target.dtype, bytes);
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
    float* values = scratch(0, count);
    float* added = scratch(1, count);
    convert_to_f32(source_.dtype, element(source_, first), count, added);
    if (target.dtype == DType::f16 || target.dtype == DType::bf16) {
      uint16_t* rounded = reinterpret_cast<uint16_t*>(scratch(2, count));
      convert_from_f32(added, count, target.dtype, rounded);
      convert_to_f32(target.dtype, rounded, count, added);
    }
    convert_to_f32(target.dtype, bytes, count, values);
    row_kernels().combine(values, 1, added, alpha_, count);
    convert_from_f32(values, count, target.dtype, bytes);
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

  void prepare(ThreadPool& pool, const WeightMap&) override {
    if (method_ == Interpolation::lerp) {
      return;
    }
    // Partial sums by fixed chunk, so that the angle does not depend on the
    // number of threads.
    constexpr int64_t kChunk = 1 << 16;
    int64_t total = element_count(a_.shape);
    int64_t chunks = (total + kChunk - 1) / kChunk;
    std::vector<double> sums(size_t(chunks) * 3);
    pool.run([&](int thread) {
      auto [begin, end] = split_range(chunks, thread, pool.size());
      for (int64_t c = begin; c < end; ++c) {
        int64_t first = c * kChunk;
        int64_t count = std::min(kChunk, total - first);
        float* x = scratch(0, count);
        float* y = scratch(1, count);
        convert_to_f32(a_.dtype, element(a_, first), count, x);
        convert_to_f32(b_.dtype, element(b_, first), count, y);
        row_kernels().add_dots(x, y, count, &sums[size_t(c) * 3]);
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
    float* values = scratch(0, count);
    float* other = scratch(1, count);
    convert_to_f32(a_.dtype, element(a_, first), count, values);
    convert_to_f32(b_.dtype, element(b_, first), count, other);
    row_kernels().combine(values, from_a_, other, from_b_, count);
    convert_from_f32(values, count, target.dtype, bytes);
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

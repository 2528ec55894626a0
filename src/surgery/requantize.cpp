#include "core/row_kernels.h"
#include "surgery/edits.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace mlxcel {

namespace {

// Element i of a row's little-endian bit stream, bits [i * bits, (i + 1) *
// bits). The stream may start at any byte.
uint32_t read_code(
    const std::byte* row, size_t row_bytes, int64_t i, int bits) {
  int64_t bit = i * bits;
  uint64_t window = 0;
  size_t byte = size_t(bit / 8);
  std::memcpy(&window, row + byte, std::min<size_t>(8, row_bytes - byte));
  return uint32_t(window >> (bit % 8)) & ((1u << bits) - 1);
}

void write_code(std::byte* row, int64_t i, int bits, uint32_t code) {
  int64_t bit = i * bits;
  for (int b = 0; b < bits; ++b, ++bit) {
    auto mask = std::byte(1u << (bit % 8));
    std::byte& cell = row[bit / 8];
    cell = (code >> b) & 1 ? cell | mask : cell & ~mask;
  }
}

struct Group {
  float scale, bias;
};

// MLX's affine quantization of a group: the scale takes the sign that lets the
// value of larger magnitude be met exactly.
Group fit_group(const float* w, int n, int bits) {
  constexpr float kSmallest = 1e-7f;
  float low = *std::min_element(w, w + n);
  float high = *std::max_element(w, w + n);
  float levels = float((1 << bits) - 1);
  bool low_is_edge = std::abs(low) > std::abs(high);
  float scale = std::max((high - low) / levels, kSmallest);
  scale = low_is_edge ? scale : -scale;
  float edge = low_is_edge ? low : high;
  float zero = std::rint(edge / scale);
  if (zero == 0) {
    return {scale, 0};
  }
  return {edge / zero, edge};
}

class RequantizeEdit : public Edit {
 public:
  RequantizeEdit(
      std::string stem, int bits, std::shared_ptr<Edit> change, TriplePart part)
      : stem_(std::move(stem)),
        bits_(bits),
        change_(std::move(change)),
        part_(part) {}

  bool prepares() const override {
    return true;
  }
  void prepare(ThreadPool& pool, const WeightMap& current) override {
    weight_ = current.at(stem_ + ".weight");
    scales_ = current.at(stem_ + ".scales");
    biases_ = current.at(stem_ + ".biases");
    group_size_ = int(weight_.dim(1) * 32 / bits_ / scales_.dim(1));
    change_->prepare(pool, current);
  }

  void apply(
      const WeightTensor& target,
      int64_t first,
      int64_t count,
      std::byte* bytes) const override {
    int64_t columns = target.shape.back();
    int64_t in = groups() * group_size_;
    WeightTensor line;
    line.dtype = DType::f32;
    line.shape = {target.dim(0), in};
    std::vector<float> values(static_cast<size_t>(in));
    for (int64_t i = 0; i < count; i += columns) {
      int64_t row = (first + i) / columns;
      dequantize(row, values.data());
      change_->apply(
          line, row * in, in, reinterpret_cast<std::byte*>(values.data()));
      write_row(values.data(), bytes + size_t(i) * size_of(target.dtype));
    }
  }

  void release(int64_t first, int64_t count) const override {
    int64_t columns = part_ == TriplePart::weight ? weight_.dim(1) : groups();
    int64_t width = groups() * group_size_;
    change_->release(first / columns * width, count / columns * width);
  }
  void finish() override {
    change_->finish();
    weight_ = scales_ = biases_ = {};
  }

 private:
  int64_t groups() const {
    return scales_.dim(1);
  }

  void dequantize(int64_t row, float* out) const {
    std::vector<float> scales(static_cast<size_t>(groups()));
    std::vector<float> biases(static_cast<size_t>(groups()));
    read_as_f32(scales_, row * groups(), groups(), scales.data());
    read_as_f32(biases_, row * groups(), groups(), biases.data());
    size_t row_bytes = size_t(weight_.dim(1)) * 4;
    const std::byte* codes = weight_.data + size_t(row) * row_bytes;
    for (int64_t i = 0; i < groups() * group_size_; ++i) {
      size_t g = size_t(i / group_size_);
      out[i] =
          scales[g] * float(read_code(codes, row_bytes, i, bits_)) + biases[g];
    }
  }

  void write_row(const float* values, std::byte* out) const {
    int n = group_size_;
    uint32_t top = (1u << bits_) - 1;
    DType dtype = scales_.dtype;
    for (int64_t g = 0; g < groups(); ++g) {
      Group group = fit_group(values + g * n, n, bits_);
      if (part_ != TriplePart::weight) {
        float value = part_ == TriplePart::scales ? group.scale : group.bias;
        convert_from_f32(&value, 1, dtype, out + size_t(g) * size_of(dtype));
        continue;
      }
      for (int i = 0; i < n; ++i) {
        float code = std::rint((values[g * n + i] - group.bias) / group.scale);
        write_code(
            out,
            g * n + i,
            bits_,
            uint32_t(std::clamp(code, 0.0f, float(top))));
      }
    }
  }

  std::string stem_;
  int bits_;
  std::shared_ptr<Edit> change_;
  TriplePart part_;
  WeightTensor weight_, scales_, biases_;
  int group_size_ = 0;
};

}  // namespace

std::shared_ptr<Edit> requantize_edit(
    std::string stem, int bits, std::shared_ptr<Edit> change, TriplePart part) {
  return std::make_shared<RequantizeEdit>(
      std::move(stem), bits, std::move(change), part);
}

}  // namespace mlxcel

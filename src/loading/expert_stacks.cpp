#include "loading/expert_stacks.h"

#include "core/error.h"
#include "core/half.h"
#include "core/thread_pool.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

namespace mlxcel {

namespace {

constexpr const char* kCheckConfig =
    "check that config.json belongs to these weights";

// A published stack with the sizes of the model's spec.
struct Stack {
  const PublishedStack& names;
  int64_t experts = 0, in = 0;
  int64_t rows = 0;  // outputs of one part of one expert

  int64_t all_rows() const {
    return rows * int64_t(names.parts.size());
  }
  // Where output `row` of a part lies among all of an expert.
  int64_t source_row(size_t part, int64_t row) const {
    return names.order == RowOrder::in_turn
               ? row * int64_t(names.parts.size()) + int64_t(part)
               : int64_t(part) * rows + row;
  }
};

std::optional<Stack> stack_of(
    const NameMap& names, const PublishedStack& published) {
  std::vector<RolePart> roles = names.parts_of(published.parts.front());
  if (roles.empty()) {
    return std::nullopt;
  }
  return Stack{
      .names = published,
      .experts = int64_t(roles.size()),
      .in = names.cols(roles.front().role),
      .rows = roles.front().count};
}

void check_tensor(
    const std::string& key,
    const WeightTensor& tensor,
    const Shape& shape,
    bool right_type) {
  if (tensor.shape == shape && right_type) {
    return;
  }
  throw CheckpointError(
      cat("tensor \"",
          key,
          "\" in ",
          tensor.file,
          right_type ? " has the wrong shape" : " has the wrong type"),
      cat("it is ",
          tensor.dtype,
          " ",
          to_string(tensor.shape),
          ", the model needs ",
          to_string(shape)),
      kCheckConfig);
}

// Puts tensors in the place of a published one.
class Spreading {
 public:
  Spreading(
      const Stack& stack,
      WeightMap& weights,
      TensorData data,
      std::unique_ptr<ThreadPool>& pool)
      : stack_(stack), weights_(weights), data_(data), pool_(pool) {}

  void run() {
    const std::string& stem = stack_.names.stem;
    for (const std::string& key : {stem, stem + ".weight"}) {
      const WeightTensor* tensor = weights_.find(key);
      // A part may have the stack's own name, then in an MLX conversion's form.
      bool is_part = key != stem && stem == stack_.names.parts.front();
      if (tensor != nullptr && !is_part) {
        spread_floats(key, *tensor);
        weights_.erase(key);
      }
    }
    if (const WeightTensor* bias = weights_.find(stem + "_bias")) {
      pick_biases(stem + "_bias", *bias);
      weights_.erase(stem + "_bias");
    }
    if (const WeightTensor* blocks = weights_.find(stem + "_blocks")) {
      unpack_blocks(*blocks, weights_.at(stem + "_scales"));
      weights_.erase(stem + "_blocks");
      weights_.erase(stem + "_scales");
    }
  }

 private:
  // Runs fill(expert, part, its first byte in the new tensor) over all experts,
  // where there is data.
  using Fill = std::function<void(int64_t expert, size_t part, std::byte* to)>;
  void make(
      const std::string& suffix,
      DType dtype,
      const Shape& shape,
      const std::string& file,
      const Fill& fill) {
    for (size_t part = 0; part < stack_.names.parts.size(); ++part) {
      WeightTensor tensor{.dtype = dtype, .shape = shape, .file = file};
      size_t one = size_t(element_count(shape)) / size_t(shape[0]);
      one *= size_of(dtype);
      tensor.bytes = one * size_t(shape[0]);
      if (data_ == TensorData::readable) {
        std::byte* to = nullptr;
        tensor = make_weight(dtype, shape, &to);
        if (pool_ == nullptr) {
          pool_ = std::make_unique<ThreadPool>();
        }
        pool_->run([&](int thread) {
          auto [begin, end] = split_range(shape[0], thread, pool_->size());
          for (int64_t expert = begin; expert < end; ++expert) {
            fill(expert, part, to + size_t(expert) * one);
          }
        });
      }
      weights_.set(cat(stack_.names.parts[part], suffix), std::move(tensor));
    }
  }

  // [experts, in, all rows] or [experts, all rows, in], also with the first two
  // as one, -> [experts, rows, in]
  void spread_floats(const std::string& key, const WeightTensor& from) {
    const bool turn = stack_.names.input_first;
    WeightTensor tensor = from;
    Shape shape{stack_.experts, stack_.all_rows(), stack_.in};
    if (turn) {
      std::swap(shape[1], shape[2]);
    }
    if (tensor.shape == Shape{shape[0] * shape[1], shape[2]}) {
      tensor.shape = shape;
    }
    check_tensor(key, tensor, shape, is_float(tensor.dtype));
    if (!turn && stack_.names.parts.size() == 1) {
      weights_.set(stack_.names.parts[0] + ".weight", std::move(tensor));
      return;
    }
    size_t size = size_of(tensor.dtype);
    auto in = size_t(stack_.in), all = size_t(stack_.all_rows());
    make(
        ".weight",
        tensor.dtype,
        {stack_.experts, stack_.rows, stack_.in},
        tensor.file,
        [&](int64_t expert, size_t part, std::byte* to) {
          const std::byte* matrix =
              tensor.data + size_t(expert) * in * all * size;
          if (!turn) {
            for (int64_t row = 0; row < stack_.rows; ++row) {
              std::memcpy(
                  to + size_t(row) * in * size,
                  matrix + size_t(stack_.source_row(part, row)) * in * size,
                  in * size);
            }
            return;
          }
          // Runs of the input, so that what is read stays in the cache.
          constexpr size_t kRun = 64;
          for (size_t first = 0; first < in; first += kRun) {
            for (int64_t row = 0; row < stack_.rows; ++row) {
              auto column = size_t(stack_.source_row(part, row));
              for (size_t i = first; i < std::min(first + kRun, in); ++i) {
                std::memcpy(
                    to + (size_t(row) * in + i) * size,
                    matrix + (i * all + column) * size,
                    size);
              }
            }
          }
        });
  }

  void pick_biases(const std::string& key, const WeightTensor& from) {
    check_tensor(
        key, from, {stack_.experts, stack_.all_rows()}, is_float(from.dtype));
    const WeightTensor tensor = from;
    size_t size = size_of(tensor.dtype);
    make(
        ".bias",
        tensor.dtype,
        {stack_.experts, stack_.rows},
        tensor.file,
        [&](int64_t expert, size_t part, std::byte* to) {
          const std::byte* values =
              tensor.data + size_t(expert * stack_.all_rows()) * size;
          for (int64_t row = 0; row < stack_.rows; ++row) {
            std::memcpy(
                to + size_t(row) * size,
                values + size_t(stack_.source_row(part, row)) * size,
                size);
          }
        });
  }

  // MXFP4 (OCP Microscaling Formats 1.0): 32 values share a scale 2^(s - 127);
  // a value is a sign, two bits of exponent and one of mantissa: 0, 1/2, 1,
  // 3/2, 2, 3, 4 or 6. With u = scale / 2 all are whole multiples of u, from
  // -12 to 12: code * u - 12 u with codes from 0 to 24.
  void unpack_blocks(const WeightTensor& blocks, const WeightTensor& scales) {
    constexpr int64_t kGroup = 32, kBytes = kGroup / 2;
    const std::string& stem = stack_.names.stem;
    const int64_t groups = stack_.in / kGroup;
    const int64_t all = stack_.all_rows();
    check_tensor(
        stem + "_blocks",
        blocks,
        {stack_.experts, all, groups, kBytes},
        blocks.dtype == DType::u8 && stack_.in % kGroup == 0);
    check_tensor(
        stem + "_scales",
        scales,
        {stack_.experts, all, groups},
        scales.dtype == DType::u8);
    const WeightTensor codes = blocks, exponents = scales;
    if (data_ == TensorData::readable) {
      check_exponents(stem + "_scales", exponents);
    }
    auto first_of = [&](int64_t expert, size_t part, int64_t row) {
      return size_t((expert * all + stack_.source_row(part, row)) * groups);
    };
    make(
        ".weight",
        DType::u32,
        {stack_.experts, stack_.rows, stack_.in / 4},
        codes.file,
        [&](int64_t expert, size_t part, std::byte* to) {
          for (int64_t row = 0; row < stack_.rows; ++row) {
            const std::byte* from =
                codes.data + first_of(expert, part, row) * size_t(kBytes);
            for (int64_t i = 0; i < groups * kBytes; ++i) {
              *to++ = kCodes[size_t(from[i] & std::byte(15))];
              *to++ = kCodes[size_t(from[i] >> 4)];
            }
          }
        });
    for (bool bias : {false, true}) {
      make(
          bias ? ".biases" : ".scales",
          DType::bf16,
          {stack_.experts, stack_.rows, groups},
          exponents.file,
          [&](int64_t expert, size_t part, std::byte* to) {
            for (int64_t row = 0; row < stack_.rows; ++row) {
              const std::byte* from =
                  exponents.data + first_of(expert, part, row);
              for (int64_t i = 0; i < groups; ++i) {
                uint16_t value = unit(int(from[i]), bias);
                std::memcpy(to, &value, sizeof value);
                to += sizeof value;
              }
            }
          });
    }
  }

  static void check_exponents(
      const std::string& key, const WeightTensor& scales) {
    constexpr int kLargest = 251;  // 24 u is a finite number
    for (size_t i = 0; i < scales.bytes; ++i) {
      if (int exponent = int(scales.data[i]); exponent > kLargest) {
        throw CheckpointError(
            cat("tensor \"", key, "\" in ", scales.file, " is damaged"),
            cat("no weight has the scale 2^", exponent - 127),
            "fetch the checkpoint again");
      }
    }
  }

  // u or -12 u in bf16, which holds both exactly.
  static uint16_t unit(int exponent, bool bias) {
    float u = std::ldexp(1.0f, exponent - 128);
    return f32_to_bf16(bias ? -12 * u : u);
  }

  static constexpr std::array<std::byte, 16> kCodes = [] {
    constexpr int kHalves[8] = {0, 1, 2, 3, 4, 6, 8, 12};
    std::array<std::byte, 16> codes{};
    for (size_t i = 0; i < 8; ++i) {
      codes[i] = std::byte(12 + kHalves[i]);
      codes[i + 8] = std::byte(12 - kHalves[i]);
    }
    return codes;
  }();

  const Stack& stack_;
  WeightMap& weights_;
  TensorData data_;
  std::unique_ptr<ThreadPool>& pool_;  // made for the first tensor
};

}  // namespace

void spread_expert_stacks(
    const NameMap& names, WeightMap& weights, TensorData data) {
  std::unique_ptr<ThreadPool> pool;
  for (const PublishedStack& published : names.published_stacks()) {
    if (std::optional<Stack> stack = stack_of(names, published)) {
      Spreading(*stack, weights, data, pool).run();
    }
  }
}

}  // namespace mlxcel

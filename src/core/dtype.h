// Element types of checkpoint tensors and activations, and shapes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

namespace mlxcel {

// Names follow the safetensors header: F32, F16, BF16, U8, ...
enum class DType : uint8_t {
  boolean,
  u8,
  i8,
  u16,
  i16,
  u32,
  i32,
  u64,
  i64,
  f8_e4m3,
  f8_e5m2,
  f8_e8m0,
  f16,
  bf16,
  f32,
  f64,
};

size_t size_of(DType dtype);            // bytes per element
std::string_view name_of(DType dtype);  // the safetensors name, e.g. "BF16"
std::optional<DType> dtype_from_name(std::string_view name);
// f16, bf16, f32, f64: the types weights can be computed in.
bool is_float(DType dtype);

using Shape = std::vector<int64_t>;

// Number of elements; 1 for a scalar shape. Does not check for overflow.
int64_t element_count(const Shape& shape);
std::string to_string(const Shape& shape);  // "[2, 3]"

}  // namespace mlxcel

template <>
struct fmt::formatter<mlxcel::DType> : fmt::formatter<std::string_view> {
  auto format(mlxcel::DType dtype, format_context& ctx) const {
    return fmt::formatter<std::string_view>::format(
        mlxcel::name_of(dtype), ctx);
  }
};

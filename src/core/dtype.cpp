#include "core/dtype.h"

#include <array>

namespace mlxcel {

namespace {

struct DTypeRow {
  DType dtype;
  std::string_view name;
  size_t size;
};

// In the order of the enum, so that a row is found by its value.
constexpr std::array<DTypeRow, 16> kDTypes = {{
    {DType::boolean, "BOOL", 1},
    {DType::u8, "U8", 1},
    {DType::i8, "I8", 1},
    {DType::u16, "U16", 2},
    {DType::i16, "I16", 2},
    {DType::u32, "U32", 4},
    {DType::i32, "I32", 4},
    {DType::u64, "U64", 8},
    {DType::i64, "I64", 8},
    {DType::f8_e4m3, "F8_E4M3", 1},
    {DType::f8_e5m2, "F8_E5M2", 1},
    {DType::f8_e8m0, "F8_E8M0", 1},
    {DType::f16, "F16", 2},
    {DType::bf16, "BF16", 2},
    {DType::f32, "F32", 4},
    {DType::f64, "F64", 8},
}};

constexpr bool in_enum_order() {
  for (size_t i = 0; i < kDTypes.size(); ++i) {
    if (size_t(kDTypes[i].dtype) != i) {
      return false;
    }
  }
  return size_t(DType::f64) + 1 == kDTypes.size();
}
static_assert(in_enum_order());

}  // namespace

size_t size_of(DType dtype) {
  return kDTypes.at(size_t(dtype)).size;
}

std::string_view name_of(DType dtype) {
  return kDTypes.at(size_t(dtype)).name;
}

std::optional<DType> dtype_from_name(std::string_view name) {
  for (const DTypeRow& row : kDTypes) {
    if (row.name == name) {
      return row.dtype;
    }
  }
  return std::nullopt;
}

bool is_float(DType dtype) {
  return dtype == DType::f16 || dtype == DType::bf16 || dtype == DType::f32 ||
         dtype == DType::f64;
}

int64_t element_count(const Shape& shape) {
  int64_t count = 1;
  for (int64_t extent : shape) {
    count *= extent;
  }
  return count;
}

std::string to_string(const Shape& shape) {
  std::string out = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    out += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  }
  return out + "]";
}

}  // namespace mlxcel

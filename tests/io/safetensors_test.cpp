#include "io/safetensors.h"

#include "core/error.h"
#include "support/fixtures.h"
#include "support/temporary_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

namespace mlxcel {
namespace {

using testing::TemporaryFolder;

std::span<const std::byte> bytes_of(const WeightTensor& tensor) {
  return {tensor.data, tensor.bytes};
}

TEST(SafetensorsTest, ReadsEveryFixtureCheckpoint) {
  for (const std::string& name : testing::fixture_cases("text", "meta.json")) {
    auto path =
        testing::fixture_root() / "text" / name / "model/model.safetensors";
    SafetensorsFile mapped = read_safetensors(path);
    SafetensorsFile read = read_safetensors(path, {.mmap = false});
    ASSERT_GT(mapped.tensors.size(), 3u) << name;
    ASSERT_EQ(mapped.tensors.keys(), read.tensors.keys());
    EXPECT_TRUE(mapped.metadata.contains("format")) << name;
    for (const auto& [key, tensor] : mapped.tensors) {
      EXPECT_EQ(tensor.file, path.string());
      EXPECT_EQ(
          tensor.bytes,
          size_t(element_count(tensor.shape)) * size_of(tensor.dtype));
      EXPECT_TRUE(
          std::ranges::equal(bytes_of(tensor), bytes_of(read.tensors.at(key))));
    }
  }
}

TEST(SafetensorsTest, WritesWhatItReads) {
  TemporaryFolder folder;
  WeightMap tensors;
  std::byte* data = nullptr;
  for (DType dtype : {DType::u8, DType::f16, DType::f32, DType::i64}) {
    WeightTensor tensor = make_weight(dtype, {3, 5}, &data);
    for (size_t i = 0; i < tensor.bytes; ++i) {
      data[i] = std::byte(i * 7 + size_t(dtype));
    }
    tensors.set(cat("tensor.", dtype), tensor);
  }
  tensors.set("empty", make_weight(DType::f32, {0, 4}, &data));
  auto path = folder.path() / "out.safetensors";
  write_safetensors(path, tensors, {{"format", "mlx"}});
  SafetensorsFile back = read_safetensors(path);
  EXPECT_EQ(
      back.metadata, (std::map<std::string, std::string>{{"format", "mlx"}}));
  ASSERT_EQ(back.tensors.keys(), tensors.keys());
  for (const auto& [key, tensor] : tensors) {
    const WeightTensor& read = back.tensors.at(key);
    EXPECT_EQ(read.dtype, tensor.dtype);
    EXPECT_EQ(read.shape, tensor.shape);
    EXPECT_TRUE(std::ranges::equal(bytes_of(read), bytes_of(tensor))) << key;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(read.data) % size_of(read.dtype), 0u);
  }
  EXPECT_EQ(folder.files(), std::vector<std::string>{"out.safetensors"});
}

}  // namespace
}  // namespace mlxcel

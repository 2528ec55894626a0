#include "io/safetensors.h"

#include "core/error.h"
#include "support/fixtures.h"
#include "support/temporary_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>

namespace mlxcel {
namespace {

using testing::TemporaryFolder;

std::span<const std::byte> bytes_of(const WeightTensor& tensor) {
  return {tensor.data, tensor.bytes};
}

TEST(SafetensorsTest, ReadsEveryFixtureCheckpoint) {
  for (const std::string& name : testing::fixture_cases("text", "meta.json")) {
    auto path =
        testing::fixture_folder("text", name) / "model/model.safetensors";
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

// A file of a header and `data_bytes` bytes that count up.
std::string file_of(const std::string& header, size_t data_bytes) {
  uint64_t length = header.size();
  std::string out(reinterpret_cast<const char*>(&length), sizeof(length));
  out += header;
  for (size_t i = 0; i < data_bytes; ++i) {
    out += char(i * 31 + 7);
  }
  return out;
}

// What reading `content` says, with the file's path as FILE.
std::string refusal_of(const std::string& content) {
  TemporaryFolder folder;
  auto path = folder.write("model.safetensors", content);
  std::vector<std::string> messages;
  auto attempt = [&](auto read) {
    try {
      read();
      messages.push_back("no error");
    } catch (const CheckpointError& error) {
      std::string text = error.what();
      size_t at = text.find(path.string());
      EXPECT_NE(at, std::string::npos) << text;
      messages.push_back(text.replace(at, path.string().size(), "FILE"));
    }
  };
  attempt([&] { read_safetensors(path); });
  attempt([&] { read_safetensors(path, {.mmap = false}); });
  attempt([&] { read_safetensors_header(path); });
  EXPECT_EQ(messages[0], messages[1]);
  EXPECT_EQ(messages[0], messages[2]);
  return messages[0];
}

constexpr const char* kDamaged =
    "\n  the file is damaged or incomplete; fetch it again";

TEST(SafetensorsTest, RefusesDamagedLengths) {
  EXPECT_EQ(
      refusal_of(""),
      cat("cannot read FILE: header length: the file has only 0 bytes",
          kDamaged));
  EXPECT_EQ(
      refusal_of("1234567"),
      cat("cannot read FILE: header length: the file has only 7 bytes",
          kDamaged));
  std::string good = file_of("{}", 0);
  EXPECT_EQ(refusal_of(good), "no error");
  EXPECT_EQ(
      refusal_of(good.substr(0, good.size() - 1)),
      cat("cannot read FILE: header length 2 reaches past the end of the file "
          "at 9 bytes",
          kDamaged));
  std::string huge = good;
  std::memset(huge.data(), 0xff, 8);
  EXPECT_EQ(
      refusal_of(huge),
      "cannot read FILE: header length 18446744073709551615 is above the "
      "format's limit of 100000000\n  check that this is a safetensors file");
  std::string zero = good;
  std::memset(zero.data(), 0, 8);
  EXPECT_EQ(
      refusal_of(zero),
      "cannot read FILE: header: it does not begin with '{'\n  check that this "
      "is a safetensors file");
  EXPECT_EQ(
      refusal_of(std::string("PK\3\4") + std::string(100, 'x')),
      "cannot read FILE: header length 8680820738615364432 is above the "
      "format's limit of 100000000\n  check that this is a safetensors file");
}

TEST(SafetensorsTest, RefusesDamagedHeaders) {
  struct Case {
    const char* header;
    size_t data_bytes;
    const char* why;
  };
  const Case cases[] = {
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})",
       8,
       " (header): not valid JSON at byte "},
      {R"([1])", 0, ": header: it does not begin with '{'"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
       R"("a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
       8,
       " (header): key \"a\" appears twice in one object"},
      {R"({"a":{"dtype":"F32","dtype":"F16","shape":[1],"data_offsets":[0,4]}})",
       4,
       " (header): key \"dtype\" appears twice in one object"},
      {R"({"a":3})", 0, ": tensor \"a\": expected an object, found 3"},
      {R"({"a":{"shape":[1],"data_offsets":[0,4]}})",
       4,
       ": tensor \"a\": field \"dtype\" is missing"},
      {R"({"a":{"dtype":"F32","data_offsets":[0,4]}})",
       4,
       ": tensor \"a\": field \"shape\" is missing"},
      {R"({"a":{"dtype":"F32","shape":[1]}})",
       4,
       ": tensor \"a\": field \"data_offsets\" is missing"},
      {R"({"a":{"dtype":"F33","shape":[1],"data_offsets":[0,4]}})",
       4,
       ": tensor \"a\": dtype \"F33\" is not known"},
      {R"({"a":{"dtype":7,"shape":[1],"data_offsets":[0,4]}})",
       4,
       ": tensor \"a\": dtype 7 is not known"},
      {R"({"a":{"dtype":"F32","shape":4,"data_offsets":[0,4]}})",
       4,
       ": tensor \"a\": shape 4 is not a list"},
      {R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})",
       4,
       ": tensor \"a\": shape [-1] holds no sizes"},
      {R"({"a":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}})",
       4,
       ": tensor \"a\": shape [1.0] holds no sizes"},
      {R"({"a":{"dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,4]}})",
       4,
       ": tensor \"a\": shape [9223372036854775808] holds no sizes"},
      {R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4]}})",
       4,
       ": tensor \"a\": shape [4294967296,4294967296] is too large"},
      // 2^62 elements of four bytes are 2^64 bytes, which is 0 in 64 bits.
      {R"({"a":{"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,0]}})",
       0,
       ": tensor \"a\": shape [4611686018427387904] is too large"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}})",
       4,
       ": tensor \"a\": data_offsets [0] is not a pair of byte offsets"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[-4,0]}})",
       4,
       ": tensor \"a\": data_offsets [-4,0] is not a pair of byte offsets"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})",
       4,
       ": tensor \"a\": data_offsets [4,0] lie outside the file's 4 bytes of "
       "data"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
       4,
       ": tensor \"a\": data_offsets [4,8] lie outside the file's 4 bytes of "
       "data"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,18446744073709551615]}})",
       4,
       ": tensor \"a\": data_offsets [0,18446744073709551615] lie outside the "
       "file's 4 bytes of data"},
      {R"({"a":{"dtype":"F16","shape":[2,2],"data_offsets":[0,4]}})",
       4,
       ": tensor \"a\": data_offsets [0,4] span 4 bytes, but shape [2,2] of "
       "F16 "
       "takes 8"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
       R"("b":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}})",
       8,
       ": data_offsets of tensors \"a\" and \"b\" overlap"},
      {R"({"__metadata__":[]})", 0, ": __metadata__ is not an object"},
      {R"({"__metadata__":{"a":1}})",
       0,
       ": __metadata__: \"a\" is not a string"},
  };
  for (const Case& one : cases) {
    std::string message = refusal_of(file_of(one.header, one.data_bytes));
    EXPECT_THAT(
        message, ::testing::StartsWith(cat("cannot read FILE", one.why)))
        << one.header;
    EXPECT_THAT(message, ::testing::HasSubstr("\n  ")) << one.header;
  }
}

TEST(SafetensorsTest, RefusesDeepNesting) {
  std::string header = R"({"a":)" + std::string(100, '[');
  EXPECT_EQ(
      refusal_of(file_of(header, 0)),
      cat("cannot read FILE (header): nested deeper than 64 levels", kDamaged));
}

TEST(SafetensorsTest, AcceptsGapsPaddingScalarsAndEmptyTensors) {
  TemporaryFolder folder;
  auto path = folder.write(
      "a.safetensors",
      file_of(
          R"({"scalar":{"dtype":"F32","shape":[],"data_offsets":[4,8]},)"
          R"("none":{"dtype":"BF16","shape":[0,9],"data_offsets":[8,8]},)"
          R"("last":{"dtype":"U8","shape":[2],"data_offsets":[10,12]}}    )",
          16));
  SafetensorsFile file = read_safetensors(path);
  EXPECT_EQ(file.tensors.at("scalar").shape, Shape{});
  EXPECT_EQ(file.tensors.at("scalar").bytes, 4u);
  EXPECT_EQ(file.tensors.at("none").bytes, 0u);
  EXPECT_EQ(file.tensors.at("last").data[0], std::byte(uint8_t(10 * 31 + 7)));
}

TEST(SafetensorsTest, ReadsDataAtEveryOffset) {
  TemporaryFolder folder;
  const std::string entries =
      R"({"f":{"dtype":"F32","shape":[3],"data_offsets":[0,12]},)"
      R"("h":{"dtype":"BF16","shape":[3],"data_offsets":[12,18]}})";
  const float values[] = {1.5f, -2.25f, 3e-8f};
  const uint16_t halves[] = {0x3fc0, 0xc010, 0x0001};  // 1.5, -2.25, tiny
  for (size_t padding = 0; padding < 64; ++padding) {
    std::string content = file_of(entries + std::string(padding, ' '), 0);
    content.append(reinterpret_cast<const char*>(values), sizeof(values));
    content.append(reinterpret_cast<const char*>(halves), sizeof(halves));
    auto path = folder.write("a.safetensors", content);
    for (bool mmap : {true, false}) {
      SafetensorsFile file = read_safetensors(path, {.mmap = mmap});
      float out[3];
      read_as_f32(file.tensors.at("f"), out);
      EXPECT_EQ(std::memcmp(out, values, sizeof(values)), 0) << padding;
      read_as_f32(file.tensors.at("h"), out);
      EXPECT_EQ(out[0], 1.5f);
      EXPECT_EQ(out[1], -2.25f);
      EXPECT_EQ(out[2], std::ldexp(1.f, -133));  // smallest bf16 subnormal
    }
  }
}

TEST(SafetensorsTest, FailedWritesLeaveNothing) {
  TemporaryFolder folder;
  WeightMap tensors;
  std::byte* data = nullptr;
  tensors.set("a", make_weight(DType::f32, {1}, &data));
  auto path = folder.path() / "absent" / "a.safetensors";
  try {
    write_safetensors(path, tensors);
    FAIL();
  } catch (const CheckpointError& error) {
    EXPECT_EQ(
        std::string(error.what()),
        cat("cannot write ",
            path.string(),
            ": No such file or directory\n  check the folder's permissions and "
            "the free space"));
  }
  // The target is a folder: the rename fails and the temporary file goes.
  std::filesystem::create_directories(folder.path() / "b.safetensors");
  EXPECT_THROW(
      write_safetensors(folder.path() / "b.safetensors", tensors),
      CheckpointError);
  EXPECT_EQ(folder.files(), std::vector<std::string>{"b.safetensors"});
}

TEST(MappedFileTest, NamesFilesThatCannotBeRead) {
  TemporaryFolder folder;
  auto message = [](const std::filesystem::path& path) {
    try {
      MappedFile::open(path);
    } catch (const CheckpointError& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  auto absent = folder.path() / "absent";
  EXPECT_EQ(
      message(absent),
      cat("cannot read ",
          absent.string(),
          ": No such file or directory\n  check that the file exists and is "
          "readable"));
  EXPECT_EQ(
      message(folder.path()),
      cat("cannot read ", folder.path().string(), ": it is not a file"));
}

TEST(MappedFileDeathTest, TruncationNamesTheFile) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  TemporaryFolder folder;
  auto path = folder.write("weights.safetensors", std::string(20000, 'x'));
  EXPECT_EXIT(
      {
        install_truncation_handler();
        auto file = MappedFile::open(path);
        std::filesystem::resize_file(path, 0);
        volatile std::byte last = file->bytes()[15000];
        (void)last;
      },
      ::testing::ExitedWithCode(1),
      "mlxcel: .*weights.safetensors: the file became shorter");
}

}  // namespace
}  // namespace mlxcel

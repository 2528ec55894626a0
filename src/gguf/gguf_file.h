// Reads GGUF files, versions 2 and 3: typed metadata, then a table of tensors,
// then their data. https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
#pragma once

#include "core/dtype.h"
#include "core/error.h"
#include "io/mapped_file.h"

#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mlxcel {

// Element types by their number in the file.
enum class GgufType : uint32_t {
  f32 = 0,
  f16 = 1,
  q4_0 = 2,
  q4_1 = 3,
  q8_0 = 8
};

// "Q4_1", or "type 99" for a number that has no name.
std::string name_of(GgufType type);
// The types whose data can be read here.
bool is_readable(GgufType type);

struct GgufTensor {
  std::string name;
  GgufType type = GgufType::f32;
  Shape shape;  // outermost first, as everywhere here; the file has it reversed
  // Empty when the type is not readable.
  std::span<const std::byte> data;
};

class GgufFile {
 public:
  // Throws CheckpointError that names the file and the place.
  static GgufFile open(const std::filesystem::path& path);
  static GgufFile parse(
      std::span<const std::byte> bytes, const std::string& name);

  const std::string& name() const {
    return name_;
  }
  const std::map<std::string, GgufTensor>& tensors() const {
    return tensors_;
  }
  const GgufTensor* find(std::string_view name) const;

  // Metadata. Numbers, booleans, strings and arrays as JSON values.
  const nlohmann::json* metadata(std::string_view key) const;
  // Throws CheckpointError when the key is missing or of another type.
  template <typename T>
  T get(std::string_view key) const;
  template <typename T>
  T get_or(std::string_view key, T fallback) const;

 private:
  template <typename T>
  T convert(std::string_view key, const nlohmann::json& value) const;

  std::string name_;
  std::shared_ptr<const MappedFile> mapping_;
  std::map<std::string, nlohmann::json, std::less<>> metadata_;
  std::map<std::string, GgufTensor> tensors_;
};

}  // namespace mlxcel

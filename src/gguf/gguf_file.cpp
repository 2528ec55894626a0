#include "gguf/gguf_file.h"

#include "core/half.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

namespace mlxcel {

using Json = nlohmann::json;

namespace {

constexpr uint32_t kMagic = 0x46554747;  // "GGUF"
constexpr uint64_t kDefaultAlignment = 32;
constexpr int kMaxDims = 4;  // GGML_MAX_DIMS
constexpr int kMaxArrayDepth = 4;

// Names of the element types, by number; gaps are types that were removed.
constexpr std::array<std::string_view, 40> kTypeNames = {
    "F32",   "F16",   "Q4_0",    "Q4_1",   "",        "",      "Q5_0",
    "Q5_1",  "Q8_0",  "Q8_1",    "Q2_K",   "Q3_K",    "Q4_K",  "Q5_K",
    "Q6_K",  "Q8_K",  "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL",
    "IQ3_S", "IQ2_S", "IQ4_XS",  "I8",     "I16",     "I32",   "I64",
    "F64",   "IQ1_M", "BF16",    "",       "",        "",      "TQ1_0",
    "TQ2_0", "",      "",        "",       "MXFP4"};

struct Layout {
  int64_t elements = 1;  // of a block
  int64_t bytes = 0;
};

Layout layout_of(GgufType type) {
  switch (type) {
    case GgufType::f32:
      return {1, 4};
    case GgufType::f16:
      return {1, 2};
    case GgufType::q4_0:
      return {32, 18};
    case GgufType::q4_1:
      return {32, 20};
    case GgufType::q8_0:
      return {32, 34};
  }
  return {1, 0};
}

// Metadata value types of the format.
enum class ValueType : uint32_t {
  u8,
  i8,
  u16,
  i16,
  u32,
  i32,
  f32,
  boolean,
  string,
  array,
  u64,
  i64,
  f64,
};

class Reader {
 public:
  Reader(std::span<const std::byte> bytes, const std::string& name)
      : bytes_(bytes), name_(name) {}

  [[noreturn]] void fail(const std::string& why) const {
    throw CheckpointError(
        cat("cannot read the GGUF file ", name_),
        cat(why, ", at byte ", position_),
        "download the file again");
  }

  uint64_t remaining() const {
    return bytes_.size() - position_;
  }
  uint64_t position() const {
    return position_;
  }

  template <typename T>
  T scalar(std::string_view what) {
    if (remaining() < sizeof(T)) {
      fail(cat("the file ends inside ", what));
    }
    T value = load_unaligned<T>(bytes_.data() + position_);
    position_ += sizeof(T);
    return value;
  }

  std::string string(std::string_view what) {
    uint64_t size = scalar<uint64_t>(what);
    if (size > remaining()) {
      fail(cat(what, " is ", size, " bytes long, more than the file has left"));
    }
    std::string out(
        reinterpret_cast<const char*>(bytes_.data()) + position_, size);
    position_ += size;
    return out;
  }

  // A count of things that take at least `least` bytes each.
  uint64_t count(std::string_view what, uint64_t least) {
    uint64_t value = scalar<uint64_t>(what);
    if (value > remaining() / least) {
      fail(cat(what, " is ", value, ", more than the file can hold"));
    }
    return value;
  }

  Json value(ValueType type, const std::string& key, int depth = 0) {
    switch (type) {
      case ValueType::u8:
        return scalar<uint8_t>(key);
      case ValueType::i8:
        return scalar<int8_t>(key);
      case ValueType::u16:
        return scalar<uint16_t>(key);
      case ValueType::i16:
        return scalar<int16_t>(key);
      case ValueType::u32:
        return scalar<uint32_t>(key);
      case ValueType::i32:
        return scalar<int32_t>(key);
      case ValueType::f32:
        return scalar<float>(key);
      case ValueType::boolean: {
        uint8_t byte = scalar<uint8_t>(key);
        if (byte > 1) {
          fail(cat("the boolean ", key, " is ", int(byte)));
        }
        return byte == 1;
      }
      case ValueType::string:
        return string(key);
      case ValueType::u64:
        return scalar<uint64_t>(key);
      case ValueType::i64:
        return scalar<int64_t>(key);
      case ValueType::f64:
        return scalar<double>(key);
      case ValueType::array: {
        if (depth >= kMaxArrayDepth) {
          fail(cat(key, " is nested too deeply"));
        }
        auto element = ValueType(scalar<uint32_t>(key));
        // A string or an array takes at least its length.
        bool nested =
            element == ValueType::string || element == ValueType::array;
        uint64_t size = count(cat("the length of ", key), nested ? 8 : 1);
        Json out = Json::array();
        out.get_ref<Json::array_t&>().reserve(size);
        for (uint64_t i = 0; i < size; ++i) {
          out.push_back(value(element, key, depth + 1));
        }
        return out;
      }
    }
    fail(cat(key, " has the unknown value type ", uint32_t(type)));
  }

 private:
  std::span<const std::byte> bytes_;
  std::string name_;
  uint64_t position_ = 0;
};

// Where the tensor's data lies, relative to the data section.
struct Range {
  uint64_t offset = 0, bytes = 0;
  std::string name;
};

GgufTensor read_tensor(Reader& reader, Range* range) {
  GgufTensor tensor;
  tensor.name = reader.string("a tensor name");
  uint32_t dims = reader.scalar<uint32_t>(tensor.name);
  if (dims < 1 || dims > kMaxDims) {
    reader.fail(cat("tensor ", tensor.name, " has ", dims, " dimensions"));
  }
  uint64_t elements = 1;
  for (uint32_t i = 0; i < dims; ++i) {
    uint64_t dim = reader.scalar<uint64_t>(tensor.name);
    if (dim == 0 || __builtin_mul_overflow(elements, dim, &elements) ||
        elements > uint64_t(std::numeric_limits<int64_t>::max()) / 8) {
      reader.fail(cat("tensor ", tensor.name, " has an impossible shape"));
    }
    tensor.shape.insert(tensor.shape.begin(), int64_t(dim));
  }
  tensor.type = GgufType(reader.scalar<uint32_t>(tensor.name));
  range->name = tensor.name;
  range->offset = reader.scalar<uint64_t>(tensor.name);
  if (is_readable(tensor.type)) {
    Layout layout = layout_of(tensor.type);
    if (tensor.shape.back() % layout.elements != 0) {
      reader.fail(
          cat("tensor ",
              tensor.name,
              " has rows of ",
              tensor.shape.back(),
              " elements, no multiple of the ",
              layout.elements,
              " of a ",
              name_of(tensor.type),
              " block"));
    }
    range->bytes =
        elements / uint64_t(layout.elements) * uint64_t(layout.bytes);
  }
  return tensor;
}

void check_ranges(
    Reader& reader,
    std::vector<Range> ranges,
    uint64_t alignment,
    uint64_t available) {
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) {
    return a.offset < b.offset;
  });
  uint64_t end = 0;
  for (const Range& range : ranges) {
    if (range.offset % alignment != 0) {
      reader.fail(
          cat("tensor ",
              range.name,
              " starts at ",
              range.offset,
              ", no multiple of the alignment ",
              alignment));
    }
    if (range.offset > available || range.bytes > available - range.offset) {
      reader.fail(
          cat("tensor ",
              range.name,
              " lies outside the file: bytes ",
              range.offset,
              " to ",
              range.offset + range.bytes,
              " of ",
              available));
    }
    if (range.bytes > 0 && range.offset < end) {
      reader.fail(cat("tensor ", range.name, " overlaps another one"));
    }
    end = std::max(end, range.offset + range.bytes);
  }
}

}  // namespace

std::string name_of(GgufType type) {
  auto number = uint32_t(type);
  if (number < kTypeNames.size() && !kTypeNames[number].empty()) {
    return std::string(kTypeNames[number]);
  }
  return cat("type ", number);
}

bool is_readable(GgufType type) {
  return layout_of(type).bytes > 0;
}

GgufFile GgufFile::open(const std::filesystem::path& path) {
  std::shared_ptr<const MappedFile> mapping = MappedFile::open(path);
  GgufFile file = parse(mapping->bytes(), path.string());
  file.mapping_ = std::move(mapping);
  return file;
}

GgufFile GgufFile::parse(
    std::span<const std::byte> bytes, const std::string& name) {
  GgufFile file;
  file.name_ = name;
  Reader reader(bytes, name);
  if (bytes.size() < 4 || reader.scalar<uint32_t>("the magic") != kMagic) {
    throw CheckpointError(
        cat("cannot read the GGUF file ", name),
        "it does not start with the letters GGUF",
        "give a .gguf file");
  }
  uint32_t version = reader.scalar<uint32_t>("the version");
  if (version != 2 && version != 3) {
    throw CheckpointError(
        cat("cannot read the GGUF file ", name),
        (version & 0xffffu) == 0
            ? std::string("it is written for big-endian machines")
            : cat("it has version ", version, "; 2 and 3 are supported"),
        "convert the model again with a recent converter");
  }
  uint64_t tensors = reader.count("the number of tensors", 8 + 4 + 8 + 4 + 8);
  uint64_t pairs = reader.count("the number of metadata entries", 8 + 4 + 1);
  for (uint64_t i = 0; i < pairs; ++i) {
    std::string key = reader.string("a metadata key");
    auto type = ValueType(reader.scalar<uint32_t>(key));
    if (!file.metadata_.emplace(key, reader.value(type, key)).second) {
      reader.fail(cat("the metadata key ", key, " appears twice"));
    }
  }
  uint64_t alignment = kDefaultAlignment;
  if (file.metadata("general.alignment") != nullptr) {
    alignment = file.get<uint64_t>("general.alignment");
    if (alignment == 0 || (alignment & (alignment - 1)) != 0 ||
        alignment > (uint64_t(1) << 20)) {
      reader.fail(cat("general.alignment is ", alignment));
    }
  }
  std::vector<Range> ranges(tensors);
  std::vector<GgufTensor> list;
  for (uint64_t i = 0; i < tensors; ++i) {
    list.push_back(read_tensor(reader, &ranges[i]));
  }
  uint64_t data = (reader.position() + alignment - 1) / alignment * alignment;
  uint64_t available = data <= bytes.size() ? bytes.size() - data : 0;
  check_ranges(reader, ranges, alignment, available);
  for (uint64_t i = 0; i < tensors; ++i) {
    if (ranges[i].bytes > 0) {
      list[i].data = bytes.subspan(data + ranges[i].offset, ranges[i].bytes);
    }
    std::string tensor_name = list[i].name;
    if (!file.tensors_.emplace(tensor_name, std::move(list[i])).second) {
      reader.fail(cat("the tensor ", tensor_name, " appears twice"));
    }
  }
  return file;
}

const GgufTensor* GgufFile::find(std::string_view name) const {
  auto found = tensors_.find(std::string(name));
  return found == tensors_.end() ? nullptr : &found->second;
}

const Json* GgufFile::metadata(std::string_view key) const {
  auto found = metadata_.find(key);
  return found == metadata_.end() ? nullptr : &found->second;
}

template <typename T>
T GgufFile::convert(std::string_view key, const Json& value) const {
  bool fits = false;
  if constexpr (std::is_same_v<T, bool>) {
    fits = value.is_boolean();
  } else if constexpr (std::is_same_v<T, std::string>) {
    fits = value.is_string();
  } else if constexpr (std::is_floating_point_v<T>) {
    fits = value.is_number();
  } else if constexpr (std::is_integral_v<T>) {
    fits =
        value.is_number_integer() &&
        (value.is_number_unsigned()
             ? value.get<uint64_t>() <= uint64_t(std::numeric_limits<T>::max())
             : value.get<int64_t>() >= int64_t(std::numeric_limits<T>::min()) &&
                   (value.get<int64_t>() < 0 ||
                    uint64_t(value.get<int64_t>()) <=
                        uint64_t(std::numeric_limits<T>::max())));
  } else {  // vectors
    using Element = typename T::value_type;
    fits = value.is_array() &&
           std::all_of(value.begin(), value.end(), [](const Json& item) {
             return std::is_same_v<Element, std::string> ? item.is_string()
                                                         : item.is_number();
           });
  }
  if (!fits) {
    std::string text =
        value.is_array()
            ? "an array"
            : value.dump(-1, ' ', true, Json::error_handler_t::replace);
    throw CheckpointError(
        cat("cannot use the GGUF file ", name_),
        cat("its metadata key ", key, " is ", text),
        "convert the model again with a recent converter");
  }
  return value.get<T>();
}

template <typename T>
T GgufFile::get(std::string_view key) const {
  const Json* value = metadata(key);
  if (value == nullptr) {
    throw CheckpointError(
        cat("cannot use the GGUF file ", name_),
        cat("its metadata lacks the key ", key),
        "convert the model again with a recent converter");
  }
  return convert<T>(key, *value);
}

template <typename T>
T GgufFile::get_or(std::string_view key, T fallback) const {
  const Json* value = metadata(key);
  return value == nullptr ? std::move(fallback) : convert<T>(key, *value);
}

#define MLXCEL_GGUF_GET(T)                             \
  template T GgufFile::get<T>(std::string_view) const; \
  template T GgufFile::get_or<T>(std::string_view, T) const
MLXCEL_GGUF_GET(bool);
MLXCEL_GGUF_GET(int32_t);
MLXCEL_GGUF_GET(int64_t);
MLXCEL_GGUF_GET(uint64_t);
MLXCEL_GGUF_GET(float);
MLXCEL_GGUF_GET(std::string);
MLXCEL_GGUF_GET(std::vector<std::string>);
MLXCEL_GGUF_GET(std::vector<float>);
MLXCEL_GGUF_GET(std::vector<int32_t>);
#undef MLXCEL_GGUF_GET

}  // namespace mlxcel

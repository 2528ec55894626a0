#include "ops/matrix_source.h"

#include "core/error.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

namespace mlxcel {

namespace {

using nlohmann::json;

// Modes of MLX's nn.quantize, for a message that tells "not yet" from "wrong".
constexpr std::array<std::string_view, 4> kMlxModes = {
    "affine", "mxfp4", "mxfp8", "nvfp4"};

std::string listed(const std::vector<int>& values) {
  std::string out;
  for (size_t i = 0; i < values.size(); ++i) {
    out += (i == 0                   ? ""
            : i + 1 == values.size() ? " or "
                                     : ", ") +
           std::to_string(values[i]);
  }
  return out;
}

bool contains(const std::vector<int>& values, int64_t value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

const PackedFormat* find_format(QuantMode mode) {
  for (const PackedFormat& format : packed_formats()) {
    if (format.mode == mode) {
      return &format;
    }
  }
  return nullptr;
}

std::string describe(const WeightTensor& tensor) {
  return cat(tensor.dtype, " ", to_string(tensor.shape));
}

std::string place_of(const WeightTensor& tensor) {
  return tensor.file.empty() ? std::string() : " in " + tensor.file;
}

[[noreturn]] void refuse(
    std::string_view key,
    const WeightTensor& tensor,
    const std::string& problem,
    const std::string& why,
    std::string fix) {
  throw CheckpointError(
      cat("tensor \"", key, "\"", place_of(tensor), " ", problem),
      why,
      std::move(fix));
}

constexpr const char* kRefetch =
    "fetch the checkpoint again, or convert it again from its original";
constexpr const char* kCheckConfig =
    "check that config.json belongs to these weights";

// One entry of the quantization table: the default or a layer's.
Quant parse_quant(const Config& entry, Quant quant, const std::string& where) {
  if (std::optional<std::string> mode = entry.find<std::string>("mode")) {
    const PackedFormat* found = nullptr;
    for (const PackedFormat& format : packed_formats()) {
      found = format.name == *mode ? &format : found;
    }
    if (found == nullptr) {
      bool of_mlx = std::find(kMlxModes.begin(), kMlxModes.end(), *mode) !=
                    kMlxModes.end();
      throw ConfigError(
          cat(entry.file(),
              ": quantization mode \"",
              *mode,
              "\" is not ",
              of_mlx ? "supported" : "known"),
          cat("found in \"", where, "\""),
          "supported: " + supported_formats());
    }
    quant.mode = found->mode;
  }
  for (auto [key, field] :
       {std::pair{"bits", &quant.bits}, {"group_size", &quant.group_size}}) {
    if (std::optional<int> value = entry.find<int>(key)) {
      if (*value <= 0) {
        throw ConfigError(
            cat(entry.file(), ": \"", where, ".", key, "\" is ", *value),
            "expected a positive number");
      }
      *field = *value;
    }
  }
  return quant;
}

}  // namespace

const std::vector<PackedFormat>& packed_formats() {
  static const std::vector<PackedFormat> formats = {
      {.name = "affine",
       .mode = QuantMode::affine,
       .bits = {4, 8},
       .group_sizes = {32, 64, 128}},
  };
  return formats;
}

std::string supported_formats() {
  std::string out;
  for (const PackedFormat& format : packed_formats()) {
    out +=
        cat(out.empty() ? "" : "; ",
            format.name,
            " with ",
            listed(format.bits),
            " bits in groups of ",
            listed(format.group_sizes));
  }
  return out;
}

QuantConfig::QuantConfig(const Config& config) {
  std::string where = "quantization";
  std::optional<Config> table = config.find_sub(where);
  if (!table) {
    where = config.has("quantization_config") ? "quantization_config"
                                              : "compression_config";
    table = config.find_sub(where);
  }
  if (!table) {
    return;
  }
  // Another tool's checkpoint; MLX's own has no method or calls it "mlx".
  std::optional<std::string> method = table->find<std::string>("quant_method");
  if (method == "mxfp4") {
    return;  // blocks of experts, which loading recodes: expert_stacks.h
  }
  if (where != "quantization" && method && *method != "mlx") {
    throw ConfigError(
        cat(config.file(),
            ": quantization method \"",
            *method,
            "\" is not supported"),
        cat("found in \"", where, ".quant_method\""),
        cat("supported: ",
            supported_formats(),
            ", as mlx-community checkpoints have it; or use the unquantized "
            "model"));
  }
  stated_ = true;
  default_ = parse_quant(*table, default_, where);
  for (const auto& [key, value] : table->json().items()) {
    if (value.is_object()) {
      Config entry = table->sub(key);
      layers_[key] = parse_quant(entry, default_, cat(where, ".", key));
    } else if (value.is_boolean()) {
      layers_[key] = value.get<bool>() ? std::optional(default_) : std::nullopt;
    } else if (key.find('.') != std::string::npos && !value.is_null()) {
      throw ConfigError(
          cat(config.file(), ": \"", where, ".", key, "\" has the wrong type"),
          cat("expected an object, true or false, found ", value.type_name()),
          "correct the value in the file");
    }
  }
}

Quant QuantConfig::of(std::string_view stem) const {
  auto found = layers_.find(stem);
  return found != layers_.end() && found->second ? *found->second : default_;
}

const PackedFormat& QuantConfig::format_of(std::string_view stem) const {
  // The constructor has refused every mode without a row.
  return *find_format(of(stem).mode);
}

bool QuantConfig::excludes(std::string_view stem) const {
  auto found = layers_.find(stem);
  return found != layers_.end() && !found->second;
}

MatrixSource::MatrixSource(const WeightMap& weights, const Config& config)
    : weights_(weights), config_file_(config.file()), quant_(config) {}

void MatrixSource::claim(std::string_view key) {
  if (claimed_.find(key) == claimed_.end()) {
    claimed_.emplace(key);
  }
}

const WeightTensor& MatrixSource::use(std::string_view key) {
  const WeightTensor& tensor = weights_.at(key);
  claim(key);
  return tensor;
}

std::vector<std::string> MatrixSource::unclaimed() const {
  std::vector<std::string> out;
  for (const auto& [key, tensor] : weights_) {
    if (claimed_.find(key) == claimed_.end()) {
      out.push_back(key);
    }
  }
  return out;
}

WeightTensor MatrixSource::tensor(std::string_view key, const Shape& shape) {
  const WeightTensor& found = use(key);
  if (!is_float(found.dtype)) {
    refuse(
        key,
        found,
        "does not hold numbers",
        cat("it is ", describe(found), ", expected floats ", to_string(shape)),
        kRefetch);
  }
  if (found.shape != shape) {
    refuse(
        key,
        found,
        "has the wrong shape",
        cat("it is ",
            to_string(found.shape),
            ", the model needs ",
            to_string(shape)),
        kCheckConfig);
  }
  return found;
}

std::optional<WeightTensor> MatrixSource::find_tensor(
    std::string_view key, const Shape& shape) {
  if (!has(key)) {
    return std::nullopt;
  }
  return tensor(key, shape);
}

namespace {

// Rows and rank of a matrix, packed or not.
void check_rows(
    std::string_view key, const WeightTensor& tensor, int64_t out, int64_t in) {
  if (tensor.ndim() != 2 || (out != 0 && tensor.dim(0) != out)) {
    refuse(
        key,
        tensor,
        "has the wrong shape",
        cat("it is ",
            describe(tensor),
            ", the model needs ",
            out == 0 ? std::string("any number of") : std::to_string(out),
            " rows of ",
            in,
            " weights"),
        kCheckConfig);
  }
}

// The packed format of a matrix with `in` weights a row, from the shapes.
Quant resolve_packed(
    const std::string& stem,
    const WeightTensor& weight,
    const WeightTensor& scales,
    const WeightTensor* biases,
    const PackedFormat& format,
    int64_t in) {
  std::string key = stem + ".weight";
  auto shapes = [&] {
    return cat(
        "weight ",
        describe(weight),
        ", scales ",
        describe(scales),
        biases != nullptr ? cat(", biases ", describe(*biases))
                          : std::string(", no biases"),
        ", and the model needs ",
        in,
        " weights a row");
  };
  if (format.has_biases && biases == nullptr) {
    refuse(
        key,
        weight,
        cat("has no \"", stem, ".biases\""),
        cat("a weight packed as ",
            format.name,
            " needs scales and biases: ",
            shapes()),
        kRefetch);
  }
  if (weight.dtype != DType::u32) {
    refuse(
        key,
        weight,
        "is not packed",
        cat("it has scales, so 32-bit words were expected: ", shapes()),
        kRefetch);
  }
  bool scales_fit = scales.ndim() == 2 && scales.dim(0) == weight.dim(0) &&
                    is_float(scales.dtype) && scales.dim(1) > 0 &&
                    in % scales.dim(1) == 0;
  bool biases_fit = biases == nullptr || (biases->shape == scales.shape &&
                                          biases->dtype == scales.dtype);
  int64_t packed_bits = 0;
  bool words_fit =
      !__builtin_mul_overflow(weight.dim(1), int64_t(32), &packed_bits) &&
      packed_bits > 0 && packed_bits % in == 0;
  if (!scales_fit || !biases_fit || !words_fit) {
    refuse(
        key,
        weight,
        "and its scales do not fit together",
        shapes(),
        "check config.json's dimensions, or fetch the checkpoint again");
  }
  int64_t bits = packed_bits / in;
  int64_t group_size = in / scales.dim(1);
  if (!contains(format.bits, bits) ||
      !contains(format.group_sizes, group_size)) {
    refuse(
        key,
        weight,
        cat("is packed with ",
            bits,
            " bits in groups of ",
            group_size,
            ", which is not supported"),
        shapes(),
        "supported: " + supported_formats());
  }
  return {format.mode, int(bits), int(group_size)};
}

}  // namespace

MatrixWeight MatrixSource::make_matrix(
    std::string_view stem_view,
    const WeightTensor& weight,
    const WeightTensor* scales,
    const WeightTensor* biases,
    int64_t out,
    int64_t in) {
  if (in <= 0 || out < 0) {
    throw ShapeError(
        cat("matrix \"", stem_view, "\" cannot have ", out, " rows of ", in),
        "",
        kCheckConfig);
  }
  std::string stem(stem_view);
  std::string key = stem + ".weight";
  check_rows(key, weight, out, in);

  MatrixWeight matrix;
  matrix.name = stem;
  matrix.out = weight.dim(0);
  matrix.in = in;
  matrix.weight = weight;
  if (scales == nullptr) {
    if (!is_float(weight.dtype) || biases != nullptr) {
      refuse(
          key,
          weight,
          cat("has no \"", stem, ".scales\""),
          cat("its ", describe(weight), " cannot be read without them"),
          kRefetch);
    }
    if (weight.dim(1) != in) {
      refuse(
          key,
          weight,
          "has the wrong shape",
          cat("it is ",
              describe(weight),
              ", the model needs [",
              matrix.out,
              ", ",
              in,
              "]"),
          kCheckConfig);
    }
    return matrix;
  }
  if (quant_.excludes(stem)) {
    refuse(
        key,
        weight,
        "has scales",
        cat(config_file_, " says that this layer is not quantized"),
        kCheckConfig);
  }
  matrix.quant =
      resolve_packed(stem, weight, *scales, biases, quant_.format_of(stem), in);
  claim(stem + ".scales");
  matrix.scales = *scales;
  if (biases != nullptr) {
    claim(stem + ".biases");
    matrix.biases = *biases;
  }
  return matrix;
}

MatrixWeight MatrixSource::matrix(
    std::string_view stem, int64_t out, int64_t in) {
  return make_matrix(
      stem,
      use(cat(stem, ".weight")),
      weights_.find(cat(stem, ".scales")),
      weights_.find(cat(stem, ".biases")),
      out,
      in);
}

namespace {

// [count, rows, columns] as [count * rows, columns]: a view.
WeightTensor flatten(
    std::string_view key,
    const WeightTensor& tensor,
    int64_t count,
    int64_t out,
    int64_t in) {
  if (tensor.ndim() != 3 || tensor.dim(0) != count || tensor.dim(1) != out) {
    refuse(
        key,
        tensor,
        "has the wrong shape",
        cat("it is ",
            describe(tensor),
            ", the model needs ",
            count,
            " experts with ",
            out,
            " rows of ",
            in,
            " weights"),
        kCheckConfig);
  }
  WeightTensor flat = tensor;
  flat.shape = {count * out, tensor.dim(2)};
  return flat;
}

}  // namespace

MatrixWeight MatrixSource::stack(
    std::string_view stem, int64_t count, int64_t out, int64_t in) {
  std::optional<WeightTensor> parts[3];
  const char* suffixes[3] = {".weight", ".scales", ".biases"};
  for (size_t i = 0; i < 3; ++i) {
    std::string key = cat(stem, suffixes[i]);
    if (i == 0 || has(key)) {
      parts[i] = flatten(key, use(key), count, out, in);
    }
  }
  return make_matrix(
      stem,
      *parts[0],
      parts[1] ? &*parts[1] : nullptr,
      parts[2] ? &*parts[2] : nullptr,
      count * out,
      in);
}

}  // namespace mlxcel

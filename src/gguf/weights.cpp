#include "gguf/convert.h"

#include "core/half.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

namespace mlxcel {

using Json = nlohmann::ordered_json;

namespace {

constexpr int64_t kBlock = 32;  // elements of every quantized block

// A tensor of the model: its names here and there, and its shape.
struct Row {
  std::string from, to;
  Shape shape;
  int64_t rotated_heads = 0;  // > 0: rows are rotary pairs of so many heads
};

std::vector<Row> rows_of(const GgufLlama& model) {
  int64_t hidden = model.hidden_size, inner = model.intermediate_size;
  int64_t q = model.heads * model.head_dim,
          kv = model.kv_heads * model.head_dim;
  std::vector<Row> rows = {
      {"token_embd.weight",
       "model.embed_tokens.weight",
       {model.vocab_size, hidden}},
      {"output_norm.weight", "model.norm.weight", {hidden}}};
  if (!model.tied_head) {
    rows.push_back(
        {"output.weight", "lm_head.weight", {model.vocab_size, hidden}});
  }
  for (int64_t layer = 0; layer < model.layers; ++layer) {
    std::string from = cat("blk.", layer, "."),
                to = cat("model.layers.", layer, ".");
    auto linear = [&](const char* source,
                      const char* target,
                      int64_t out,
                      int64_t in,
                      bool bias,
                      int64_t heads = 0) {
      rows.push_back(
          {cat(from, source, ".weight"),
           cat(to, target, ".weight"),
           {out, in},
           heads});
      if (bias) {
        rows.push_back(
            {cat(from, source, ".bias"),
             cat(to, target, ".bias"),
             {out},
             heads});
      }
    };
    bool bias = model.attention_bias;
    linear("attn_q", "self_attn.q_proj", q, hidden, bias, model.heads);
    linear("attn_k", "self_attn.k_proj", kv, hidden, bias, model.kv_heads);
    linear("attn_v", "self_attn.v_proj", kv, hidden, bias);
    linear("attn_output", "self_attn.o_proj", hidden, q, bias);
    linear("ffn_gate", "mlp.gate_proj", inner, hidden, model.mlp_bias);
    linear("ffn_up", "mlp.up_proj", inner, hidden, model.mlp_bias);
    linear("ffn_down", "mlp.down_proj", hidden, inner, model.mlp_bias);
    rows.push_back(
        {from + "attn_norm.weight", to + "input_layernorm.weight", {hidden}});
    rows.push_back(
        {from + "ffn_norm.weight",
         to + "post_attention_layernorm.weight",
         {hidden}});
  }
  return rows;
}

// The file's row that becomes row `row`. A head's rows lie as rotary pairs
// (2i, 2i+1) in the file and as two halves (i, i + size/2) here.
int64_t source_row(int64_t row, int64_t rows, int64_t rotated_heads) {
  if (rotated_heads == 0) {
    return row;
  }
  int64_t size = rows / rotated_heads, half = size / 2;
  int64_t head = row / size, within = row % size;
  return head * size + 2 * (within % half) + within / half;
}

bool is_quantized(GgufType type) {
  return type == GgufType::q4_0 || type == GgufType::q4_1 ||
         type == GgufType::q8_0;
}

// One block of 32 as w = scale * q + bias, q unsigned.
struct Block {
  float scale, bias;
  uint8_t q[kBlock];
};

// Block layouts as in ggml-common.h: f16 scale d, for Q4_1 then f16 minimum m;
// 4-bit elements i and i + 16 share byte i, i in the low half.
Block read_block(GgufType type, const std::byte* data) {
  Block block;
  block.scale = f16_to_f32(load_unaligned<uint16_t>(data));
  data += 2;
  if (type == GgufType::q8_0) {  // w = d * q, q in [-128, 127]
    block.bias = -128 * block.scale;
    for (int64_t i = 0; i < kBlock; ++i) {
      block.q[i] = uint8_t(uint8_t(data[i]) ^ 0x80);  // q + 128
    }
    return block;
  }
  if (type == GgufType::q4_1) {  // w = d * q + m
    block.bias = f16_to_f32(load_unaligned<uint16_t>(data));
    data += 2;
  } else {  // Q4_0: w = d * (q - 8)
    block.bias = -8 * block.scale;
  }
  for (int64_t i = 0; i < kBlock / 2; ++i) {
    auto byte = uint8_t(data[i]);
    block.q[i] = byte & 15;
    block.q[i + kBlock / 2] = byte >> 4;
  }
  return block;
}

int64_t block_bytes(GgufType type) {
  return type == GgufType::q8_0 ? 34 : type == GgufType::q4_1 ? 20 : 18;
}

int bits_of(GgufType type) {
  return type == GgufType::q8_0 ? 8 : 4;
}

[[noreturn]] void fail(
    const GgufFile& file, const std::string& why, const std::string& fix) {
  throw CheckpointError(
      cat("cannot import the GGUF file ", file.name()), why, fix);
}

class Converter {
 public:
  Converter(const GgufFile& file, const GgufLlama& model, bool dequantize)
      : file_(file), rows_(rows_of(model)), dequantize_(dequantize) {}

  GgufWeights run() {
    check();
    choose_dtype();
    for (const Row& row : rows_) {
      convert(row, *file_.find(row.from));
    }
    out_.quantization = quantization();
    return std::move(out_);
  }

 private:
  // Everything is checked before anything is converted.
  void check() {
    std::set<std::string> known = {"rope_freqs.weight"};  // read by the config
    for (const Row& row : rows_) {
      known.insert(row.from);
    }
    std::vector<std::string> unreadable;
    for (const auto& [name, tensor] : file_.tensors()) {
      if (!known.contains(name)) {
        fail(
            file_,
            cat("its tensor ", name, " has no place in a llama model"),
            "use the model's safetensors checkpoint instead");
      }
      if (!is_readable(tensor.type)) {
        unreadable.push_back(cat(name, " (", name_of(tensor.type), ")"));
      }
    }
    if (!unreadable.empty()) {
      size_t count = unreadable.size();
      unreadable.resize(std::min<size_t>(count, 3));
      fail(
          file_,
          cat(count,
              " of its tensors have types that cannot be read: ",
              fmt::format("{}", fmt::join(unreadable, ", ")),
              count > 3 ? ", ..." : ""),
          "use a file with Q4_0, Q4_1, Q8_0, F16 or F32 tensors alone");
    }
    for (const Row& row : rows_) {
      const GgufTensor* tensor = file_.find(row.from);
      if (tensor == nullptr) {
        fail(
            file_,
            cat("it lacks the tensor ", row.from),
            "download the file again");
      }
      if (tensor->shape != row.shape) {
        fail(
            file_,
            cat("its tensor ",
                row.from,
                " has the shape ",
                to_string(tensor->shape),
                ", not ",
                to_string(row.shape)),
            "convert the model again with a recent converter");
      }
      if (row.shape.size() == 1 && is_quantized(tensor->type)) {
        fail(
            file_,
            cat("its tensor ", row.from, " is quantized"),
            "convert the model again with a recent converter");
      }
    }
  }

  // What is not quantized: bf16 when everything is dequantized, else the type
  // of the matrices; f16 beside quantized ones, whose scales are f16.
  void choose_dtype() {
    dtype_ = DType::f16;
    if (dequantize_) {
      dtype_ = DType::bf16;
      out_.dtype = "bfloat16";
      return;
    }
    bool all_f32 = true;
    for (const Row& row : rows_) {
      const GgufTensor& tensor = *file_.find(row.from);
      all_f32 = all_f32 && tensor.type == GgufType::f32;
    }
    if (all_f32) {
      dtype_ = DType::f32;
    }
    out_.dtype = all_f32 ? "float32" : "float16";
  }

  void convert(const Row& row, const GgufTensor& tensor) {
    out_.parameters += element_count(row.shape);
    if (is_quantized(tensor.type) && !dequantize_) {
      repack(row, tensor);
    } else {
      write_plain(row, tensor);
    }
  }

  // A row of the file as f32.
  void read_row(
      const GgufTensor& tensor, int64_t row, std::vector<float>* out) {
    int64_t cols = int64_t(out->size());
    if (is_quantized(tensor.type)) {
      int64_t bytes = block_bytes(tensor.type), blocks = cols / kBlock;
      const std::byte* data = tensor.data.data() + row * blocks * bytes;
      for (int64_t b = 0; b < blocks; ++b) {
        Block block = read_block(tensor.type, data + b * bytes);
        for (int64_t i = 0; i < kBlock; ++i) {
          (*out)[size_t(b * kBlock + i)] =
              block.scale * float(block.q[i]) + block.bias;
        }
      }
      return;
    }
    for (int64_t i = 0; i < cols; ++i) {
      int64_t at = row * cols + i;
      (*out)[size_t(i)] =
          tensor.type == GgufType::f32
              ? load_unaligned<float>(tensor.data.data() + at * 4)
              : f16_to_f32(
                    load_unaligned<uint16_t>(tensor.data.data() + at * 2));
    }
  }

  void write_plain(const Row& row, const GgufTensor& tensor) {
    // A bias is a column as far as rows of heads go.
    int64_t rows =
        row.rotated_heads > 0 || row.shape.size() == 2 ? row.shape[0] : 1;
    int64_t cols = element_count(row.shape) / rows;
    DType dtype = dtype_;
    if (dtype == DType::f16 && tensor.type == GgufType::f32) {
      dtype = exact_in_f16(tensor) ? DType::f16 : DType::f32;
    }
    std::byte* data = nullptr;
    WeightTensor out = make_weight(dtype, row.shape, &data);
    std::vector<float> values(static_cast<size_t>(cols));
    for (int64_t r = 0; r < rows; ++r) {
      read_row(tensor, source_row(r, rows, row.rotated_heads), &values);
      for (int64_t c = 0; c < cols; ++c) {
        put(dtype, values[size_t(c)], data);
        data += size_of(dtype);
      }
    }
    out_.tensors.set(row.to, std::move(out));
    if (row.shape.size() == 2) {
      plain_.push_back(stem(row));
    }
  }

  static void put(DType dtype, float value, std::byte* data) {
    if (dtype == DType::f32) {
      std::memcpy(data, &value, sizeof(value));
      return;
    }
    uint16_t bits =
        dtype == DType::bf16 ? f32_to_bf16(value) : f32_to_f16(value);
    std::memcpy(data, &bits, sizeof(bits));
  }

  static bool exact_in_f16(const GgufTensor& tensor) {
    for (size_t i = 0; i < tensor.data.size(); i += 4) {
      auto value = load_unaligned<float>(tensor.data.data() + i);
      if (f16_to_f32(f32_to_f16(value)) != value) {
        return false;
      }
    }
    return true;
  }

  // Blocks as they are, in MLX's layout: a row's elements are a little-endian
  // bit stream, scales and biases f16, one a block.
  void repack(const Row& row, const GgufTensor& tensor) {
    int64_t rows = row.shape[0], blocks = row.shape[1] / kBlock;
    int bits = bits_of(tensor.type);
    int64_t bytes = block_bytes(tensor.type), packed = kBlock * bits / 8;
    std::byte *weight_data, *scale_data, *bias_data;
    WeightTensor weight =
        make_weight(DType::u32, {rows, blocks * bits}, &weight_data);
    WeightTensor scales = make_weight(DType::f16, {rows, blocks}, &scale_data);
    WeightTensor biases = make_weight(DType::f16, {rows, blocks}, &bias_data);
    for (int64_t r = 0; r < rows; ++r) {
      const std::byte* source =
          tensor.data.data() +
          source_row(r, rows, row.rotated_heads) * blocks * bytes;
      for (int64_t b = 0; b < blocks; ++b, source += bytes) {
        Block block = read_block(tensor.type, source);
        for (int64_t i = 0; i < packed; ++i) {
          weight_data[i] =
              bits == 8 ? std::byte(block.q[i])
                        : std::byte(block.q[2 * i] | block.q[2 * i + 1] << 4);
        }
        weight_data += packed;
        put(DType::f16, block.scale, scale_data);
        put(DType::f16, block.bias, bias_data);
        if (!std::isfinite(f16_to_f32(load_unaligned<uint16_t>(bias_data))) ||
            !std::isfinite(block.scale)) {
          fail(
              file_,
              cat("its tensor ",
                  row.from,
                  " has a block with the scale ",
                  block.scale,
                  ", whose offset does not fit f16"),
              "import it with --dequantize");
        }
        scale_data += 2;
        bias_data += 2;
      }
    }
    std::string name = stem(row);
    out_.tensors.set(name + ".weight", std::move(weight));
    out_.tensors.set(name + ".scales", std::move(scales));
    out_.tensors.set(name + ".biases", std::move(biases));
    (bits == 4 ? four_bits_ : eight_bits_).push_back(name);
  }

  static std::string stem(const Row& row) {
    return row.to.substr(0, row.to.size() - std::strlen(".weight"));
  }

  // The commoner width for all, the other one and plain matrices by name.
  Json quantization() const {
    if (four_bits_.empty() && eight_bits_.empty()) {
      return nullptr;
    }
    bool four = four_bits_.size() >= eight_bits_.size();
    Json out = {
        {"group_size", kBlock}, {"bits", four ? 4 : 8}, {"mode", "affine"}};
    for (const std::string& name : four ? eight_bits_ : four_bits_) {
      out[name] = {
          {"group_size", kBlock}, {"bits", four ? 8 : 4}, {"mode", "affine"}};
    }
    for (const std::string& name : plain_) {
      out[name] = false;
    }
    return out;
  }

  const GgufFile& file_;
  std::vector<Row> rows_;
  bool dequantize_;
  DType dtype_ = DType::f16;
  GgufWeights out_;
  std::vector<std::string> four_bits_, eight_bits_, plain_;  // stems
};

}  // namespace

GgufWeights gguf_weights(
    const GgufFile& file, const GgufLlama& model, bool dequantize) {
  return Converter(file, model, dequantize).run();
}

}  // namespace mlxcel

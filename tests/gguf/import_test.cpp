// GGUF files written here, block by block, and read back from the imported
// folder against values computed from the same blocks.
#include "gguf/import.h"

#include "core/error.h"
#include "core/half.h"
#include "gguf/gguf_file.h"
#include "io/safetensors.h"
#include "support/temporary_folder.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>

namespace mlxcel::testing {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

// Writes GGUF version 3.
class Writer {
 public:
  template <typename T>
  static std::string raw(T value) {
    std::string out(sizeof(T), '\0');
    std::memcpy(out.data(), &value, sizeof(T));
    return out;
  }
  static std::string text(const std::string& value) {
    return raw<uint64_t>(value.size()) + value;
  }

  void set(const std::string& key, uint32_t type, const std::string& value) {
    metadata_[key] = raw(type) + value;
  }
  void number(const std::string& key, uint32_t value) {
    set(key, 4, raw(value));
  }
  void real(const std::string& key, float value) {
    set(key, 6, raw(value));
  }
  void string(const std::string& key, const std::string& value) {
    set(key, 8, text(value));
  }
  void boolean(const std::string& key, bool value) {
    set(key, 7, raw(uint8_t(value)));
  }
  void strings(const std::string& key, const std::vector<std::string>& values) {
    std::string out = raw<uint32_t>(8) + raw<uint64_t>(values.size());
    for (const std::string& value : values) {
      out += text(value);
    }
    set(key, 9, out);
  }
  void numbers(const std::string& key, const std::vector<int32_t>& values) {
    std::string out = raw<uint32_t>(5) + raw<uint64_t>(values.size());
    for (int32_t value : values) {
      out += raw(value);
    }
    set(key, 9, out);
  }
  void erase(const std::string& key) {
    metadata_.erase(key);
  }

  struct Tensor {
    Shape shape;  // outermost first
    uint32_t type = 0;
    std::string data;
  };
  std::map<std::string, Tensor> tensors;

  std::string bytes() const {
    std::string out = "GGUF" + raw<uint32_t>(3) +
                      raw<uint64_t>(tensors.size()) +
                      raw<uint64_t>(metadata_.size());
    for (const auto& [key, value] : metadata_) {
      out += text(key) + value;
    }
    std::string data;
    for (const auto& [name, tensor] : tensors) {
      out += text(name) + raw<uint32_t>(uint32_t(tensor.shape.size()));
      for (size_t i = tensor.shape.size(); i > 0; --i) {
        out += raw<uint64_t>(uint64_t(tensor.shape[i - 1]));
      }
      out += raw(tensor.type) + raw<uint64_t>(data.size());
      data += tensor.data;
      data.resize((data.size() + 31) / 32 * 32);
    }
    out.resize((out.size() + 31) / 32 * 32);
    return out + data;
  }

 private:
  std::map<std::string, std::string> metadata_;
};

constexpr int64_t kHidden = 64, kInner = 96, kHeads = 4, kKvHeads = 2;
constexpr int64_t kHeadDim = 16, kVocab = 8;

enum Type : uint32_t { kF32 = 0, kF16 = 1, kQ40 = 2, kQ41 = 3, kQ80 = 8 };

// Random blocks and the values they stand for, by the definition of the type.
Writer::Tensor random_tensor(
    Shape shape,
    uint32_t type,
    std::mt19937& random,
    std::vector<double>* values) {
  auto pick = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  Writer::Tensor out{shape, type, {}};
  int64_t count = element_count(shape);
  values->clear();
  if (type == kF32 || type == kF16) {
    for (int64_t i = 0; i < count; ++i) {
      float value = f16_to_f32(f32_to_f16(float(pick(-1000, 1000)) / 512));
      values->push_back(double(value));
      out.data +=
          type == kF32 ? Writer::raw(value) : Writer::raw(f32_to_f16(value));
    }
    return out;
  }
  for (int64_t block = 0; block < count / 32; ++block) {
    uint16_t d = f32_to_f16(float(pick(1, 2000)) / 4096);
    double scale = double(f16_to_f32(d));
    out.data += Writer::raw(d);
    if (type == kQ80) {
      for (int i = 0; i < 32; ++i) {
        int q = pick(-128, 127);
        out.data.push_back(char(q));
        values->push_back(scale * q);
      }
      continue;
    }
    double offset = -8 * scale;
    if (type == kQ41) {
      uint16_t m = f32_to_f16(float(pick(-2000, 0)) / 1024);
      out.data += Writer::raw(m);
      offset = double(f16_to_f32(m));
    }
    int q[32];
    for (int& value : q) {
      value = pick(0, 15);
      values->push_back(scale * value + offset);
    }
    for (int i = 0; i < 16; ++i) {
      out.data.push_back(char(q[i] | q[i + 16] << 4));
    }
  }
  return out;
}

struct Model {
  Writer file;
  std::map<std::string, std::vector<double>> values;  // by the file's name
};

Model make_model(uint32_t type, uint32_t embedding_type, bool tied) {
  Model model;
  Writer& file = model.file;
  file.string("general.architecture", "llama");
  file.number("llama.block_count", 1);
  file.number("llama.context_length", 128);
  file.number("llama.embedding_length", kHidden);
  file.number("llama.feed_forward_length", kInner);
  file.number("llama.attention.head_count", kHeads);
  file.number("llama.attention.head_count_kv", kKvHeads);
  file.real("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  file.real("llama.rope.freq_base", 10000);
  file.string("tokenizer.ggml.model", "gpt2");
  file.string("tokenizer.ggml.pre", "smollm");
  file.strings(
      "tokenizer.ggml.tokens",
      {"<|end|>",
       "a",
       "b",
       "ab",
       "1",
       "2",
       "\xC4\xA0",
       "\xC4\xA0"
       "a"});
  file.numbers("tokenizer.ggml.token_type", {3, 1, 1, 1, 1, 1, 1, 1});
  file.strings("tokenizer.ggml.merges", {"a b", "\xC4\xA0 a"});
  file.number("tokenizer.ggml.eos_token_id", 0);
  file.number("tokenizer.ggml.bos_token_id", 0);
  file.boolean("tokenizer.ggml.add_bos_token", false);
  file.string("tokenizer.chat_template", "{{ messages[0].content }}");

  std::mt19937 random(7);
  auto add = [&](const std::string& name, Shape shape, uint32_t tensor_type) {
    file.tensors[name] =
        random_tensor(shape, tensor_type, random, &model.values[name]);
  };
  add("token_embd.weight", {kVocab, kHidden}, embedding_type);
  add("output_norm.weight", {kHidden}, kF32);
  if (!tied) {
    add("output.weight", {kVocab, kHidden}, embedding_type);
  }
  add("blk.0.attn_norm.weight", {kHidden}, kF32);
  add("blk.0.ffn_norm.weight", {kHidden}, kF32);
  add("blk.0.attn_q.weight", {kHeads * kHeadDim, kHidden}, type);
  add("blk.0.attn_k.weight", {kKvHeads * kHeadDim, kHidden}, type);
  add("blk.0.attn_v.weight", {kKvHeads * kHeadDim, kHidden}, type);
  add("blk.0.attn_output.weight", {kHidden, kHeads * kHeadDim}, type);
  add("blk.0.ffn_gate.weight", {kInner, kHidden}, type);
  add("blk.0.ffn_up.weight", {kInner, kHidden}, type);
  add("blk.0.ffn_down.weight", {kHidden, kInner}, type);
  return model;
}

// Row r of a head [2, half] here is row 2 * (r % half) + r / half there.
std::vector<double> unrotated(const std::vector<double>& rows, int64_t heads) {
  std::vector<double> out(rows.size());
  constexpr int64_t half = kHeadDim / 2;
  for (int64_t head = 0; head < heads; ++head) {
    for (int64_t part = 0; part < 2; ++part) {
      for (int64_t i = 0; i < half; ++i) {
        for (int64_t c = 0; c < kHidden; ++c) {
          int64_t to = head * kHeadDim + part * half + i;
          int64_t from = head * kHeadDim + 2 * i + part;
          out[size_t(to * kHidden + c)] = rows[size_t(from * kHidden + c)];
        }
      }
    }
  }
  return out;
}

// A matrix of the imported folder in full, by MLX's definition of affine
// quantization, or as stored.
std::vector<double> read_matrix(
    const WeightMap& weights, const std::string& stem, int bits) {
  std::vector<double> out;
  const WeightTensor& weight = weights.at(stem + ".weight");
  if (weight.dtype != DType::u32) {
    std::vector<float> values(size_t(element_count(weight.shape)));
    read_as_f32(weight, values.data());
    return {values.begin(), values.end()};
  }
  const WeightTensor& scales = weights.at(stem + ".scales");
  std::vector<float> scale(size_t(element_count(scales.shape)));
  std::vector<float> bias(scale.size());
  read_as_f32(scales, scale.data());
  read_as_f32(weights.at(stem + ".biases"), bias.data());
  int per_word = 32 / bits;
  for (int64_t word = 0; word < element_count(weight.shape); ++word) {
    auto value = load_unaligned<uint32_t>(weight.data + word * 4);
    for (int i = 0; i < per_word; ++i) {
      int64_t group = (word * per_word + i) / 32;
      double q = double(value >> (i * bits) & ((1u << bits) - 1));
      out.push_back(
          double(scale[size_t(group)]) * q + double(bias[size_t(group)]));
    }
  }
  return out;
}

struct Case {
  const char* name;
  uint32_t type, embedding;
  int bits, embedding_bits;  // 0: not quantized
  bool tied;
};

class ImportTest : public ::testing::TestWithParam<Case> {};

TEST_P(ImportTest, KeepsEveryValue) {
  Case test = GetParam();
  Model model = make_model(test.type, test.embedding, test.tied);
  TemporaryFolder folder;
  std::filesystem::path file = folder.write("m.gguf", model.file.bytes());
  for (bool dequantize : {false, true}) {
    SCOPED_TRACE(dequantize);
    std::filesystem::path out =
        folder.path() / (dequantize ? "plain" : "packed");
    import_gguf(file, out, dequantize);
    WeightMap weights = read_safetensors(out / "model.safetensors").tensors;
    auto check = [&](const std::string& from,
                     const std::string& stem,
                     int bits,
                     int64_t rotated_heads = 0) {
      SCOPED_TRACE(stem);
      std::vector<double> wanted = model.values.at(from);
      if (rotated_heads > 0) {
        wanted = unrotated(wanted, rotated_heads);
      }
      if (dequantize) {
        for (double& value : wanted) {
          value = double(bf16_to_f32(f32_to_bf16(float(value))));
        }
        EXPECT_EQ(weights.at(stem + ".weight").dtype, DType::bf16);
      }
      EXPECT_EQ(read_matrix(weights, stem, dequantize ? 0 : bits), wanted);
    };
    std::string block = "model.layers.0.";
    check("blk.0.attn_q.weight", block + "self_attn.q_proj", test.bits, kHeads);
    check(
        "blk.0.attn_k.weight", block + "self_attn.k_proj", test.bits, kKvHeads);
    check("blk.0.attn_v.weight", block + "self_attn.v_proj", test.bits);
    check("blk.0.attn_output.weight", block + "self_attn.o_proj", test.bits);
    check("blk.0.ffn_gate.weight", block + "mlp.gate_proj", test.bits);
    check("blk.0.ffn_up.weight", block + "mlp.up_proj", test.bits);
    check("blk.0.ffn_down.weight", block + "mlp.down_proj", test.bits);
    check("blk.0.attn_norm.weight", block + "input_layernorm", 0);
    check("blk.0.ffn_norm.weight", block + "post_attention_layernorm", 0);
    check("output_norm.weight", "model.norm", 0);
    check("token_embd.weight", "model.embed_tokens", test.embedding_bits);
    EXPECT_EQ(weights.contains("lm_head.weight"), !test.tied);

    std::ifstream in(out / "config.json");
    Json config = Json::parse(in);
    EXPECT_EQ(config["tie_word_embeddings"], test.tied);
    EXPECT_EQ(config["rms_norm_eps"], 1e-5);
    EXPECT_EQ(config["head_dim"], kHeadDim);
    EXPECT_EQ(config["eos_token_id"], 0);
    EXPECT_EQ(config.contains("quantization"), !dequantize && test.bits > 0);
    if (!dequantize && test.bits > 0) {
      EXPECT_EQ(config["quantization"]["bits"], test.bits);
      EXPECT_EQ(config["quantization"]["group_size"], 32);
    }
    EXPECT_EQ(
        config["torch_dtype"],
        dequantize          ? "bfloat16"
        : test.type == kF32 ? "float32"
                            : "float16");
  }
}

INSTANTIATE_TEST_SUITE_P(
    Types,
    ImportTest,
    ::testing::Values(
        Case{"Q4_0", kQ40, kQ80, 4, 8, false},
        Case{"Q4_1", kQ41, kQ80, 4, 8, true},
        Case{"Q8_0", kQ80, kQ80, 8, 8, true},
        Case{"Q4_0WithPlainEmbedding", kQ40, kF16, 4, 0, false},
        Case{"F16", kF16, kF16, 0, 0, false},
        Case{"F32", kF32, kF32, 0, 0, true}),
    [](const auto& param_info) { return param_info.param.name; });

TEST(GgufTokenizerTest, RebuildsTheTokenizer) {
  Model model = make_model(kQ41, kQ80, true);
  TemporaryFolder folder;
  std::filesystem::path out = folder.path() / "out";
  import_gguf(folder.write("m.gguf", model.file.bytes()), out, false);
  std::unique_ptr<Tokenizer> tokenizer = Tokenizer::load(out);
  using Ids = std::vector<int32_t>;
  EXPECT_EQ(tokenizer->encode("ab a12<|end|>", true), (Ids{3, 7, 4, 5, 0}));
  EXPECT_EQ(tokenizer->decode(Ids{3, 7, 4, 5, 0}, true), "ab a12");
  EXPECT_EQ(tokenizer->eos(), 0);
  Json messages = {{{"role", "user"}, {"content", "hi"}}};
  EXPECT_EQ(ChatTemplate::load(out)->render({.messages = &messages}), "hi");

  // BOS in front where the file asks for it.
  model.file.boolean("tokenizer.ggml.add_bos_token", true);
  import_gguf(
      folder.write("b.gguf", model.file.bytes()), folder.path() / "bos", false);
  EXPECT_EQ(
      Tokenizer::load(folder.path() / "bos")->encode("a", true), (Ids{0, 1}));
}

std::string refusal(const Writer& writer) {
  TemporaryFolder folder;
  try {
    import_gguf(
        folder.write("m.gguf", writer.bytes()), folder.path() / "out", false);
  } catch (const CheckpointError& error) {
    EXPECT_FALSE(std::filesystem::exists(folder.path() / "out"));
    EXPECT_EQ(folder.files().size(), 1u);  // nothing is left beside it
    return error.why();
  }
  return "accepted";
}

TEST(GgufRefusalTest, NamesWhatIsWrong) {
  Writer good = make_model(kQ41, kQ80, false).file;
  auto with = [&](const std::function<void(Writer&)>& change) {
    Writer writer = good;
    change(writer);
    return refusal(writer);
  };
  EXPECT_EQ(refusal(good), "accepted");
  EXPECT_EQ(
      with([](Writer& w) { w.tensors["blk.0.ffn_up.weight"].type = 14; }),
      "1 of its tensors have types that cannot be read: "
      "blk.0.ffn_up.weight (Q6_K)");
  EXPECT_EQ(
      with([](Writer& w) { w.string("general.architecture", "qwen2"); }),
      "its architecture is \"qwen2\"; only the llama family can be imported");
  EXPECT_EQ(
      with([](Writer& w) { w.number("llama.expert_count", 8); }),
      "it is a mixture of experts (llama.expert_count is not 0)");
  EXPECT_EQ(
      with([](Writer& w) { w.tensors.erase("blk.0.attn_k.weight"); }),
      "it lacks the tensor blk.0.attn_k.weight");
  EXPECT_EQ(
      with([](Writer& w) {
        w.tensors["blk.0.extra.weight"] = w.tensors["output_norm.weight"];
      }),
      "its tensor blk.0.extra.weight has no place in a llama model");
  EXPECT_EQ(
      with([](Writer& w) {
        w.tensors["blk.0.attn_k.weight"] = w.tensors["blk.0.attn_q.weight"];
      }),
      "its tensor blk.0.attn_k.weight has the shape [64, 64], not [32, 64]");
  EXPECT_EQ(
      with([](Writer& w) { w.erase("llama.context_length"); }),
      "its metadata lacks the key llama.context_length");
  EXPECT_EQ(
      with([](Writer& w) { w.string("llama.block_count", "one"); }),
      "its metadata key llama.block_count is \"one\"");
  EXPECT_THAT(
      with([](Writer& w) { w.string("tokenizer.ggml.pre", "nope"); }),
      HasSubstr("tokenizer.ggml.pre is \"nope\"; known are gpt-2, smollm"));
  EXPECT_THAT(
      with([](Writer& w) { w.number("llama.attention.head_count_kv", 3); }),
      HasSubstr("its attention sizes do not fit together"));
}

TEST(GgufRefusalTest, LeavesAFullFolderAlone) {
  TemporaryFolder folder;
  std::filesystem::path file =
      folder.write("m.gguf", make_model(kQ41, kQ80, true).file.bytes());
  std::filesystem::create_directory(folder.path() / "empty");
  EXPECT_NO_THROW(import_gguf(file, folder.path() / "empty", false));
  EXPECT_THROW(
      import_gguf(file, folder.path() / "empty", false), CheckpointError);
  EXPECT_THROW(import_gguf(file, folder.path(), false), CheckpointError);
}

TEST(GgufRefusalTest, MakesNoFoldersForAFileItCannotRead) {
  TemporaryFolder folder;
  std::filesystem::path file = folder.write("m.gguf", "GGUF");
  std::filesystem::path out = folder.path() / "new/model";
  EXPECT_THROW(import_gguf(file, out, false), CheckpointError);
  EXPECT_EQ(folder.files(), std::vector<std::string>{"m.gguf"});
}

// Any cut and any flipped byte of the header gives a file or an error, never
// a read outside it.
TEST(GgufFileTest, SurvivesDamage) {
  std::string bytes = make_model(kQ41, kQ80, true).file.bytes();
  size_t header = bytes.find("token_embd.weight") + 200;
  auto parse = [](const std::string& data) {
    try {
      GgufFile file = GgufFile::parse(
          std::as_bytes(std::span(data.data(), data.size())), "damaged.gguf");
      unsigned sum = 0;
      for (const auto& [name, tensor] : file.tensors()) {
        for (std::byte byte : tensor.data) {
          sum += unsigned(byte);
        }
      }
      return sum > 0;
    } catch (const CheckpointError& error) {
      EXPECT_THAT(error.summary(), HasSubstr("damaged.gguf"));
      return false;
    }
  };
  EXPECT_TRUE(parse(bytes));
  for (size_t size = 0; size < header; ++size) {
    EXPECT_FALSE(parse(bytes.substr(0, size))) << size;
  }
  for (size_t i = 0; i < header; ++i) {
    for (int flip : {0x01, 0x80, 0xff}) {
      std::string damaged = bytes;
      damaged[i] = char(damaged[i] ^ flip);
      parse(damaged);
    }
  }
}

}  // namespace
}  // namespace mlxcel::testing

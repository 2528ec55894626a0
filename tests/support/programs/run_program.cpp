#include "support/programs/run_program.h"

#include "io/safetensors.h"

#include <nlohmann/json.hpp>

#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <stdexcept>

extern char** environ;

namespace mlxcel::testing {

namespace {

namespace fs = std::filesystem;

struct Pipe {
  int ends[2] = {-1, -1};
  Pipe() {
    if (pipe(ends) != 0) {
      throw std::runtime_error("pipe failed");
    }
  }
  void close_end(int end) {
    if (ends[end] >= 0) {
      close(ends[end]);
      ends[end] = -1;
    }
  }
  ~Pipe() {
    close_end(0);
    close_end(1);
  }
};

}  // namespace

ProgramResult run_program(
    const std::vector<std::string>& arguments, const ProgramInput& input) {
  Pipe in, out, err;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in.ends[0], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, out.ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, err.ends[1], STDERR_FILENO);
  for (Pipe* p : {&in, &out, &err}) {
    posix_spawn_file_actions_addclose(&actions, p->ends[0]);
    posix_spawn_file_actions_addclose(&actions, p->ends[1]);
  }
  std::vector<std::string> words = {MLXCEL_TEST_PROGRAM};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv, environment;
  for (std::string& word : words) {
    argv.push_back(word.data());
  }
  argv.push_back(nullptr);
  for (char** entry = environ; *entry; ++entry) {
    environment.push_back(*entry);
  }
  std::vector<std::string> extra = input.environment;
  for (std::string& entry : extra) {
    environment.insert(environment.begin(), entry.data());
  }
  environment.push_back(nullptr);
  pid_t child = 0;
  int failed = posix_spawn(
      &child, argv[0], &actions, nullptr, argv.data(), environment.data());
  posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) {
    throw std::runtime_error(
        std::string("cannot start ") + argv[0] + ": " + std::strerror(failed));
  }
  in.close_end(0);
  out.close_end(1);
  err.close_end(1);
  // Inputs are far smaller than a pipe holds.
  if (!input.text.empty() &&
      write(in.ends[1], input.text.data(), input.text.size()) < 0) {
    throw std::runtime_error("cannot write to the program");
  }
  in.close_end(1);

  ProgramResult result;
  bool signalled = input.signal == 0;
  while (out.ends[0] >= 0 || err.ends[0] >= 0) {
    pollfd files[] = {{out.ends[0], POLLIN, 0}, {err.ends[0], POLLIN, 0}};
    poll(files, 2, -1);
    for (int i = 0; i < 2; ++i) {
      if (files[i].revents == 0) {
        continue;
      }
      char buffer[4096];
      ssize_t count = read(files[i].fd, buffer, sizeof buffer);
      if (count <= 0) {
        (i == 0 ? out : err).close_end(0);
      } else {
        (i == 0 ? result.out : result.err).append(buffer, size_t(count));
      }
    }
    if (!signalled && result.out.size() >= input.signal_after) {
      signalled = true;
      kill(child, input.signal);
    }
  }
  int status = 0;
  waitpid(child, &status, 0);
  result.exit_code =
      WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

TemporaryFolder::TemporaryFolder() {
  std::string pattern = fs::temp_directory_path() / "mlxcel-test-XXXXXX";
  if (!mkdtemp(pattern.data())) {
    throw std::runtime_error("cannot make a temporary folder");
  }
  path_ = pattern;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code error;
  fs::remove_all(path_, error);
}

std::string TemporaryFolder::path(const std::string& name) const {
  return name.empty() ? path_ : path_ + "/" + name;
}

namespace {

constexpr int64_t kVocab = 288, kInner = 64;
constexpr int kBos = 256, kEos = 257;

// GPT-2's printable stand-in for a byte, in UTF-8.
std::string byte_symbol(int byte) {
  static const std::vector<int> table = [] {
    std::vector<int> points(256);
    int extra = 256;
    for (int b = 0; b < 256; ++b) {
      bool keep = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
      points[size_t(b)] = keep ? b : extra++;
    }
    return points;
  }();
  int point = table[size_t(byte)];
  if (point < 0x80) {
    return std::string(1, char(point));
  }
  return {char(0xC0 | point >> 6), char(0x80 | (point & 0x3F))};
}

void write_json(const std::string& path, const nlohmann::ordered_json& json) {
  std::ofstream(path) << json.dump();
}

void write_tokenizer(const std::string& folder) {
  nlohmann::ordered_json vocab, added = nlohmann::ordered_json::array();
  for (int byte = 0; byte < 256; ++byte) {
    vocab[byte_symbol(byte)] = byte;
  }
  int id = kBos;
  for (const char* text :
       {"<|bos|>", "<|eos|>", "<|user|>", "<|assistant|>", "<|end|>"}) {
    added.push_back(
        {{"id", id++},
         {"content", text},
         {"single_word", false},
         {"lstrip", false},
         {"rstrip", false},
         {"normalized", false},
         {"special", true}});
  }
  nlohmann::ordered_json level = {
      {"type", "ByteLevel"},
      {"add_prefix_space", false},
      {"trim_offsets", true},
      {"use_regex", false}};
  nlohmann::ordered_json bos = {
      {"SpecialToken", {{"id", "<|bos|>"}, {"type_id", 0}}}};
  nlohmann::ordered_json text = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  write_json(
      folder + "/tokenizer.json",
      {{"version", "1.0"},
       {"truncation", nullptr},
       {"padding", nullptr},
       {"added_tokens", added},
       {"normalizer", nullptr},
       {"pre_tokenizer", level},
       {"post_processor",
        {{"type", "TemplateProcessing"},
         {"single", nlohmann::ordered_json::array({bos, text})},
         {"pair", nlohmann::ordered_json::array({bos, text})},
         {"special_tokens",
          {{"<|bos|>",
            {{"id", "<|bos|>"},
             {"ids", nlohmann::ordered_json::array({kBos})},
             {"tokens", nlohmann::ordered_json::array({"<|bos|>"})}}}}}}},
       {"decoder", level},
       {"model",
        {{"type", "BPE"},
         {"dropout", nullptr},
         {"unk_token", nullptr},
         {"continuing_subword_prefix", nullptr},
         {"end_of_word_suffix", nullptr},
         {"fuse_unk", false},
         {"byte_fallback", false},
         {"ignore_merges", false},
         {"vocab", vocab},
         {"merges", nlohmann::ordered_json::array()}}}});
  write_json(
      folder + "/tokenizer_config.json",
      {{"tokenizer_class", "PreTrainedTokenizerFast"},
       {"bos_token", "<|bos|>"},
       {"eos_token", "<|eos|>"},
       {"chat_template",
        "{{ bos_token }}{% for m in messages %}{{ m['content'] }}"
        "{% endfor %}"},
       {"clean_up_tokenization_spaces", false}});
}

}  // namespace

void write_chain_model(const std::string& folder) {
  fs::create_directories(folder);
  WeightMap map;
  auto add = [&](const std::string& key, Shape shape, float value = 0) {
    std::byte* data = nullptr;
    int64_t count = element_count(shape);
    WeightTensor tensor = make_weight(DType::f32, std::move(shape), &data);
    auto* values = reinterpret_cast<float*>(data);
    std::fill(values, values + count, value);
    map.set(key, tensor);
    return values;
  };
  float* embedding = add("model.embed_tokens.weight", {kVocab, kVocab});
  for (int64_t i = 0; i < kVocab; ++i) {
    embedding[i * kVocab + i] = 1;
  }
  std::string layer = "model.layers.0.";
  for (const char* name : {"q_proj", "k_proj", "v_proj", "o_proj"}) {
    add(layer + "self_attn." + name + ".weight", {kVocab, kVocab});
  }
  add(layer + "mlp.gate_proj.weight", {kInner, kVocab});
  add(layer + "mlp.up_proj.weight", {kInner, kVocab});
  add(layer + "mlp.down_proj.weight", {kVocab, kInner});
  add(layer + "input_layernorm.weight", {kVocab}, 1);
  add(layer + "post_attention_layernorm.weight", {kVocab}, 1);
  add("model.norm.weight", {kVocab}, 1);
  float* head = add("lm_head.weight", {kVocab, kVocab});
  for (int64_t i = 0; i < kVocab; ++i) {
    head[kEos * kVocab + i] = 0.25f;
  }
  for (std::string chain : {">Aé😀b한c.", "<X\x85Y", "#uvw-klm"}) {
    for (size_t i = 0; i < chain.size(); ++i) {
      int next = i + 1 < chain.size() ? uint8_t(chain[i + 1]) : kEos;
      head[next * kVocab + uint8_t(chain[i])] = 1;
    }
  }
  write_safetensors(folder + "/model.safetensors", map);
  write_tokenizer(folder);
  write_json(
      folder + "/config.json",
      {{"model_type", "llama"},
       {"architectures", nlohmann::ordered_json::array({"LlamaForCausalLM"})},
       {"hidden_size", kVocab},
       {"intermediate_size", kInner},
       {"num_hidden_layers", 1},
       {"num_attention_heads", 4},
       {"num_key_value_heads", 4},
       {"rms_norm_eps", 1e-5},
       {"vocab_size", kVocab},
       {"rope_theta", 10000.0},
       {"max_position_embeddings", 2048},
       {"tie_word_embeddings", false},
       {"torch_dtype", "float32"},
       {"bos_token_id", kBos},
       {"eos_token_id", kEos}});
}

namespace {

constexpr int64_t kHidden = 64, kMiddle = 96, kKeys = 32;

// Values of mean 0 and about this deviation; the same in every build.
class Noise {
 public:
  explicit Noise(uint32_t seed) : random_(seed) {}
  float operator()(float deviation) {
    // The sum of four uniform numbers has a variance of 4 / 12.
    double sum = -2;
    for (int i = 0; i < 4; ++i) {
      sum += double(random_()) / 4294967296.0;
    }
    return float(sum * 1.7320508 * double(deviation));
  }

 private:
  std::mt19937 random_;
};

class MapWriter {
 public:
  explicit MapWriter(uint32_t seed) : noise_(seed) {}
  float* add(const std::string& key, Shape shape, float deviation) {
    std::byte* data = nullptr;
    int64_t count = element_count(shape);
    bool vector = shape.size() == 1;
    map_.set(key, make_weight(DType::f32, std::move(shape), &data));
    auto* values = reinterpret_cast<float*>(data);
    for (int64_t i = 0; i < count; ++i) {
      values[i] = noise_(deviation) + (vector ? 1.f : 0.f);
    }
    return values;
  }
  void write(const std::string& file) {
    write_safetensors(file, map_);
  }

 private:
  Noise noise_;
  WeightMap map_;
};

}  // namespace

void write_random_model(const std::string& folder) {
  fs::create_directories(folder);
  MapWriter map(7);
  map.add("model.embed_tokens.weight", {kVocab, kHidden}, 1);
  for (int i = 0; i < 2; ++i) {
    std::string layer = "model.layers." + std::to_string(i) + ".";
    float wide = 1.6f / std::sqrt(float(kHidden));
    map.add(layer + "self_attn.q_proj.weight", {kHidden, kHidden}, wide);
    map.add(layer + "self_attn.k_proj.weight", {kKeys, kHidden}, wide);
    map.add(layer + "self_attn.v_proj.weight", {kKeys, kHidden}, wide);
    map.add(layer + "self_attn.o_proj.weight", {kHidden, kHidden}, wide);
    map.add(layer + "mlp.gate_proj.weight", {kMiddle, kHidden}, wide);
    map.add(layer + "mlp.up_proj.weight", {kMiddle, kHidden}, wide);
    map.add(layer + "mlp.down_proj.weight", {kHidden, kMiddle}, 0.16f);
    map.add(layer + "input_layernorm.weight", {kHidden}, 0.1f);
    map.add(layer + "post_attention_layernorm.weight", {kHidden}, 0.1f);
  }
  map.add("model.norm.weight", {kHidden}, 0.1f);
  float* head = map.add("lm_head.weight", {kVocab, kHidden}, 0.6f);
  for (int64_t token = 0; token < kVocab; ++token) {
    if (token < 32 || token > 126) {
      std::fill_n(head + token * kHidden, kHidden, 0.f);
    }
  }
  map.write(folder + "/model.safetensors");
  write_tokenizer(folder);
  write_json(
      folder + "/config.json",
      {{"model_type", "llama"},
       {"architectures", nlohmann::ordered_json::array({"LlamaForCausalLM"})},
       {"hidden_size", kHidden},
       {"intermediate_size", kMiddle},
       {"num_hidden_layers", 2},
       {"num_attention_heads", 4},
       {"num_key_value_heads", 2},
       {"rms_norm_eps", 1e-5},
       {"vocab_size", kVocab},
       {"rope_theta", 10000.0},
       {"max_position_embeddings", 2048},
       {"tie_word_embeddings", false},
       {"torch_dtype", "float32"},
       {"bos_token_id", kBos},
       {"eos_token_id", kEos}});
}

void write_random_adapter(const std::string& folder, int seed) {
  fs::create_directories(folder);
  MapWriter map{uint32_t(seed)};
  constexpr int64_t kRank = 4;
  for (int i = 0; i < 2; ++i) {
    std::string layer = "model.layers." + std::to_string(i) + ".self_attn.";
    for (const char* name : {"q_proj", "v_proj"}) {
      int64_t out = name[0] == 'q' ? kHidden : kKeys;
      map.add(layer + name + ".lora_a", {kHidden, kRank}, 0.15f);
      map.add(layer + name + ".lora_b", {kRank, out}, 0.15f);
    }
  }
  map.write(folder + "/adapters.safetensors");
  write_json(
      folder + "/adapter_config.json",
      {{"fine_tune_type", "lora"},
       {"lora_parameters", {{"rank", kRank}, {"scale", 8.0}}}});
}

}  // namespace mlxcel::testing

// A model whose next token is a function of the tokens before it, read through
// the block tables: it shows any fault of scheduling, sharing and copying.
#pragma once

#include "core/error.h"
#include "engine/sampler.h"
#include "models/model.h"
#include "ops/host_work.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

namespace mlxcel::testing {

constexpr int kFakeVocab = 97;

class FakeCache : public KvCache {
 public:
  explicit FakeCache(const KvCacheSpec& spec = {}) : KvCache(spec) {}
  void reserve(int num_blocks) override {
    if (size_t(num_blocks) > blocks.size()) {
      blocks.resize(size_t(num_blocks));
    }
  }
  int num_blocks() const override {
    return int(blocks.size());
  }
  void copy_block(int from, int to) override {
    blocks[size_t(to)] = blocks[size_t(from)];
  }
  size_t block_bytes() const override {
    return sizeof(blocks[0]);
  }
  void save_block(int block, std::byte* out) override {
    std::memcpy(out, &blocks[size_t(block)], block_bytes());
  }
  void load_block(int block, const std::byte* in) override {
    std::memcpy(&blocks[size_t(block)], in, block_bytes());
  }
  void reserve_states(int num_states) override {
    if (spec().bytes_per_state() > 0 && size_t(num_states) > states.size()) {
      states.resize(size_t(num_states), -1);  // not what a sequence starts from
    }
  }
  int num_states() const override {
    return int(states.size());
  }
  void copy_state(int from, int to) override {
    states.at(size_t(to)) = states.at(size_t(from));
  }
  void clear_state(int state) override {
    states.at(size_t(state)) = 0;
  }
  std::vector<std::array<int32_t, kKvBlockSize>> blocks;
  // How many tokens a recurrent layer has read.
  std::vector<int64_t> states;
};

struct FakeStorage : TensorStorage {
  std::vector<float> values;
};

class FakeBackend : public Backend {
 public:
  std::string description() const override {
    return "fake";
  }
  std::unique_ptr<KvCache> make_kv_cache(const KvCacheSpec& spec) override {
    return std::make_unique<FakeCache>(spec);
  }
  void read(const Tensor& tensor, float* out) override {
    auto* storage = static_cast<FakeStorage*>(tensor.storage());
    std::memcpy(
        out, storage->values.data(), storage->values.size() * sizeof(float));
  }
  std::unique_ptr<Linear> prepare_linear(LinearWeights) override {
    throw std::logic_error("not part of the fake");
  }
  std::unique_ptr<Experts> prepare_experts(ExpertWeights) override {
    throw std::logic_error("not part of the fake");
  }
  std::unique_ptr<HeadLinear> prepare_heads(HeadWeights) override {
    throw std::logic_error("not part of the fake");
  }
  std::unique_ptr<Embedding> prepare_embedding(EmbeddingWeights) override {
    throw std::logic_error("not part of the fake");
  }
  std::unique_ptr<Norm> prepare_norm(NormWeights) override {
    throw std::logic_error("not part of the fake");
  }
  std::unique_ptr<Rope> prepare_rope(RopeTable) override {
    throw std::logic_error("not part of the fake");
  }
  Tensor embed(const Step&, const Embedding&, float) override {
    throw std::logic_error("not part of the fake");
  }
  Tensor norm(const Step&, const Tensor&, const Norm&) override {
    throw std::logic_error("not part of the fake");
  }
  Tensor linear(const Step&, const Tensor&, const Linear&, const LinearOptions&)
      override {
    throw std::logic_error("not part of the fake");
  }
  Tensor mlp(
      const Step&,
      const Tensor&,
      const MlpWeights&,
      const LinearOptions&) override {
    throw std::logic_error("not part of the fake");
  }
  Tensor moe(
      const Step&,
      const Tensor&,
      const MoeWeights&,
      const LinearOptions&) override {
    throw std::logic_error("not part of the fake");
  }
  Tensor attention(
      const Step&,
      const Tensor&,
      const AttentionArgs&,
      KvCache&,
      int,
      const Tensor*) override {
    throw std::logic_error("not part of the fake");
  }
  Tensor latent_attention(
      const Step&,
      const Tensor&,
      const Tensor&,
      const LatentAttentionArgs&,
      KvCache&,
      int) override {
    throw std::logic_error("not part of the fake");
  }
  Tensor add(const Step&, const Tensor&, const Tensor&, float) override {
    throw std::logic_error("not part of the fake");
  }
  Tensor multiply(
      const Step&,
      const Tensor&,
      const Tensor*,
      const MultiplyOptions&) override {
    throw std::logic_error("not part of the fake");
  }
  Tensor weighted_sum(
      const Step&,
      const Tensor&,
      const std::vector<Tensor>&,
      const Tensor&,
      int64_t) override {
    throw std::logic_error("not part of the fake");
  }
  Tensor match_size(const Step&, const Tensor&, const Tensor&) override {
    throw std::logic_error("not part of the fake");
  }
  Tensor cut_below(const Step&, const Tensor&, int64_t, float) override {
    throw std::logic_error("not part of the fake");
  }
  Tensor head(const Step&, const Tensor&, const HeadArgs&) override {
    throw std::logic_error("not part of the fake");
  }
};

// Whose results stand on the host, with threads to work on them.
class FakeHostBackend : public FakeBackend, public HostWork {
 public:
  float* values(const Tensor& tensor) override {
    return static_cast<FakeStorage*>(tensor.storage())->values.data();
  }
  ThreadPool& pool() override {
    return pool_;
  }

 private:
  ThreadPool pool_{4};
};

// The logits after a sequence: a hash of its tokens, and of the scales.
inline std::vector<float> fake_logits(
    const std::vector<int32_t>& tokens, float scale_sum = 0) {
  uint64_t hash = 14695981039346656037u + uint64_t(scale_sum * 1000);
  for (int32_t token : tokens) {
    hash = (hash ^ uint64_t(token + 1)) * 1099511628211u;
  }
  std::vector<float> out;
  for (int i = 0; i < kFakeVocab; ++i) {
    uint64_t mixed = (hash ^ uint64_t(i)) * 0x9E3779B97F4A7C15u;
    out.push_back(float(mixed >> 40) / float(1 << 24) * 8);
  }
  return out;
}

class FakeModel : public Model {
 public:
  int64_t vocab_size() const override {
    return kFakeVocab;
  }
  KvCacheSpec kv_cache_spec() const override {
    return {.layers = {{.state = recurrent ? 1 : 0}}};
  }
  Tensor forward(const Step& step, KvCache& cache) override {
    check_step(step);
    last_step = step;
    prompt_rows += step.num_prompt_rows;
    auto& blocks = static_cast<FakeCache&>(cache).blocks;
    auto& states = static_cast<FakeCache&>(cache).states;
    auto storage = std::make_shared<FakeStorage>();
    size_t next_output = 0;
    for (const Segment& segment : step.segments) {
      if (recurrent) {
        int64_t& read = states.at(size_t(segment.state));
        if (read != segment.position) {
          throw std::logic_error("the state does not stand at the position");
        }
        read += segment.num_rows;
      } else if (segment.state != -1) {
        throw std::logic_error("a slot without recurrent layers");
      }
      if (traits.whole_sequence) {
        int last = segment.first_row + segment.num_rows - 1;
        if (segment.position != 0 || !segment.prompt ||
            !std::ranges::binary_search(step.output_rows, last)) {
          throw std::logic_error("a part of a sequence");
        }
      }
      float scale_sum = 0;
      for (float scale : segment.adapter_scales) {
        scale_sum += scale;
      }
      for (int row = 0; row < segment.num_rows; ++row) {
        int64_t position = segment.position + row;
        auto cell = [&](int64_t at) -> int32_t& {
          int32_t block = segment.blocks[size_t(at / kKvBlockSize)];
          return blocks.at(size_t(block))[size_t(at % kKvBlockSize)];
        };
        // A token's keys depend on what turns them.
        bool turned = traits.rope_switch_length > 0 &&
                      segment.rope_length > traits.rope_switch_length;
        cell(position) =
            step.tokens[size_t(segment.first_row + row)] + (turned ? 1000 : 0);
        if (next_output < step.output_rows.size() &&
            step.output_rows[next_output] == segment.first_row + row) {
          ++next_output;
          std::vector<int32_t> seen;
          int64_t begin =
              traits.window > 0
                  ? std::max<int64_t>(0, position - traits.window + 1)
                  : 0;
          for (int64_t at = begin; at <= position; ++at) {
            seen.push_back(cell(at));
          }
          std::vector<float> logits = fake_logits(seen, scale_sum);
          storage->values.insert(
              storage->values.end(), logits.begin(), logits.end());
        }
      }
    }
    if (std::exchange(fails, false)) {  // caches and states are written
      throw std::runtime_error("the device is gone");
    }
    return {DType::f32, int64_t(step.output_rows.size()), kFakeVocab, storage};
  }

  ContextTraits context_traits() const override {
    return traits;
  }

  ContextTraits traits;
  bool recurrent = false;
  bool fails = false;  // the next step does
  Step last_step;
  int64_t prompt_rows = 0;  // over all steps

 private:
  // What a backend may rely on.
  static void check_step(const Step& step) {
    int row = 0;
    bool decoding = false;
    for (const Segment& segment : step.segments) {
      bool good = segment.first_row == row && segment.num_rows > 0 &&
                  int64_t(segment.blocks.size()) * kKvBlockSize >=
                      segment.position + segment.num_rows;
      decoding = decoding || !segment.prompt;
      good = good && segment.prompt != decoding;
      good = good && (segment.prompt || segment.num_rows == 1);
      if (!good) {
        throw std::logic_error("malformed segment");
      }
      row += segment.num_rows;
    }
    bool ascending = true;
    for (size_t i = 1; i < step.output_rows.size(); ++i) {
      ascending = ascending && step.output_rows[i - 1] < step.output_rows[i];
    }
    if (row != step.num_rows() || !ascending) {
      throw std::logic_error("malformed step");
    }
  }
};

inline std::vector<int32_t> some_tokens(int count, int start = 0) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < count; ++i) {
    tokens.push_back((start + i * 7 + i * i) % kFakeVocab);
  }
  return tokens;
}

// The answer by a plain loop over the whole sequence.
inline std::vector<int32_t> expected_answer(
    std::vector<int32_t> tokens, int count, SamplingParams sampling = {}) {
  std::vector<int32_t> answer;
  Sampler sampler(sampling);
  for (int i = 0; i < count; ++i) {
    std::vector<float> logits = fake_logits(tokens);
    answer.push_back(sampler.sample(logits, tokens, uint64_t(i)));
    tokens.push_back(answer.back());
  }
  return answer;
}

}  // namespace mlxcel::testing

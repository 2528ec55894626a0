// NanoChat: norms without weights, also on the embedding and, after a rotation
// the other way round, on each head of q and k; a plain MLP.
#include "models/config_reading_layers.h"
#include "models/families/families.h"

namespace mlxcel {

namespace {

DecoderSpec nanochat_decoder(const Config& given) {
  Config config = with_defaults(given, {{"rms_norm_eps", 1e-6}});
  NormSpec norm = rms_norm(config);
  norm.tensors = NormTensors::none;
  BlockSpec block{
      .norm = norm,
      .attention = grouped_query_attention(config, {.backwards = true}),
      .mlp = gated_mlp(config, "hidden_act", "relu2")};
  block.attention.qk_norm = QkNorm::weightless;
  block.attention.extras.qk_norm_order = QkNormOrder::after_rope;
  block.mlp.kind = MlpKind::plain;
  DecoderSpec decoder = uniform_decoder(config, block, HeadKind::own);
  decoder.extras.embedding_norm = norm;
  decoder.logit_softcap = soft_cap(config, "final_logit_softcapping", 15);
  return decoder;
}

std::vector<NameRule> nanochat_names() {
  return {
      {"embed_tokens", {"embedding"}},
      {"layers.{l}.self_attn.q_proj", {"layers.{l}.attention.q"}},
      {"layers.{l}.self_attn.k_proj", {"layers.{l}.attention.k"}},
      {"layers.{l}.self_attn.v_proj", {"layers.{l}.attention.v"}},
      {"layers.{l}.self_attn.o_proj", {"layers.{l}.attention.o"}},
      {"layers.{l}.mlp.fc1", {"layers.{l}.mlp.up"}},
      {"layers.{l}.mlp.fc2", {"layers.{l}.mlp.down"}},
      {"transformer.wte", {"embedding"}},
      {"transformer.h.{l}.attn.c_q", {"layers.{l}.attention.q"}},
      {"transformer.h.{l}.attn.c_k", {"layers.{l}.attention.k"}},
      {"transformer.h.{l}.attn.c_v", {"layers.{l}.attention.v"}},
      {"transformer.h.{l}.attn.c_proj", {"layers.{l}.attention.o"}},
      {"transformer.h.{l}.mlp.c_fc", {"layers.{l}.mlp.up"}},
      {"transformer.h.{l}.mlp.c_proj", {"layers.{l}.mlp.down"}},
  };
}

}  // namespace

const Family nanochat = {
    .name = "NanoChat",
    .type = "NanoChat",
    .model_types = {"nanochat"},
    .architectures = {"NanoChatForCausalLM"},
    .decoder = nanochat_decoder,
    .names = hf_decoder_names(nanochat_names()),
    .features = {"attention_bias", "final_logit_softcapping"},
};

}  // namespace mlxcel

#!/usr/bin/env python3
"""Writes a random GGUF checkpoint of the shape that a config.json describes.

The counterpart of `mlxcel bench --shape NAME --save DIR` for llama.cpp:

    random_gguf.py DIR/config.json --type q4_0 out.gguf

Needs numpy and llama.cpp's gguf package (the folder gguf-py of its sources, on
PYTHONPATH). The file has no tokenizer; llama-bench needs none.
"""

import argparse
import json
import math

import gguf
import numpy as np

QUANTS = {
    "q4_0": gguf.GGMLQuantizationType.Q4_0,
    "q4_1": gguf.GGMLQuantizationType.Q4_1,
    "q8_0": gguf.GGMLQuantizationType.Q8_0,
    "bf16": gguf.GGMLQuantizationType.BF16,
}
# Bytes of a block's packed values, and their steps from least to greatest.
BLOCKS = {"q4_0": (16, 16), "q4_1": (16, 15), "q8_0": (32, 256)}


def random_matrix(rng, kind, shape):
    """Uniform values with variance 1 / inputs; shape is [..., out, in]."""
    count, spread = math.prod(shape), math.sqrt(3 / shape[-1])
    if kind == "f32":
        return rng.uniform(-spread, spread, shape).astype(np.float32)
    if kind == "bf16":
        values = rng.uniform(-spread, spread, count).astype(np.float32)
        halves = (values.view(np.uint32) >> 16).astype(np.uint16)
        return halves.view(np.uint8).reshape(*shape[:-1], shape[-1] * 2)
    packed, steps = BLOCKS[kind]
    numbers = 2 if kind == "q4_1" else 1
    blocks = np.empty((count // 32, 2 * numbers + packed), np.uint8)
    scale = np.array([2 * spread / steps, -spread], np.float16)[:numbers]
    blocks[:, :2 * numbers] = scale.view(np.uint8)
    blocks[:, 2 * numbers:] = np.frombuffer(
        rng.bytes(count // 32 * packed), np.uint8).reshape(-1, packed)
    return blocks.reshape(*shape[:-1], -1)


class Shape:
    """The metadata and the tensors of one family."""

    def __init__(self, config, kind):
        self.c, self.kind = config, kind
        self.tensors = []  # name, shape, kind or (low, high)

    def matrix(self, name, *shape, kind=None):
        self.tensors.append((name, shape, kind or self.kind))

    def vector(self, name, *shape, low=1.0, high=1.0):
        self.tensors.append((name, shape, (low, high)))

    def attention(self, at, gates=1):
        c = self.c
        heads, dim = c["num_attention_heads"], c["head_dim"]
        kv, hidden = c["num_key_value_heads"] * dim, c["hidden_size"]
        self.matrix(at + "attn_q.weight", gates * heads * dim, hidden)
        self.matrix(at + "attn_k.weight", kv, hidden)
        self.matrix(at + "attn_v.weight", kv, hidden)
        self.matrix(at + "attn_output.weight", hidden, heads * dim)
        self.vector(at + "attn_q_norm.weight", dim)
        self.vector(at + "attn_k_norm.weight", dim)

    def mlp(self, at, suffix, *experts, inner):
        hidden = self.c["hidden_size"]
        self.matrix(f"{at}ffn_gate{suffix}.weight", *experts, inner, hidden)
        self.matrix(f"{at}ffn_up{suffix}.weight", *experts, inner, hidden)
        self.matrix(f"{at}ffn_down{suffix}.weight", *experts, hidden, inner)

    def experts(self, at, count):
        self.matrix(at + "ffn_gate_inp.weight", count, self.c["hidden_size"],
                    kind="f32")
        self.mlp(at, "_exps", count, inner=self.c["moe_intermediate_size"])

    def decoder(self, norm_eps):
        c = self.c
        self.matrix("token_embd.weight", c["vocab_size"], c["hidden_size"])
        if not c["tie_word_embeddings"]:
            self.matrix("output.weight", c["vocab_size"], c["hidden_size"])
        self.vector("output_norm.weight", c["hidden_size"])
        w = self.writer
        w.add_vocab_size(c["vocab_size"])
        w.add_context_length(c.get("max_position_embeddings", 1 << 20))
        w.add_embedding_length(c["hidden_size"])
        w.add_block_count(c["num_hidden_layers"])
        w.add_layer_norm_rms_eps(norm_eps)
        w.add_string("tokenizer.ggml.model", "none")

    def grouped_attention_data(self):
        c, w = self.c, self.writer
        w.add_head_count(c["num_attention_heads"])
        w.add_head_count_kv(c["num_key_value_heads"])
        w.add_key_length(c["head_dim"])
        w.add_value_length(c["head_dim"])
        w.add_rope_freq_base(c["rope_theta"])

    def expert_data(self, count):
        c, w = self.c, self.writer
        w.add_feed_forward_length(c["intermediate_size"])
        w.add_expert_count(count)
        w.add_expert_used_count(c["num_experts_per_tok"])
        w.add_expert_feed_forward_length(c["moe_intermediate_size"])

    def start(self, path, arch):
        self.writer = gguf.GGUFWriter(path, arch)
        return self.writer

    def qwen3_moe(self, path):
        c = self.c
        self.start(path, "qwen3moe")
        self.decoder(c["rms_norm_eps"])
        self.grouped_attention_data()
        self.expert_data(c["num_experts"])
        for layer in range(c["num_hidden_layers"]):
            at = f"blk.{layer}."
            self.vector(at + "attn_norm.weight", c["hidden_size"])
            self.attention(at)
            self.vector(at + "ffn_norm.weight", c["hidden_size"])
            self.experts(at, c["num_experts"])

    def mamba2(self, path):
        c = self.c
        w = self.start(path, "mamba2")
        self.decoder(c["layer_norm_epsilon"])
        heads, groups, state = c["num_heads"], c["n_groups"], c["state_size"]
        inner = heads * c["head_dim"]
        channels = inner + 2 * groups * state
        w.add_feed_forward_length(0)
        w.add_head_count(0)
        w.add_ssm_conv_kernel(c["conv_kernel"])
        w.add_ssm_inner_size(inner)
        w.add_ssm_state_size(state)
        w.add_ssm_time_step_rank(heads)
        w.add_ssm_group_count(groups)
        for layer in range(c["num_hidden_layers"]):
            at = f"blk.{layer}."
            self.vector(at + "attn_norm.weight", c["hidden_size"])
            self.matrix(at + "ssm_in.weight", inner + channels + heads,
                        c["hidden_size"])
            self.convolution(at, channels, c["conv_kernel"])
            self.vector(at + "ssm_conv1d.bias", channels, low=-0.5, high=0.5)
            self.vector(at + "ssm_dt.bias", heads, low=-4.5, high=-3.5)
            self.vector(at + "ssm_a", heads, 1, low=-4, high=-1.5)
            self.vector(at + "ssm_d", heads, 1)
            self.vector(at + "ssm_norm.weight", groups, inner // groups)
            self.matrix(at + "ssm_out.weight", c["hidden_size"], inner)

    def convolution(self, at, channels, taps):
        self.vector(at + "ssm_conv1d.weight", channels, taps, low=-0.5,
                    high=0.5)

    def deepseek_v3(self, path):
        c = self.c
        w = self.start(path, "deepseek2")
        self.decoder(c["rms_norm_eps"])
        self.expert_data(c["n_routed_experts"])
        heads, latent = c["num_attention_heads"], c["kv_lora_rank"]
        plain, rope = c["qk_nope_head_dim"], c["qk_rope_head_dim"]
        value, hidden = c["v_head_dim"], c["hidden_size"]
        w.add_head_count(heads)
        w.add_head_count_kv(1)
        w.add_key_length(latent + rope)
        w.add_value_length(latent)
        w.add_key_length_mla(plain + rope)
        w.add_value_length_mla(value)
        w.add_kv_lora_rank(latent)
        w.add_q_lora_rank(c["q_lora_rank"] or 0)
        w.add_rope_dimension_count(rope)
        w.add_rope_freq_base(c["rope_theta"])
        w.add_leading_dense_block_count(c["first_k_dense_replace"])
        w.add_expert_shared_count(c["n_shared_experts"])
        w.add_expert_weights_scale(c["routed_scaling_factor"])
        w.add_expert_weights_norm(c["norm_topk_prob"])
        w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        for layer in range(c["num_hidden_layers"]):
            at = f"blk.{layer}."
            self.vector(at + "attn_norm.weight", hidden)
            self.matrix(at + "attn_q.weight", heads * (plain + rope), hidden)
            self.matrix(at + "attn_kv_a_mqa.weight", latent + rope, hidden)
            self.vector(at + "attn_kv_a_norm.weight", latent)
            self.matrix(at + "attn_k_b.weight", heads, latent, plain)
            self.matrix(at + "attn_v_b.weight", heads, value, latent)
            self.matrix(at + "attn_output.weight", hidden, heads * value)
            self.vector(at + "ffn_norm.weight", hidden)
            if layer < c["first_k_dense_replace"]:
                self.mlp(at, "", inner=c["intermediate_size"])
                continue
            self.experts(at, c["n_routed_experts"])
            self.vector(at + "exp_probs_b.bias", c["n_routed_experts"],
                        low=-0.1, high=0.1)
            self.mlp(at, "_shexp", inner=c["n_shared_experts"] *
                     c["moe_intermediate_size"])

    def qwen3_next(self, path):
        c = self.c
        w = self.start(path, "qwen3next")
        self.decoder(c["rms_norm_eps"])
        self.grouped_attention_data()
        self.expert_data(c["num_experts"])
        hidden, shared = (c["hidden_size"],
                          c["shared_expert_intermediate_size"])
        key_heads, dim = c["linear_num_key_heads"], c["linear_key_head_dim"]
        heads = c["linear_num_value_heads"]
        keys, values = key_heads * dim, heads * c["linear_value_head_dim"]
        w.add_expert_shared_feed_forward_length(shared)
        w.add_rope_dimension_count(
            int(c["head_dim"] * c["partial_rotary_factor"]))
        w.add_ssm_conv_kernel(c["linear_conv_kernel_dim"])
        w.add_ssm_inner_size(values)
        w.add_ssm_state_size(dim)
        w.add_ssm_time_step_rank(heads)
        w.add_ssm_group_count(key_heads)
        w.add_uint32("qwen3next.full_attention_interval",
                     c["full_attention_interval"])
        for layer in range(c["num_hidden_layers"]):
            at = f"blk.{layer}."
            self.vector(at + "attn_norm.weight", hidden)
            self.vector(at + "post_attention_norm.weight", hidden)
            if (layer + 1) % c["full_attention_interval"] == 0:
                self.attention(at, gates=2)
            else:
                self.matrix(at + "attn_qkv.weight", 2 * keys + values, hidden)
                self.matrix(at + "attn_gate.weight", values, hidden)
                self.convolution(at, 2 * keys + values,
                                 c["linear_conv_kernel_dim"])
                self.vector(at + "ssm_dt.bias", heads, low=-4.5, high=-3.5)
                self.vector(at + "ssm_a", heads, low=-4, high=-1.5)
                self.matrix(at + "ssm_ba.weight", 2 * heads, hidden)
                self.vector(at + "ssm_norm.weight", dim)
                self.matrix(at + "ssm_out.weight", hidden, values)
            self.experts(at, c["num_experts"])
            self.vector(at + "ffn_gate_inp_shexp.weight", hidden, low=-0.03,
                        high=0.03)
            self.mlp(at, "_shexp", inner=shared)

    def write(self):
        """Makes and writes one tensor after the other."""
        w, rng = self.writer, np.random.default_rng(42)

        def make(shape, kind):
            if isinstance(kind, tuple):
                return rng.uniform(*kind, shape).astype(np.float32)
            return random_matrix(rng, kind, shape)

        for name, shape, kind in self.tensors:
            raw = None if isinstance(kind, tuple) else QUANTS.get(kind)
            count = math.prod(shape)
            if raw is None:
                w.add_tensor_info(name, shape, np.dtype(np.float32),
                                  4 * count)
                continue
            block, size = gguf.GGML_QUANT_SIZES[raw]
            in_bytes = (*shape[:-1], shape[-1] // block * size)
            w.add_tensor_info(name, in_bytes, np.dtype(np.uint8),
                              math.prod(in_bytes), raw)
        w.write_header_to_file()
        w.write_kv_data_to_file()
        w.write_ti_data_to_file()
        for name, shape, kind in self.tensors:
            w.write_tensor_data(make(shape, kind))
        w.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("config")
    parser.add_argument("out")
    parser.add_argument("--type", choices=QUANTS, default="q4_0")
    options = parser.parse_args()
    with open(options.config) as file:
        config = json.load(file)
    shape = Shape(config, options.type)
    make = getattr(shape, config["model_type"], None)
    if make is None:
        raise SystemExit(f"{options.config}: no GGUF is made of model_type "
                         f"{config['model_type']}")
    make(options.out)
    shape.write()


if __name__ == "__main__":
    main()

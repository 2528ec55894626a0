"""Writes tests/data/text_families.json and .safetensors: tiny models of families
without a fixture, and their logits from the published formulas, in double
precision.

usage: text_families.py FOLDER   (needs numpy and safetensors)

The json has for each case its config and the shapes of its tensors, whose
values follow from their names (see family_parts.Weights); the safetensors file has
<case>.input_ids, .logits, .greedy and .margins.
"""
import json
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from family_parts import (
    VOCAB, HIDDEN, INNER, HEADS, LAYERS, HEAD, Weights, silu, gelu_tanh, softmax, rms_norm,
    layer_norm, heads_of, rope, in_part, attend, gated, mixture, best)


def baichuan(w, config, alibi, normalized):
    """Baichuan 13B (Baichuan Inc. 2023) and Baichuan 2 (Yang et al. 2023)."""
    eps, theta = config["rms_norm_eps"], 10000.0
    table = w("model.embed_tokens.weight", VOCAB, HIDDEN)
    layers = []
    for l in range(LAYERS):
        p = f"model.layers.{l}."
        layers.append([
            w(p + "input_layernorm.weight", HIDDEN, around=1),
            w(p + "self_attn.W_pack.weight", 3 * HIDDEN, HIDDEN),
            w(p + "self_attn.o_proj.weight", HIDDEN, HIDDEN),
            w(p + "post_attention_layernorm.weight", HIDDEN, around=1),
            w(p + "mlp.gate_proj.weight", INNER, HIDDEN),
            w(p + "mlp.up_proj.weight", INNER, HIDDEN),
            w(p + "mlp.down_proj.weight", HIDDEN, INNER)])
    final = w("model.norm.weight", HIDDEN, around=1)
    head = w("lm_head.weight", VOCAB, HIDDEN)
    if normalized:  # each row by its length
        head = head / np.sqrt((head * head).sum(-1, keepdims=True))
    # Press et al. 2021: of four heads for six, then every second of eight.
    slopes = np.array([2.0 ** -(8 * i / 4) for i in (1, 2, 3, 4)] + [2.0 ** -1, 2.0 ** -3])

    def forward(ids):
        x = table[ids]
        for norm1, pack, o, norm2, gate, up, down in layers:
            q, k, v = (heads_of(t, HEADS) for t in np.split(rms_norm(x, norm1, eps) @ pack.T, 3, -1))
            if alibi:
                # Key positions alone: a row's own position moves all its scores.
                added = slopes[:, None, None] * np.arange(len(ids))[None, None, :]
            else:
                q, k, added = rope(q, theta), rope(k, theta), 0.0
            x = x + attend(q, k, v, HEAD ** -0.5, added) @ o.T
            x = x + gated(rms_norm(x, norm2, eps), gate, up, down)
        return rms_norm(x, final, eps) @ head.T
    return forward


def bailing_moe(w, config):
    """Ling and its second version (Ling Team 2025)."""
    eps, theta = config["rms_norm_eps"], config["rope_theta"]
    kv, experts = config["num_key_value_heads"], config["num_experts"]
    size, shared = config["moe_intermediate_size"], config["num_shared_experts"]
    groups, kept = config.get("n_group", 1), config.get("topk_group", 1)
    use_bias = config.get("use_bias", False)
    dims = int(HEAD * config.get("partial_rotary_factor", 1.0))

    def linear(name, rows, cols, biased):
        return (w(name + ".weight", rows, cols), w(name + ".bias", rows) if biased else 0.0)

    def mlp(name, inner):
        return (linear(name + "gate_proj", inner, HIDDEN, use_bias),
                linear(name + "up_proj", inner, HIDDEN, use_bias),
                linear(name + "down_proj", HIDDEN, inner, use_bias))

    def apply(x, matrix):
        return x @ matrix[0].T + matrix[1]

    def run(x, parts):
        return apply(silu(apply(x, parts[0])) * apply(x, parts[1]), parts[2])

    table = w("model.word_embeddings.weight", VOCAB, HIDDEN)
    layers = []
    for l in range(LAYERS):
        p = f"model.layers.{l}."
        layer = {
            "norm1": w(p + "input_layernorm.weight", HIDDEN, around=1),
            "norm2": w(p + "post_attention_layernorm.weight", HIDDEN, around=1),
            "qkv": linear(p + "attention.query_key_value", (HEADS + 2 * kv) * HEAD, HIDDEN,
                          config.get("use_qkv_bias", False)),
            "dense": linear(p + "attention.dense", HIDDEN, HIDDEN, use_bias)}
        if config.get("use_qk_norm"):
            layer["q_norm"] = w(p + "attention.query_layernorm.weight", HEAD, around=1)
            layer["k_norm"] = w(p + "attention.key_layernorm.weight", HEAD, around=1)
        if l < config["first_k_dense_replace"]:
            layer["mlp"] = mlp(p + "mlp.", INNER)
        else:
            layer["router"] = w(p + "mlp.gate.weight", experts, HIDDEN)
            if config.get("moe_router_enable_expert_bias"):
                layer["bias"] = w(p + "mlp.gate.expert_bias", experts)
            layer["experts"] = [mlp(f"{p}mlp.experts.{e}.", size) for e in range(experts)]
            if shared:
                layer["shared"] = mlp(p + "mlp.shared_experts.", size * shared)
        layers.append(layer)
    final = w("model.norm.weight", HIDDEN, around=1)
    head = w("lm_head.weight", VOCAB, HIDDEN)
    if config.get("norm_head"):  # each column by its length
        head = head / (np.sqrt((head * head).sum(0, keepdims=True)) + 1e-7)

    def route(x, layer):
        logits = x @ layer["router"].T
        sigmoid = config.get("score_function") == "sigmoid"
        scores = 1 / (1 + np.exp(-logits)) if sigmoid else softmax(logits)
        keys = scores + layer.get("bias", 0.0)
        if groups > 1:
            grouped = keys.reshape(len(x), groups, -1)
            two = np.sort(grouped, -1)[..., -2:].sum(-1)
            closed = np.argsort(two, -1)[:, :groups - kept]
            for row, out in zip(grouped, closed):
                row[out] = -np.inf
            keys = grouped.reshape(len(x), -1)
        chosen = best(keys, config["num_experts_per_tok"])
        shares = np.take_along_axis(scores, chosen, -1)
        if config["norm_topk_prob"]:
            shares = shares / shares.sum(-1, keepdims=True)
        return chosen, shares * config.get("routed_scaling_factor", 1.0)

    def feed_forward(x, layer):
        if "mlp" in layer:
            return run(x, layer["mlp"])
        chosen, shares = route(x, layer)
        y = np.stack([
            sum(s * run(row, layer["experts"][e]) for e, s in zip(ids, weights))
            for row, ids, weights in zip(x, chosen, shares)])
        return y + run(x, layer["shared"]) if "shared" in layer else y

    def forward(ids):
        x = table[ids]
        for layer in layers:
            qkv = apply(rms_norm(x, layer["norm1"], eps), layer["qkv"])
            cut = [HEADS * HEAD, (HEADS + kv) * HEAD]
            q, k, v = (heads_of(t, n) for t, n in zip(np.split(qkv, cut, -1), (HEADS, kv, kv)))
            if "q_norm" in layer:
                q, k = rms_norm(q, layer["q_norm"], eps), rms_norm(k, layer["k_norm"], eps)
            q, k = rope(q, theta, dims), rope(k, theta, dims)
            x = x + apply(attend(q, k, v, HEAD ** -0.5), layer["dense"])
            x = x + feed_forward(rms_norm(x, layer["norm2"], eps), layer)
        return rms_norm(x, final, eps) @ head.T
    return forward


def dbrx(w, config):
    """DBRX (Databricks 2024): clipped projections, layer norms without bias."""
    attention, ffn = config["attn_config"], config["ffn_config"]
    kv, clip, theta = attention["kv_n_heads"], attention["clip_qkv"], attention["rope_theta"]
    experts, size, eps = ffn["moe_num_experts"], ffn["ffn_hidden_size"], 1e-5
    table = w("transformer.wte.weight", VOCAB, HIDDEN)
    layers = []
    for l in range(LAYERS):
        p = f"transformer.blocks.{l}."
        layers.append([
            w(p + "norm_attn_norm.norm_1.weight", HIDDEN, around=1),
            w(p + "norm_attn_norm.attn.Wqkv.weight", (HEADS + 2 * kv) * HEAD, HIDDEN),
            w(p + "norm_attn_norm.attn.out_proj.weight", HIDDEN, HIDDEN),
            w(p + "norm_attn_norm.norm_2.weight", HIDDEN, around=1),
            w(p + "ffn.router.layer.weight", experts, HIDDEN),
            *(w(p + f"ffn.experts.mlp.{n}", experts * size, HIDDEN).reshape(experts, size, HIDDEN)
              for n in ("w1", "v1", "w2"))])
    final = w("transformer.norm_f.weight", HIDDEN, around=1)
    head = w("lm_head.weight", VOCAB, HIDDEN)

    def forward(ids):
        x = table[ids]
        for norm1, pack, o, norm2, router, w1, v1, w2 in layers:
            qkv = np.clip(layer_norm(x, norm1, eps) @ pack.T, -clip, clip)
            cut = [HEADS * HEAD, (HEADS + kv) * HEAD]
            q, k, v = (heads_of(t, n) for t, n in zip(np.split(qkv, cut, -1), (HEADS, kv, kv)))
            x = x + attend(rope(q, theta), rope(k, theta), v, HEAD ** -0.5) @ o.T
            y = layer_norm(x, norm2, eps)
            scores = softmax(y @ router.T)
            chosen = best(scores, ffn["moe_top_k"])
            shares = np.take_along_axis(scores, chosen, -1)
            shares = shares / np.abs(shares).sum(-1, keepdims=True)
            parts = [(w1[e], v1[e], w2[e].T) for e in range(experts)]
            x = x + mixture(y, chosen, shares, parts)
        return layer_norm(x, final, eps) @ head.T
    return forward


def phi3small(w, config):
    """Phi 3 small (Abdin et al. 2024): block-sparse layers and clipped GEGELU."""
    eps, kv = config["layer_norm_epsilon"], config["num_key_value_heads"]
    inner, limit = config["ff_intermediate_size"], config["gegelu_limit"]
    group = HEADS // kv
    block, local = config["blocksparse_block_size"], config["blocksparse_num_local_blocks"]
    stride = config["blocksparse_vert_stride"]
    table = w("model.embed_tokens.weight", VOCAB, HIDDEN)
    layers = []
    for l in range(LAYERS):
        p = f"model.layers.{l}."
        parts = []
        for name, rows, cols in (
                ("self_attn.query_key_value", (HEADS + 2 * kv) * HEAD, HIDDEN),
                ("self_attn.dense", HIDDEN, HIDDEN),
                ("mlp.up_proj", 2 * inner, HIDDEN), ("mlp.down_proj", HIDDEN, inner)):
            parts.append((w(f"{p}{name}.weight", rows, cols), w(f"{p}{name}.bias", rows)))
        norms = [(w(f"{p}{n}.weight", HIDDEN, around=1), w(f"{p}{n}.bias", HIDDEN))
                 for n in ("input_layernorm", "post_attention_layernorm")]
        layers.append((parts, norms))
    final = (w("model.final_layernorm.weight", HIDDEN, around=1), w("model.final_layernorm.bias", HIDDEN))

    def sparse_mask(length):
        blocks = np.arange(length) // block
        q, k = blocks[None, :, None], blocks[None, None, :]
        head = np.arange(1, HEADS + 1)[:, None, None]
        seen = (q - k < local) | ((k + head) % stride == 0)
        return np.where(seen, 0.0, -np.inf)

    def forward(ids):
        x = config["mup_embedding_multiplier"] * table[ids]
        for l, (parts, norms) in enumerate(layers):
            (qkv_w, qkv_b), (o_w, o_b), (up_w, up_b), (down_w, down_b) = parts
            y = layer_norm(x, norms[0][0], eps, norms[0][1]) @ qkv_w.T + qkv_b
            # By key head: its query heads, the key, the value.
            y = y.reshape(len(ids), kv, group + 2, HEAD)
            q = y[:, :, :-2].reshape(len(ids), HEADS, HEAD).transpose(1, 0, 2)
            k, v = y[:, :, -2].transpose(1, 0, 2), y[:, :, -1].transpose(1, 0, 2)
            base, scale = config["rope_embedding_base"], config["rope_position_scale"]
            q, k = rope(q, base, scale=scale), rope(k, base, scale=scale)
            sparse = l % config["dense_attention_every_n_layers"] == 0
            added = sparse_mask(len(ids)) if sparse else 0.0
            mixed = attend(q, k, v, config["mup_attn_multiplier"] / HEAD, added)
            x = x + mixed @ o_w.T + o_b
            y = layer_norm(x, norms[1][0], eps, norms[1][1]) @ up_w.T + up_b
            gate, up = np.minimum(y[:, ::2], limit), np.clip(y[:, 1::2], -limit, limit)
            x = x + (gate / (1 + np.exp(-1.702 * gate)) * (up + 1)) @ down_w.T + down_b
        logits = layer_norm(x, final[0], eps, final[1]) @ table.T / config["mup_width_multiplier"]
        logits[:, config["dummy_token_indices"]] = -np.inf
        return logits
    return forward


def gemma4(w, config):
    """Gemma 4 with experts beside the MLP (Google DeepMind 2026), by the code that
    transformers 5.24 has for it."""
    eps, window, cap = config["rms_norm_eps"], config["sliding_window"], config["final_logit_softcapping"]
    experts, size = config["num_experts"], config["moe_intermediate_size"]

    def norm(x, weight=1.0):
        return rms_norm(x, weight, eps)

    def gelu_gated(x, *matrices):
        return gated(x, *matrices, act=gelu_tanh)

    table = w("model.embed_tokens.weight", VOCAB, HIDDEN)
    layers = []
    for l, kind in enumerate(config["layer_types"]):
        p = f"model.layers.{l}."
        whole = kind == "full_attention"
        head = config["global_head_dim" if whole else "head_dim"]
        kv = config["num_global_key_value_heads" if whole else "num_key_value_heads"]
        a = p + "self_attn."
        layer = {n: w(f"{p}{n}.weight", HIDDEN, around=1) for n in (
            "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
            "post_feedforward_layernorm", "post_feedforward_layernorm_1",
            "pre_feedforward_layernorm_2", "post_feedforward_layernorm_2")}
        layer |= {
            "whole": whole, "kv": kv,
            "q": w(a + "q_proj.weight", HEADS * head, HIDDEN),
            "k": w(a + "k_proj.weight", kv * head, HIDDEN),
            "o": w(a + "o_proj.weight", HIDDEN, HEADS * head),
            "q_norm": w(a + "q_norm.weight", head, around=1),
            "k_norm": w(a + "k_norm.weight", head, around=1),
            "mlp": [w(p + "mlp.gate_proj.weight", INNER, HIDDEN),
                    w(p + "mlp.up_proj.weight", INNER, HIDDEN),
                    w(p + "mlp.down_proj.weight", HIDDEN, INNER)],
            "router": w(p + "router.proj.weight", experts, HIDDEN),
            "router_scale": w(p + "router.scale", HIDDEN, around=1),
            "share_scale": w(p + "router.per_expert_scale", experts, around=1),
            "scalar": w(p + "layer_scalar", 1, around=1)}
        if not whole:  # the others take their keys for values
            layer["v"] = w(a + "v_proj.weight", kv * head, HIDDEN)
        both = w(p + "experts.gate_up_proj", experts, 2 * size, HIDDEN)
        down = w(p + "experts.down_proj", experts, HIDDEN, size)
        layer["experts"] = [(both[e, :size], both[e, size:], down[e]) for e in range(experts)]
        layers.append(layer)
    final = w("model.norm.weight", HIDDEN, around=1)

    def rotate(x, layer):
        if not layer["whole"]:
            return rope(x, config["rope_parameters"]["sliding_attention"]["rope_theta"])
        full = config["rope_parameters"]["full_attention"]
        return in_part(rope, x, full["partial_rotary_factor"], full["rope_theta"])

    def attention(x, layer):
        q = norm(heads_of(x @ layer["q"].T, HEADS), layer["q_norm"])
        raw = heads_of(x @ layer["k"].T, layer["kv"])
        k = norm(raw, layer["k_norm"])
        v = norm(raw if layer["whole"] else heads_of(x @ layer["v"].T, layer["kv"]))
        row = np.arange(len(x))
        outside = (row[:, None] - row >= window) & (not layer["whole"])
        mixed = attend(rotate(q, layer), rotate(k, layer), v, 1.0, np.where(outside, -np.inf, 0.0))
        return mixed @ layer["o"].T

    def feed_forward(x, layer):
        dense = gelu_gated(norm(x, layer["pre_feedforward_layernorm"]), *layer["mlp"])
        scores = softmax(norm(x) * layer["router_scale"] * HIDDEN ** -0.5 @ layer["router"].T)
        chosen = best(scores, config["top_k_experts"])
        shares = np.take_along_axis(scores, chosen, -1)
        shares = shares / shares.sum(-1, keepdims=True) * layer["share_scale"][chosen]
        mixed = mixture(
            norm(x, layer["pre_feedforward_layernorm_2"]), chosen, shares, layer["experts"], gelu_gated)
        return (norm(dense, layer["post_feedforward_layernorm_1"])
                + norm(mixed, layer["post_feedforward_layernorm_2"]))

    def forward(ids):
        x = table[ids] * np.sqrt(HIDDEN)
        for layer in layers:
            y = attention(norm(x, layer["input_layernorm"]), layer)
            x = x + norm(y, layer["post_attention_layernorm"])
            x = x + norm(feed_forward(x, layer), layer["post_feedforward_layernorm"])
            x = x * layer["scalar"]
        return cap * np.tanh(norm(x, final) @ table.T / cap)
    return forward


def nemotron3(w, config):
    """Nemotron 3's experts of a smaller vector (NVIDIA 2025), by the code that
    transformers 5.24 has for it; attention, mixtures and MLPs alone."""
    eps, kv, head = config["layer_norm_epsilon"], config["num_key_value_heads"], config["head_dim"]
    experts, size, small = (
        config["n_routed_experts"], config["moe_intermediate_size"], config["moe_latent_size"])

    def relu2(x):
        return np.maximum(x, 0) ** 2

    def linear(name, rows, cols):
        return w(name + ".weight", rows, cols), w(name + ".bias", rows)

    def apply(x, matrix):
        return x @ matrix[0].T + matrix[1]

    def plain(name, inner):
        up, down = linear(name + "up_proj", inner, HIDDEN), linear(name + "down_proj", HIDDEN, inner)
        return lambda x: apply(relu2(apply(x, up)), down)

    def attention(p):
        q, k, v = (w(f"{p}{n}_proj.weight", count * head, HIDDEN)
                   for n, count in (("q", HEADS), ("k", kv), ("v", kv)))
        o = w(p + "o_proj.weight", HIDDEN, HEADS * head)
        return lambda x: attend(heads_of(x @ q.T, HEADS), heads_of(x @ k.T, kv),
                                heads_of(x @ v.T, kv), head ** -0.5) @ o.T

    def latent_experts(p):
        router = w(p + "gate.weight", experts, HIDDEN)
        bias = w(p + "gate.e_score_correction_bias", experts)
        into, out = linear(p + "fc1_latent_proj", small, HIDDEN), linear(p + "fc2_latent_proj", HIDDEN, small)
        parts = [(w(f"{p}experts.{e}.up_proj.weight", size, small),
                  w(f"{p}experts.{e}.down_proj.weight", small, size)) for e in range(experts)]
        shared = plain(p + "shared_experts.", config["moe_shared_expert_intermediate_size"])

        def run(x):
            scores = 1 / (1 + np.exp(-x @ router.T))
            chosen = best(scores + bias, config["num_experts_per_tok"])
            shares = np.take_along_axis(scores, chosen, -1)
            shares = shares / shares.sum(-1, keepdims=True) * config["routed_scaling_factor"]
            mixed = mixture(apply(x, into), chosen, shares, parts,
                            lambda row, up, down: relu2(row @ up.T) @ down.T)
            return apply(mixed, out) + shared(x)
        return run

    makers = {"*": attention, "E": latent_experts, "-": lambda p: plain(p, INNER)}
    table = w("backbone.embeddings.weight", VOCAB, HIDDEN)
    layers = []
    for l, letter in enumerate(config["hybrid_override_pattern"]):
        p = f"backbone.layers.{l}."
        layers.append((w(p + "norm.weight", HIDDEN, around=1), makers[letter](p + "mixer.")))
    final = w("backbone.norm_f.weight", HIDDEN, around=1)
    head_matrix = w("lm_head.weight", VOCAB, HIDDEN)

    def forward(ids):
        x = table[ids]
        for norm, run in layers:
            x = x + run(rms_norm(x, norm, eps))
        return rms_norm(x, final, eps) @ head_matrix.T
    return forward


def turn_pairs(x, theta):
    """rope() with pairs (2i, 2i + 1)."""
    order = np.r_[0:x.shape[-1]:2, 1:x.shape[-1]:2]
    return rope(x[..., order], theta)[..., np.argsort(order)]


def head_norms(w, config):
    """A layer norm without bias on each head of q and k, each with a weight of its own:
    Command R+ (Cohere 2024) stores one matrix, StableLM 2 12B (Stability AI 2024) a
    tensor a head. Attention and MLP read the same normalized rows."""
    cohere = config["model_type"] == "cohere"
    eps, theta, kv = config["layer_norm_eps"], config["rope_theta"], config["num_key_value_heads"]
    table = w("model.embed_tokens.weight", VOCAB, HIDDEN)
    layers = []
    for l in range(LAYERS):
        p = f"model.layers.{l}."
        norms = []
        for name, heads in (("q", HEADS), ("k", kv)):
            if cohere:
                norms.append(w(p + f"self_attn.{name}_norm.weight", heads, HEAD, around=1))
            else:
                stem = p + f"self_attn.{name}_layernorm.norms."
                norms.append(np.stack([w(f"{stem}{h}.weight", HEAD, around=1) for h in range(heads)]))
        layers.append((
            w(p + "input_layernorm.weight", HIDDEN, around=1),
            0.0 if cohere else w(p + "input_layernorm.bias", HIDDEN),
            norms,
            [w(p + f"self_attn.{name}_proj.weight", rows * HEAD, HIDDEN)
             for name, rows in (("q", HEADS), ("k", kv), ("v", kv), ("o", HEADS))],
            [w(p + f"mlp.{name}_proj.weight", *shape) for name, shape in (
                ("gate", (INNER, HIDDEN)), ("up", (INNER, HIDDEN)), ("down", (HIDDEN, INNER)))]))
    final = w("model.norm.weight", HIDDEN, around=1)
    final_bias = 0.0 if cohere else w("model.norm.bias", HIDDEN)
    head = table if cohere else w("lm_head.weight", VOCAB, HIDDEN)

    def turn(x):
        return turn_pairs(x, theta) if cohere else rope(x, theta, HEAD // 2)

    def forward(ids):
        x = table[ids]
        for weight, bias, (q_norm, k_norm), (q, k, v, o), mlp in layers:
            y = layer_norm(x, weight, eps, bias)
            q = turn(layer_norm(heads_of(y @ q.T, HEADS), q_norm[:, None], eps))
            k = turn(layer_norm(heads_of(y @ k.T, kv), k_norm[:, None], eps))
            x = x + attend(q, k, heads_of(y @ v.T, kv), HEAD ** -0.5) @ o.T + gated(y, *mlp)
        return config.get("logit_scale", 1) * layer_norm(x, final, eps, final_bias) @ head.T
    return forward


BAICHUAN = {
    "model_type": "baichuan", "architectures": ["BaichuanForCausalLM"], "hidden_size": HIDDEN,
    "intermediate_size": INNER, "num_attention_heads": HEADS, "num_hidden_layers": LAYERS,
    "vocab_size": VOCAB, "rms_norm_eps": 1e-3, "hidden_act": "silu", "tie_word_embeddings": False}
BAILING = {
    "model_type": "bailing_moe", "architectures": ["BailingMoeForCausalLM"], "hidden_size": HIDDEN,
    "intermediate_size": INNER, "moe_intermediate_size": 12, "num_attention_heads": HEADS,
    "num_key_value_heads": 2, "num_hidden_layers": LAYERS, "vocab_size": VOCAB,
    "rms_norm_eps": 1e-3, "rope_theta": 7000.0, "max_position_embeddings": 128,
    "tie_word_embeddings": False, "norm_topk_prob": True, "num_experts_per_tok": 3}
NORMED = {
    "hidden_size": HIDDEN, "intermediate_size": INNER, "num_attention_heads": HEADS,
    "num_key_value_heads": 2, "num_hidden_layers": LAYERS, "vocab_size": VOCAB,
    "layer_norm_eps": 1e-3, "rope_theta": 7000.0, "hidden_act": "silu",
    "max_position_embeddings": 128}
CASES = {
    "baichuan_alibi": (
        lambda w, c: baichuan(w, c, True, False), {**BAICHUAN, "model_max_length": 128}, 24),
    "baichuan2": (
        lambda w, c: baichuan(w, c, False, True),
        {**BAICHUAN, "max_position_embeddings": 128, "z_loss_weight": 0}, 24),
    "bailing_moe": (
        bailing_moe,
        {**BAILING, "num_experts": 5, "num_shared_experts": 2, "first_k_dense_replace": 1,
         "norm_head": True, "use_bias": True, "use_qkv_bias": False}, 24),
    "bailing_moe_groups": (
        bailing_moe,
        {**BAILING, "num_experts": 8, "num_shared_experts": 0, "first_k_dense_replace": 0,
         "n_group": 4, "topk_group": 2, "score_function": "sigmoid", "use_qk_norm": True,
         "use_qkv_bias": True, "moe_router_enable_expert_bias": True, "partial_rotary_factor": 0.5,
         "routed_scaling_factor": 2.5}, 24),
    "dbrx": (
        dbrx,
        {"model_type": "dbrx", "architectures": ["DbrxForCausalLM"], "d_model": HIDDEN,
         "n_heads": HEADS, "n_layers": LAYERS, "max_seq_len": 128, "vocab_size": VOCAB,
         "tie_word_embeddings": False,
         "attn_config": {"kv_n_heads": 2, "clip_qkv": 0.9, "rope_theta": 7000.0},
         "ffn_config": {"ffn_hidden_size": 12, "moe_num_experts": 5, "moe_top_k": 3,
                        "moe_normalize_expert_weights": 1, "ffn_act_fn": {"name": "silu"}}}, 24),
    "phi3small": (
        phi3small,
        {"model_type": "phi3small", "architectures": ["Phi3SmallForCausalLM"],
         "hidden_size": HIDDEN, "ff_intermediate_size": INNER, "num_attention_heads": HEADS,
         "num_key_value_heads": 2, "num_hidden_layers": LAYERS, "vocab_size": VOCAB,
         "layer_norm_epsilon": 1e-3, "gegelu_limit": 0.8, "hidden_act": "gegelu",
         "dense_attention_every_n_layers": 2, "mup_attn_multiplier": 1.3, "mup_use_scaling": True,
         "mup_embedding_multiplier": 3.0, "mup_width_multiplier": 2.0,
         "rope_embedding_base": 7000, "rope_position_scale": 0.7, "max_position_embeddings": 512,
         "blocksparse_block_size": 32, "blocksparse_num_local_blocks": 1,
         "blocksparse_vert_stride": 3, "dummy_token_indices": [7, 31],
         "tie_word_embeddings": True}, 140),
    "gemma4_experts": (
        gemma4,
        {"model_type": "gemma4_text", "architectures": ["Gemma4ForCausalLM"],
         "hidden_size": HIDDEN, "intermediate_size": INNER, "num_attention_heads": HEADS,
         "num_key_value_heads": 2, "num_global_key_value_heads": 1, "head_dim": 6,
         "global_head_dim": 16, "num_hidden_layers": 2, "vocab_size": VOCAB,
         "vocab_size_per_layer_input": VOCAB, "hidden_size_per_layer_input": 0,
         "num_kv_shared_layers": 0, "attention_k_eq_v": True, "use_double_wide_mlp": False,
         "rms_norm_eps": 1e-3, "sliding_window": 7, "max_position_embeddings": 128,
         "layer_types": ["sliding_attention", "full_attention"],
         "rope_parameters": {
             "sliding_attention": {"rope_type": "default", "rope_theta": 7000.0},
             "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.5,
                                "rope_theta": 90000.0}},
         "hidden_activation": "gelu_pytorch_tanh", "final_logit_softcapping": 9.0,
         "enable_moe_block": True, "num_experts": 5, "top_k_experts": 2,
         "moe_intermediate_size": 12, "tie_word_embeddings": True}, 24),
    "nemotron3_latent": (
        nemotron3,
        {"model_type": "nemotron_h", "architectures": ["NemotronHForCausalLM"],
         "hidden_size": HIDDEN, "intermediate_size": INNER, "num_attention_heads": HEADS,
         "num_key_value_heads": 2, "head_dim": 6, "num_hidden_layers": 4, "vocab_size": VOCAB,
         "hybrid_override_pattern": "*E-E", "layer_norm_epsilon": 1e-3, "mlp_hidden_act": "relu2",
         "mlp_bias": True, "attention_bias": False, "use_bias": False, "mamba_num_heads": 4,
         "mamba_head_dim": 8, "n_groups": 2, "ssm_state_size": 8, "conv_kernel": 3,
         "use_conv_bias": True, "max_position_embeddings": 128, "n_routed_experts": 6,
         "n_shared_experts": 1, "num_experts_per_tok": 3, "n_group": 1, "topk_group": 1,
         "norm_topk_prob": True, "routed_scaling_factor": 1.5, "moe_intermediate_size": 12,
         "moe_shared_expert_intermediate_size": 16, "moe_latent_size": 10,
         "tie_word_embeddings": False}, 24),
    "cohere_head_norms": (
        head_norms,
        {**NORMED, "model_type": "cohere", "architectures": ["CohereForCausalLM"],
         "use_qk_norm": True, "logit_scale": 0.7, "tie_word_embeddings": True}, 24),
    "stablelm_head_norms": (
        head_norms,
        {**NORMED, "model_type": "stablelm", "architectures": ["StableLmForCausalLM"],
         "qk_layernorm": True, "use_parallel_residual": True, "use_qkv_bias": False,
         "partial_rotary_factor": 0.5, "tie_word_embeddings": False}, 24),
}


def main(out):
    cases, arrays = {}, {}
    for seed, (name, (build, config, length)) in enumerate(CASES.items(), 20):
        weights = Weights()
        forward = build(weights, config)
        ids = list(np.random.default_rng(seed).integers(0, VOCAB, length))
        logits, greedy, margins = forward(np.array(ids)), [], []
        for _ in range(12):
            second, first = np.sort(forward(np.array(ids + greedy))[-1])[-2:]
            greedy.append(int(forward(np.array(ids + greedy))[-1].argmax()))
            margins.append(first - second)
        cases[name] = {"config": config, "tensors": weights.tensors}
        arrays |= {
            f"{name}.input_ids": np.array(ids, np.int32), f"{name}.logits": logits.astype(np.float32),
            f"{name}.greedy": np.array(greedy, np.int32),
            f"{name}.margins": np.array(margins, np.float32)}
    rows = [f'"{name}": {json.dumps(case)}' for name, case in cases.items()]
    (out / "text_families.json").write_text("{\n" + ",\n".join(rows) + "\n}\n")
    save_file(arrays, out / "text_families.safetensors")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

#!/usr/bin/env python3
"""Writes the cases tests/fixtures/text/longcat_flash and kimi_linear.

    tests/oracle/latent_attention.py longcat_flash|kimi_linear FOLDER

Random checkpoints and their logits in double precision, with the keys and values
of every head in full, where the program absorbs their matrices.

LongCat Flash (arXiv:2509.01322): a layer has two latent attentions and two MLPs,
and experts that read what the first MLP reads and are added after the second;
some experts give their input back. Kimi Linear (arXiv:2510.26692): delta rule
layers with a decay a channel, latent attention without rotation, experts.
"""

import json
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

COMMON = {
    "hidden_size": 16, "vocab_size": 32, "num_attention_heads": 2,
    "kv_lora_rank": 8, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4,
    "v_head_dim": 5, "rms_norm_eps": 1e-3, "rope_theta": 7000.0,
    "hidden_act": "silu", "tie_word_embeddings": False,
    "torch_dtype": "float32"}
LONGCAT = dict(COMMON, **{
    "model_type": "longcat_flash",
    "architectures": ["LongcatFlashForCausalLM"],
    "num_layers": 2, "attention_method": "MLA", "attention_bias": False,
    "q_lora_rank": 7, "mla_scale_q_lora": True, "mla_scale_kv_lora": True,
    "ffn_hidden_size": 12, "expert_ffn_hidden_size": 10, "n_routed_experts": 3,
    "zero_expert_num": 2, "zero_expert_type": "identity", "moe_topk": 2,
    "routed_scaling_factor": 1.7, "router_bias": False,
    "norm_topk_prob": False, "max_position_embeddings": 128})
KIMI = dict(COMMON, **{
    "model_type": "kimi_linear",
    "architectures": ["KimiLinearForCausalLM"],
    "num_hidden_layers": 2, "num_key_value_heads": 2, "head_dim": 8,
    "q_lora_rank": None, "mla_use_nope": True, "intermediate_size": 12,
    "linear_attn_config": {
        "kda_layers": [1], "full_attn_layers": [2], "num_heads": 2,
        "head_dim": 5, "short_conv_kernel_size": 3},
    "num_experts": 4, "num_experts_per_token": 2, "moe_intermediate_size": 10,
    "num_shared_experts": 1, "moe_router_activation_func": "sigmoid",
    "moe_renormalize": True, "routed_scaling_factor": 1.7,
    "first_k_dense_replace": 1, "moe_layer_freq": 1, "use_grouped_topk": True,
    "num_expert_group": 1, "topk_group": 1, "model_max_length": 128})
HIDDEN, HEADS, LATENT = 16, 2, 8
PLAIN, ROPE, VALUE = 6, 4, 5
EPS, LATENT_EPS = 1e-3, 1e-6


class Weights(dict):
    """Random tensors by name, made when first asked for."""

    def __init__(self, seed):
        super().__init__()
        self.random = np.random.default_rng(seed)

    def matrix(self, name, *shape):
        if name not in self:
            scale = (4 if name.endswith("embed_tokens.weight")
                     else np.prod(shape[1:]) ** -0.5)
            self[name] = self.random.normal(0, scale, shape).astype(np.float32)
        return self[name].astype(np.float64)

    def norm(self, name, size):
        if name not in self:
            self[name] = self.random.normal(1, 0.3, size).astype(np.float32)
        return self[name].astype(np.float64)

    def vector(self, name, size, scale=1.0):
        if name not in self:
            self[name] = self.random.normal(0, scale, size).astype(np.float32)
        return self[name].astype(np.float64)


def rms(x, weight, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def silu(x):
    return x * sigmoid(x)


def softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def rotate(x):
    """Pairs (2i, 2i + 1) of [length, heads, ROPE]."""
    half = ROPE // 2
    angle = np.arange(len(x))[:, None] * 7000.0 ** (-np.arange(half) / half)
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
    a, b = x[..., 0::2], x[..., 1::2]
    out = np.empty_like(x)
    out[..., 0::2] = a * cos - b * sin
    out[..., 1::2] = b * cos + a * sin
    return out


def latent_attention(x, w, at, q_rank, turn, q_scale=1.0, latent_scale=1.0):
    length = len(x)
    if q_rank:
        q = rms(x @ w.matrix(at + "q_a_proj.weight", q_rank, HIDDEN).T,
                w.norm(at + "q_a_layernorm.weight", q_rank), LATENT_EPS)
        q = q @ w.matrix(
            at + "q_b_proj.weight", HEADS * (PLAIN + ROPE), q_rank).T
    else:
        q = x @ w.matrix(at + "q_proj.weight", HEADS * (PLAIN + ROPE), HIDDEN).T
    q = q.reshape(length, HEADS, PLAIN + ROPE) * q_scale
    kv = x @ w.matrix(
        at + "kv_a_proj_with_mqa.weight", LATENT + ROPE, HIDDEN).T
    latent = rms(kv[:, :LATENT], w.norm(at + "kv_a_layernorm.weight", LATENT),
                 LATENT_EPS) * latent_scale
    full = (latent @ w.matrix(
        at + "kv_b_proj.weight", HEADS * (PLAIN + VALUE), LATENT).T).reshape(
            length, HEADS, PLAIN + VALUE)
    q_rope, k_rope = q[..., PLAIN:], kv[:, None, LATENT:]
    if turn:
        q_rope, k_rope = rotate(q_rope), rotate(k_rope)
    scores = np.einsum("ihd,jhd->hij", q[..., :PLAIN], full[..., :PLAIN])
    scores = scores + np.einsum("ihd,jd->hij", q_rope, k_rope[:, 0])
    scores = scores / np.sqrt(PLAIN + ROPE)
    scores = softmax(np.where(np.tri(length, dtype=bool), scores, -np.inf))
    y = np.einsum("hij,jhd->ihd", scores, full[..., PLAIN:])
    return y.reshape(length, HEADS * VALUE) @ w.matrix(
        at + "o_proj.weight", HIDDEN, HEADS * VALUE).T


def mlp(x, w, at, inner, names=("gate_proj", "up_proj", "down_proj")):
    gate, up, down = (f"{at}{name}.weight" for name in names)
    return (silu(x @ w.matrix(gate, inner, HIDDEN).T)
            * (x @ w.matrix(up, inner, HIDDEN).T)) @ w.matrix(
                down, HIDDEN, inner).T


def longcat_experts(x, w, at):
    count, zero = LONGCAT["n_routed_experts"], LONGCAT["zero_expert_num"]
    scores = softmax(
        x @ w.matrix(at + "router.classifier.weight", count + zero, HIDDEN).T)
    keys = scores + w.vector(
        at + "router.e_score_correction_bias", count + zero, 0.1)
    results = [mlp(x, w, f"{at}experts.{e}.", 10) for e in range(count)]
    results += [x] * zero
    out = np.zeros_like(x)
    for t in range(len(x)):
        for e in np.argsort(-keys[t], kind="stable")[:LONGCAT["moe_topk"]]:
            out[t] += 1.7 * scores[t, e] * results[e][t]
    return out


def longcat(x, w):
    q_rank = LONGCAT["q_lora_rank"]
    scales = ((HIDDEN / q_rank) ** 0.5, (HIDDEN / LATENT) ** 0.5)
    for layer in range(LONGCAT["num_layers"]):
        at = f"model.layers.{layer}."
        for i in range(2):
            n = rms(x, w.norm(f"{at}input_layernorm.{i}.weight", HIDDEN), EPS)
            x = x + latent_attention(
                n, w, f"{at}self_attn.{i}.", q_rank, True, *scales)
            n = rms(x, w.norm(
                f"{at}post_attention_layernorm.{i}.weight", HIDDEN), EPS)
            if i == 0:
                shortcut = longcat_experts(n, w, at + "mlp.")
            x = x + mlp(n, w, f"{at}mlps.{i}.", 12)
        x = x + shortcut
    return x


def convolved(x, taps):
    """silu of a causal convolution, weights [channels, 1, taps]."""
    count = taps.shape[2]
    padded = np.concatenate([np.zeros((count - 1, x.shape[1])), x])
    return silu(sum(
        padded[j:j + len(x)] * taps[:, 0, j] for j in range(count)))


def delta_rule(x, w, at):
    heads, dim, taps = 2, 5, 3
    length, width = len(x), heads * dim

    def low_rank(name):
        low = x @ w.matrix(f"{at}{name}_a_proj.weight", dim, HIDDEN).T
        return (low @ w.matrix(f"{at}{name}_b_proj.weight", width, dim).T
                ).reshape(length, heads, dim)

    q, k, v = (
        convolved(x @ w.matrix(f"{at}{name}_proj.weight", width, HIDDEN).T,
                  w.matrix(f"{at}{name}_conv1d.weight", width, 1, taps))
        .reshape(length, heads, dim) for name in "qkv")
    q = q / np.sqrt((q * q).sum(-1, keepdims=True) + 1e-6) / np.sqrt(dim)
    k = k / np.sqrt((k * k).sum(-1, keepdims=True) + 1e-6)
    rate = np.exp(w.vector(at + "A_log", (1, 1, heads, 1), 0.5).reshape(heads, 1))
    decay = np.exp(-rate * np.logaddexp(
        0, low_rank("f") + w.vector(at + "dt_bias", width).reshape(heads, dim)))
    beta = sigmoid(x @ w.matrix(at + "b_proj.weight", heads, HIDDEN).T)
    y = np.zeros((length, heads, dim))
    for h in range(heads):
        state = np.zeros((dim, dim))  # [key, value]
        for t in range(length):
            state = state * decay[t, h][:, None]
            change = beta[t, h] * (v[t, h] - state.T @ k[t, h])
            state = state + np.outer(k[t, h], change)
            y[t, h] = state.T @ q[t, h]
    y = rms(y, w.norm(at + "o_norm.weight", dim), EPS) * sigmoid(low_rank("g"))
    return y.reshape(length, width) @ w.matrix(
        at + "o_proj.weight", HIDDEN, width).T


def kimi_experts(x, w, at):
    count, inner = KIMI["num_experts"], KIMI["moe_intermediate_size"]
    scores = sigmoid(x @ w.matrix(at + "gate.weight", count, HIDDEN).T)
    keys = scores + w.vector(at + "gate.e_score_correction_bias", count, 0.2)
    results = [mlp(x, w, f"{at}experts.{e}.", inner, ("w1", "w3", "w2"))
               for e in range(count)]
    out = mlp(x, w, at + "shared_experts.", inner)
    for t in range(len(x)):
        best = np.argsort(-keys[t], kind="stable")[:2]
        for e in best:
            out[t] += 1.7 * scores[t, e] / scores[t, best].sum() * results[e][t]
    return out


def kimi(x, w):
    for layer in range(KIMI["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        n = rms(x, w.norm(at + "input_layernorm.weight", HIDDEN), EPS)
        if layer + 1 in KIMI["linear_attn_config"]["kda_layers"]:
            x = x + delta_rule(n, w, at + "self_attn.")
        else:
            x = x + latent_attention(n, w, at + "self_attn.", None, False)
        n = rms(x, w.norm(at + "post_attention_layernorm.weight", HIDDEN), EPS)
        if layer >= KIMI["first_k_dense_replace"]:
            x = x + kimi_experts(n, w, at + "block_sparse_moe.")
        else:
            x = x + mlp(n, w, at + "mlp.", 12)
    return x


CASES = {
    "longcat_flash": (
        LONGCAT, longcat, "two latent attentions and MLPs a layer, a shortcut "
                          "of experts, identity experts, scaled low ranks"),
    "kimi_linear": (
        KIMI, kimi, "delta rule with a decay a channel, latent attention "
                    "without rotation, experts by sigmoid"),
}


def main():
    case, folder = sys.argv[1], Path(sys.argv[2])
    config, layers, exercises = CASES[case]
    (folder / "model").mkdir(parents=True, exist_ok=True)
    weights = Weights(2405)
    vocab = config["vocab_size"]

    def logits_of(tokens):
        x = weights.matrix("model.embed_tokens.weight", vocab, HIDDEN)[tokens]
        x = layers(x, weights)
        x = rms(x, weights.norm("model.norm.weight", HIDDEN), EPS)
        return x @ weights.matrix("lm_head.weight", vocab, HIDDEN).T

    prompt = weights.random.integers(0, vocab, 24).astype(np.int32)
    tokens, margins = list(prompt), []
    for _ in range(16):
        last = logits_of(np.array(tokens))[-1]
        best, second = np.sort(last)[::-1][:2]
        margins.append(best - second)
        tokens.append(int(last.argmax()))
    save_file(dict(weights), folder / "model" / "model.safetensors",
              metadata={"format": "pt"})
    save_file({
        "input_ids": prompt[None],
        "logits": logits_of(prompt)[None].astype(np.float32),
        "greedy": np.array(tokens[24:], np.int32),
        "greedy_margin": np.array(margins, np.float32)},
        folder / "expected.safetensors")
    (folder / "model" / "config.json").write_text(
        json.dumps(config, indent=1) + "\n")
    (folder / "meta.json").write_text(json.dumps({
        "family": case, "model_type": case, "exercises": exercises,
        "oracle": {"name": "tests/oracle/latent_attention.py"},
        "weights": {"dtype": "f32", "layout": "pt"},
        "abs_tolerance": 0.002}, indent=1) + "\n")


if __name__ == "__main__":
    main()

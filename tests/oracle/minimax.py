#!/usr/bin/env python3
"""Writes the cases tests/fixtures/text/minimax and minimax_tables.

    tests/oracle/minimax.py FOLDER [--tables]

A random MiniMax checkpoint and its logits, computed in double precision with the
block form of lightning attention (MiniMax-01, arXiv:2501.08313, section 2.2):
within a block the full products with their decays, between blocks the state.
Checkpoints carry the decays as tables, and the block form reads them from there.
Those of the first case follow from its slopes, so that the program computes a
recurrence instead. With --tables the first layer has random tables, which let a
token see later ones of its block. Each token of `greedy` then comes from a pass
over all before it, as the reference's without a cache do.
"""

import json
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

CONFIG = {
    "model_type": "minimax", "architectures": ["MiniMaxForCausalLM"],
    "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 10, "intermediate_size": 8,
    "vocab_size": 32, "rms_norm_eps": 1e-3, "rope_theta": 7000.0,
    "hidden_act": "silu", "num_local_experts": 3, "num_experts_per_tok": 2,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "block_size": 5, "full_attn_alpha_factor": 1.3,
    "full_attn_beta_factor": 0.8, "linear_attn_alpha_factor": 1.2,
    "linear_attn_beta_factor": 0.7, "mlp_alpha_factor": 1.1,
    "mlp_beta_factor": 0.9, "sliding_window": None,
    "max_position_embeddings": 128, "tie_word_embeddings": False,
    "torch_dtype": "float32"}
TABLES = "--tables" in sys.argv[1:]
HIDDEN, DIM = CONFIG["hidden_size"], CONFIG["head_dim"]
HEADS, KV, LAYERS = 2, 1, 3
INNER, VOCAB = CONFIG["intermediate_size"], CONFIG["vocab_size"]
BLOCK, EXPERTS = CONFIG["block_size"], CONFIG["num_local_experts"]
EPS, GATED_EPS = 1e-3, 1e-6


def slopes(layer):
    factor = 1 - layer / (LAYERS - 1 + 1e-5) + 1e-5
    return np.array([2 ** (-8 * (h + 1) / HEADS) for h in range(HEADS)]) * factor


def make_weights(random):
    w = {}

    def matrix(name, *shape):
        w[name] = random.normal(0, shape[-1] ** -0.5, shape).astype(np.float32)

    def norm(name, size):
        w[name] = random.normal(1, 0.3, size).astype(np.float32)

    matrix("model.embed_tokens.weight", VOCAB, HIDDEN)
    w["model.embed_tokens.weight"] *= 4
    matrix("lm_head.weight", VOCAB, HIDDEN)
    norm("model.norm.weight", HIDDEN)
    for layer, kind in enumerate(CONFIG["layer_types"]):
        at = f"model.layers.{layer}."
        norm(at + "input_layernorm.weight", HIDDEN)
        norm(at + "post_attention_layernorm.weight", HIDDEN)
        a = at + "self_attn."
        if kind == "linear_attention":
            matrix(a + "qkv_proj.weight", 3 * HEADS * DIM, HIDDEN)
            matrix(a + "output_gate.weight", HEADS * DIM, HIDDEN)
            matrix(a + "out_proj.weight", HIDDEN, HEADS * DIM)
            norm(a + "norm.weight", HEADS * DIM)
            rate = slopes(layer)[:, None, None]
            place = np.arange(BLOCK)[:, None] + 1
            w[a + "slope_rate"] = rate.astype(np.float32)
            w[a + "query_decay"] = np.exp(-rate * place).astype(np.float32)
            w[a + "key_decay"] = np.exp(-rate * (BLOCK - place)).astype(
                np.float32)
            apart = (place - place.T)[None, None]
            w[a + "diagonal_decay"] = np.where(
                apart >= 0, np.exp(-rate * np.maximum(apart, 0)), 0).astype(
                    np.float32)
            if TABLES and layer == 0:
                for table in ("slope_rate", "query_decay", "key_decay",
                              "diagonal_decay"):
                    shape = w[a + table].shape
                    w[a + table] = random.normal(0, 0.5, shape).astype(
                        np.float32)
        else:
            matrix(a + "q_proj.weight", HEADS * DIM, HIDDEN)
            matrix(a + "k_proj.weight", KV * DIM, HIDDEN)
            matrix(a + "v_proj.weight", KV * DIM, HIDDEN)
            matrix(a + "o_proj.weight", HIDDEN, HEADS * DIM)
        m = at + "block_sparse_moe."
        matrix(m + "gate.weight", EXPERTS, HIDDEN)
        for e in range(EXPERTS):
            matrix(m + f"experts.{e}.w1.weight", INNER, HIDDEN)
            matrix(m + f"experts.{e}.w3.weight", INNER, HIDDEN)
            matrix(m + f"experts.{e}.w2.weight", HIDDEN, INNER)
    return w


def rms(x, weight, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def silu(x):
    return x * sigmoid(x)


def lightning(x, w):
    length = len(x)
    qkv = silu(x @ w["qkv_proj.weight"].T).reshape(length, HEADS, 3 * DIM)
    q, k, v = (part.transpose(1, 0, 2) for part in np.split(qkv, 3, axis=2))
    out = np.zeros((HEADS, length, DIM))
    for h, rate in enumerate(w["slope_rate"].reshape(HEADS)):
        state = np.zeros((DIM, DIM))
        for start in range(0, length, BLOCK):
            rows = slice(start, min(start + BLOCK, length))
            n = rows.stop - rows.start
            inside = w["diagonal_decay"][0, h, :n, :n]
            qs, ks, vs = q[h, rows], k[h, rows], v[h, rows]
            out[h, rows] = (qs @ ks.T * inside) @ vs + (
                qs * w["query_decay"][h, :n]) @ state
            state = state * np.exp(-rate * n) + (
                ks * w["key_decay"][h, BLOCK - n:]).T @ vs
    y = out.transpose(1, 0, 2).reshape(length, HEADS * DIM)
    y = rms(y, w["norm.weight"], GATED_EPS)
    return (sigmoid(x @ w["output_gate.weight"].T) * y) @ w["out_proj.weight"].T


def rotate(x):
    half = DIM // 2
    angle = np.arange(len(x))[:, None] * 7000.0 ** (-np.arange(half) / half)
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def attention(x, w):
    length = len(x)

    def heads(name, count):
        return (x @ w[name + "_proj.weight"].T).reshape(length, count, DIM)

    q, k, v = rotate(heads("q", HEADS)), rotate(heads("k", KV)), heads("v", KV)
    scores = np.einsum("ihd,jd->hij", q, k[:, 0]) / np.sqrt(DIM)
    scores = np.where(np.tri(length, dtype=bool), scores, -np.inf)
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    scores /= scores.sum(-1, keepdims=True)
    y = np.einsum("hij,jd->ihd", scores, v[:, 0])
    return y.reshape(length, HEADS * DIM) @ w["o_proj.weight"].T


def experts(x, w):
    logits = x @ w["gate.weight"].T
    shares = np.exp(logits - logits.max(-1, keepdims=True))
    out = np.zeros_like(x)
    for t, row in enumerate(x):
        best = np.argsort(-shares[t], kind="stable")[:2]
        for e in best:
            inner = silu(w[f"experts.{e}.w1.weight"] @ row) * (
                w[f"experts.{e}.w3.weight"] @ row)
            out[t] += shares[t, e] / shares[t, best].sum() * (
                w[f"experts.{e}.w2.weight"] @ inner)
    return out


def below(w, prefix):
    return {k[len(prefix):]: v for k, v in w.items() if k.startswith(prefix)}


def logits_of(tokens, weights):
    w = {key: value.astype(np.float64) for key, value in weights.items()}
    x = w["model.embed_tokens.weight"][tokens]
    for layer, kind in enumerate(CONFIG["layer_types"]):
        own = below(w, f"model.layers.{layer}.")
        linear = kind == "linear_attention"
        name = "linear_attn" if linear else "full_attn"
        x = rms(x, own["input_layernorm.weight"], EPS)
        mixer = below(own, "self_attn.")
        y = lightning(x, mixer) if linear else attention(x, mixer)
        x = x * CONFIG[name + "_alpha_factor"] + y * CONFIG[name + "_beta_factor"]
        x = rms(x, own["post_attention_layernorm.weight"], EPS)
        y = experts(x, below(own, "block_sparse_moe."))
        x = x * CONFIG["mlp_alpha_factor"] + y * CONFIG["mlp_beta_factor"]
    return rms(x, w["model.norm.weight"], EPS) @ w["lm_head.weight"].T


def main():
    folder = Path(sys.argv[1])
    (folder / "model").mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(2509 if TABLES else 2501)
    weights = make_weights(random)
    prompt = random.integers(0, VOCAB, 24).astype(np.int32)
    tokens, margins = list(prompt), []
    for _ in range(16):
        last = logits_of(np.array(tokens), weights)[-1]
        best, second = np.sort(last)[::-1][:2]
        margins.append(best - second)
        tokens.append(int(last.argmax()))
    save_file(weights, folder / "model" / "model.safetensors",
              metadata={"format": "pt"})
    save_file({
        "input_ids": prompt[None],
        "logits": logits_of(prompt, weights)[None].astype(np.float32),
        "greedy": np.array(tokens[24:], np.int32),
        "greedy_margin": np.array(margins, np.float32)},
        folder / "expected.safetensors")
    (folder / "model" / "config.json").write_text(json.dumps(CONFIG, indent=1))
    (folder / "meta.json").write_text(json.dumps({
        "family": "minimax", "model_type": "minimax",
        "exercises": ("lightning attention by stored tables, "
                      if TABLES else "lightning attention with its decays, ")
                     + "residual factors, experts",
        "oracle": {"name": "tests/oracle/minimax.py"},
        "weights": {"dtype": "f32", "layout": "pt"},
        "abs_tolerance": 0.002}, indent=1))


if __name__ == "__main__":
    main()

"""Writes tests/data/requantize.safetensors: affine triples, changes to them, and
the triples that MLX's quantize gives for the changed weights.

usage: requantize.py OUT   (needs the mlx wheel)
"""
import sys

import mlx.core as mx

mx.random.seed(7)
out = {}
for bits in (4, 8):
    for group in (32, 64):
        name = f"b{bits}g{group}"
        weight = mx.random.normal((8, 128))
        packed, scales, biases = mx.quantize(weight, group_size=group, bits=bits)
        delta = 0.3 * mx.random.normal((8, 128))
        base = mx.dequantize(packed, scales, biases, group_size=group, bits=bits)
        changed = mx.quantize(base + 0.5 * delta, group_size=group, bits=bits)
        for part, tensor in zip(("weight", "scales", "biases"), (packed, scales, biases)):
            out[f"{name}.{part}"] = tensor
        out[f"{name}.delta"] = delta
        for part, tensor in zip(("weight", "scales", "biases"), changed):
            out[f"{name}.want_{part}"] = tensor
mx.save_safetensors(sys.argv[1], out)

"""Times mlx-lm on an MLX folder, in float32, which is its fastest type on a CPU;
prints one JSON object. Its prefill takes minutes for 512 tokens there, so the
prompt is short and only decode is reported.

    mlx_lm_peer.py FOLDER GEN_TOKENS
"""

import json
import sys
import time

import mlx.core as mx
from mlx_lm.generate import generate_step
from mlx_lm.utils import load_model
from pathlib import Path


def main():
    folder, gen_tokens = Path(sys.argv[1]), int(sys.argv[2])
    model, _ = load_model(folder)
    model.set_dtype(mx.float32)
    prompt = mx.array([1000, 2000, 3000, 4000])
    times = []
    for _ in generate_step(prompt, model, max_tokens=gen_tokens + 1):
        times.append(time.perf_counter())
    print(json.dumps(
        {"decode": (len(times) - 1) / (times[-1] - times[0])}))


if __name__ == "__main__":
    main()

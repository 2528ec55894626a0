"""Times OpenVINO GenAI on a GGUF file; prints one JSON object.

    openvino_peer.py FILE PROMPT_TOKENS GEN_TOKENS THREADS
"""

import json
import random
import sys

import numpy as np
import openvino
import openvino_genai


def main():
    model, prompt_tokens, gen_tokens, threads = (
        sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
    pipeline = openvino_genai.LLMPipeline(model, "CPU",
                                          INFERENCE_NUM_THREADS=threads)
    config = openvino_genai.GenerationConfig()
    config.do_sample = False
    config.ignore_eos = True
    config.max_new_tokens = gen_tokens

    # A fresh prompt each time: it keeps the blocks of former prompts.
    def run():
        ids = np.array([random.sample(range(100, 40000), prompt_tokens)],
                       dtype=np.int64)
        return pipeline.generate(openvino.Tensor(ids), config).perf_metrics

    run()
    metrics = run()
    print(json.dumps({
        "prefill": prompt_tokens / metrics.get_ttft().mean * 1000,
        "decode": 1000 / metrics.get_tpot().mean,
    }))


if __name__ == "__main__":
    main()

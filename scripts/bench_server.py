#!/usr/bin/env python3
"""Compares mlxcel-server with llama-server on the same machine and weights.

Measures tokens a second of N answers at a time without adapters, under one, and
under eight in turn; the time to the first token of a prompt that shares its
beginning with an earlier one; and what the server costs beside the bare engine.
The servers run in alternation, one at a time, each round in the opposite order
of the one before. Prints the medians, and for each file of llama-server's the
ratio of every round, mlxcel to it.

  scripts/bench_server.py --model DIR --peers [--rounds 5] [--json]
  scripts/bench_server.py --model DIR [--llama-server PROGRAM --gguf FILE]

--peers takes llama-server and the default model's GGUF files (Q4_1, Q4_0) from
where ./dev bench keeps its engines, MLXCEL_BENCH_DIR, and makes what is not
there.
"""

import argparse
import http.client
import json
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.dont_write_bytecode = True
from benchmark.peers import Peers

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = ROOT / "build" / "release" / "bin"
ADAPTERS = 8
RANK = 16
PROJECTIONS = {  # ours: llama.cpp's
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down"}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    def __init__(self, command, log):
        self.port = free_port()
        self.process = subprocess.Popen(
            [*map(str, command), "--port", str(self.port)],
            stdout=log, stderr=log)
        end = time.monotonic() + 120
        while time.monotonic() < end:
            if self.process.poll() is not None:
                sys.exit(f"bench: {command[0]} ended at the start")
            try:
                if self.call("GET", "/health")[0] == 200:
                    return
            except OSError:
                pass
            time.sleep(0.05)
        sys.exit(f"bench: {command[0]} is not ready")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def call(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port,
                                                timeout=600)
        try:
            connection.request(method, path,
                               None if body is None else json.dumps(body),
                               {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def complete(self, **body):
        status, raw = self.call("POST", "/completion", {
            "temperature": 0, "ignore_eos": True, **body})
        if status != 200:
            sys.exit(f"bench: status {status}: {raw[:300]!r}")
        return json.loads(raw)


def prompt_of(seed, tokens):
    """Words that differ from the first on, about one token each."""
    words = ["river", "stone", "cloud", "market", "engine", "garden", "winter",
             "paper", "signal", "bridge", "copper", "island", "window"]
    state, out = seed * 7919 + 1, [f"Story {seed}:"]
    for _ in range(tokens):
        state = (state * 1103515245 + 12345) % 2**31
        out.append(words[state // 65536 % len(words)])
    return " ".join(out)


def load(server, streams, tokens, lora_of, seed, stream=False):
    """Tokens and seconds of all answers together, the sum of their decoding
    rates, and the tokens of a prompt."""
    gate = threading.Barrier(streams + 1)
    results = [None] * streams

    def one(i):
        body = {"prompt": prompt_of(seed + i, 32), "n_predict": tokens}
        if lora_of:
            body["lora"] = lora_of(i)
        gate.wait()
        results[i] = server.complete(**body)

    threads = [threading.Thread(target=one, args=(i,)) for i in range(streams)]
    for thread in threads:
        thread.start()
    gate.wait()
    begin = time.monotonic()
    for thread in threads:
        thread.join()
    seconds = time.monotonic() - begin
    total = sum(r["tokens_predicted"] for r in results)
    decode = sum(r["timings"]["predicted_per_second"] for r in results)
    prompt = statistics.median(r["tokens_evaluated"] for r in results)
    return total, seconds, decode, int(prompt)


def rate(tokens, seconds, *_):
    return tokens / seconds


def first_token(server, seed):
    """Milliseconds to the first token of a 500-token prompt, then of another
    one that begins with it."""
    shared = prompt_of(seed, 500)
    times = []
    for end in (" The end", " Go on"):
        begin = time.monotonic()
        server.complete(prompt=shared + end, n_predict=1, cache_prompt=True)
        times.append(1000 * (time.monotonic() - begin))
    return times


def shapes_of(model):
    config = json.loads((model / "config.json").read_text())
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    heads = config["num_attention_heads"]
    head = config.get("head_dim") or hidden // heads
    kv = config["num_key_value_heads"] * head
    return config["num_hidden_layers"], {
        "self_attn.q_proj": (heads * head, hidden),
        "self_attn.k_proj": (kv, hidden), "self_attn.v_proj": (kv, hidden),
        "self_attn.o_proj": (hidden, heads * head),
        "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner)}


def write_adapters(model, folder):
    """Random adapters on all linears, for both servers."""
    import numpy as np
    layers, shapes = shapes_of(model)
    try:
        import gguf
    except ImportError:
        gguf = None
    ours, theirs = [], []
    for number in range(ADAPTERS):
        random = np.random.default_rng(number)
        tensors = {}
        for layer in range(layers):
            for name, (out, into) in shapes.items():
                a = random.standard_normal((RANK, into), np.float32) * 0.01
                b = random.standard_normal((out, RANK), np.float32) * 0.01
                tensors[layer, name] = (a, b)
        path = folder / f"adapter{number}"
        path.mkdir()
        (path / "adapter_config.json").write_text(json.dumps(
            {"fine_tune_type": "lora",
             "lora_parameters": {"rank": RANK, "scale": 1.0}}))
        flat = {}
        for (layer, name), (a, b) in tensors.items():
            stem = f"model.layers.{layer}.{name}"
            flat[stem + ".lora_a"] = np.ascontiguousarray(a.T)
            flat[stem + ".lora_b"] = np.ascontiguousarray(b.T)
        write_safetensors(path / "adapters.safetensors", flat)
        ours.append(path)
        if gguf is not None:
            file = folder / f"adapter{number}.gguf"
            writer = gguf.GGUFWriter(str(file), "llama")
            writer.add_type("adapter")
            writer.add_string("adapter.type", "lora")
            writer.add_float32("adapter.lora.alpha", float(RANK))
            for (layer, name), (a, b) in tensors.items():
                stem = f"blk.{layer}.{PROJECTIONS[name]}.weight"
                writer.add_tensor(stem + ".lora_a", a)
                writer.add_tensor(stem + ".lora_b", b)
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
            writer.close()
            theirs.append(file)
    return ours, theirs


def write_safetensors(path, tensors):
    header, offset = {}, 0
    for name, tensor in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(tensor.shape),
                        "data_offsets": [offset, offset + tensor.nbytes]}
        offset += tensor.nbytes
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            file.write(tensor.tobytes())


def one_adapter(_):
    return [{"id": 0, "scale": 1.0}]


def in_turn(i):
    return [{"id": i % ADAPTERS, "scale": 1.0}]


def off(_):
    return [{"id": i, "scale": 0.0} for i in range(ADAPTERS)]


def ratios_of(figures, name):
    """Of each round: ours to theirs, above 1 where ours is better."""
    out = {}
    for key, theirs in figures[name].items():
        ours = figures["mlxcel"].get(key, [])
        lower = key.endswith(("ms", "%"))
        out[key] = [(b / a if lower else a / b) for a, b in zip(ours, theirs)]
    return out


def measure(name, plain, adapted, options, log, figures, seed):
    def note(key, value):
        figures.setdefault(name, {}).setdefault(key, []).append(value)

    with Server(plain, log) as server:
        load(server, options.streams, 8, None, seed + 900)  # warm
        total, seconds, decode, prompt = load(
            server, options.streams, options.tokens, None, seed)
        note("no adapter, tokens/s", total / seconds)
        note("no adapter, decoding alone", decode)
        if name == "mlxcel":
            # What longer answers take more is steps of all streams and nothing
            # else, which the bare engine can be held against.
            more, longer, *_ = load(server, options.streams,
                                    2 * options.tokens, None, seed + 300)
            note("longer answers' second half",
                 (more - total) / (longer - seconds))
            bare = bare_engine(options, prompt + options.tokens)
            note("bare engine at their length", bare)
            note("served to bare engine, %", 100 * figures[name][
                "longer answers' second half"][-1] / bare)
        first, second = first_token(server, seed + 500)
        note("first token, new prompt, ms", first)
        note("first token, shared beginning, ms", second)
        note("first token, shared to new, %", 100 * second / first)
    if adapted:
        with Server(adapted, log) as server:
            load(server, options.streams, 8, in_turn, seed + 900)
            note("one adapter, tokens/s",
                 rate(*load(server, options.streams, options.tokens,
                            one_adapter, seed + 100)))
            note("eight adapters, tokens/s",
                 rate(*load(server, options.streams, options.tokens, in_turn,
                            seed + 200)))


def bare_engine(options, depth):
    """Tokens a second after so many of context, without a server."""
    out = subprocess.run(
        [PROGRAMS / "mlxcel", "bench", "--model", options.model,
         "--prompt-tokens", "32", "--depth", str(depth),
         "--gen-tokens", str(options.tokens),
         "--batch", str(options.streams), "--repeat", "1", "--json"],
        check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return json.loads(out.stdout)["decode_tokens_per_second"]


def one_round(options, turn, ours, theirs, log, figures):
    seed = 1000 * turn + 1
    base = [PROGRAMS / "mlxcel-server", "--model", options.model,
            "--parallel", options.streams, "--log-disable"]
    adapted = base + ["--lora-init-without-apply", "--lora",
                      ",".join(map(str, ours))] if ours else None
    turns = [("mlxcel", base, adapted)]
    for file in options.gguf:
        peer = [options.llama_server, "-m", file, "-np", options.streams,
                "-c", 2048 * options.streams]
        with_adapters = peer + ["--lora-init-without-apply"]
        for adapter in theirs:
            with_adapters += ["--lora", adapter]
        turns.append((f"llama-server {file.name}", peer,
                      with_adapters if theirs else None))
    for name, plain, adapted in turns if turn % 2 == 0 else turns[::-1]:
        measure(name, plain, adapted, options, log, figures, seed)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--llama-server", type=Path)
    parser.add_argument("--gguf", type=Path, action="append", default=[])
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-adapters", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.peers:
        peers = Peers()
        options.llama_server = options.llama_server or (
            peers.llama("native") / "llama-server")
        options.gguf = options.gguf or [peers.gguf_q4_1(), peers.gguf_q4_0()]
        sys.path.insert(0, str(peers.gguf_python()))
    if options.gguf and not options.llama_server:
        parser.error("--gguf needs --llama-server, or --peers")
    figures = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        ours, theirs = ([], []) if options.no_adapters else write_adapters(
            options.model, folder)
        if options.gguf and ours and not theirs:
            parser.error("adapters for llama-server need its Python package "
                         "gguf (with numpy and pyyaml): install it, or give "
                         "--no-adapters")
        with open(folder / "log", "wb") as log:
            for turn in range(options.rounds):
                one_round(options, turn, ours, theirs, log, figures)
                print(f"round {turn + 1} of {options.rounds} done",
                      file=sys.stderr)
    medians = {name: {key: statistics.median(values)
                      for key, values in table.items()}
               for name, table in figures.items()}
    ratios = {name: ratios_of(figures, name)
              for name in figures if name != "mlxcel"}
    if options.json:
        print(json.dumps({"medians": medians, "rounds": figures,
                          "ratios": ratios}, indent=1))
        return
    for name, table in medians.items():
        print(name)
        for key, value in table.items():
            print(f"  {key:<36} {value:9.1f}")
    for name, table in ratios.items():
        print(f"mlxcel to {name}: median, and of each round")
        for key, values in table.items():
            each = " ".join(f"{value:.2f}" for value in values)
            print(f"  {key:<36} {statistics.median(values):5.2f}   {each}")


if __name__ == "__main__":
    main()

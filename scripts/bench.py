#!/usr/bin/env python3
"""Compares mlxcel with other engines on the same weights and machine.

The engines run in alternation, each in a process of its own; the table shows
medians over the rounds and mlxcel's ratio to each. Results go to
bench/results/<date>-<processor>.json and bench/results/chart.svg.
"""

import argparse
import datetime
import json
import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from benchmark import chart  # noqa: E402
from benchmark.peers import ROOT, Peers, say  # noqa: E402

MLXCEL = ROOT / "build" / "release" / "bin" / "mlxcel"
SCRIPTS = Path(__file__).resolve().parent / "benchmark"


def output_of(*command, **environment):
    return subprocess.run([str(part) for part in command], check=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True, env={**os.environ, **environment}).stdout


class Mlxcel:
    ours = True

    def __init__(self, options, name="mlxcel", flags=(), isa=""):
        self.options, self.name, self.flags, self.isa = (
            options, name, flags, isa)
        self.last = {}

    def run(self):
        environment = {"MLXCEL_CPU_ISA": self.isa} if self.isa else {}
        self.last = json.loads(output_of(
            MLXCEL, "bench", "--model", self.options.model,
            "--prompt-tokens", self.options.prompt_tokens,
            "--gen-tokens", self.options.gen_tokens, "--repeat", 1,
            "--threads", self.options.threads, "--json", *self.flags,
            **environment))
        return {"prefill": self.last["prefill_tokens_per_second"],
                "decode": self.last["decode_tokens_per_second"]}


class LlamaCpp:
    ours = False

    def __init__(self, options, name, programs, model):
        self.options, self.name = options, name
        self.program, self.model = programs / "llama-bench", model

    def run(self):
        rows = json.loads(output_of(
            self.program, "-m", self.model, "-p", self.options.prompt_tokens,
            "-n", self.options.gen_tokens, "-r", 1,
            "-t", self.options.threads, "-o", "json"))
        return {"prefill" if row["n_gen"] == 0 else "decode": row["avg_ts"]
                for row in rows}


class PythonPeer:
    ours = False

    def __init__(self, name, *command):
        self.name, self.command = name, command

    def run(self):
        return json.loads(output_of(*self.command).splitlines()[-1])


def engines(options, peers):
    """All engines of the comparison, ours first."""
    wanted = set(options.engines.split(","))
    found = [Mlxcel(options)]
    if options.int8:
        found.append(Mlxcel(options, "mlxcel --prefill-int8",
                            ["--prefill-int8"]))
    if "llama.cpp" in wanted:
        programs = peers.llama("native")
        found += [LlamaCpp(options, "llama.cpp Q4_0", programs,
                           peers.gguf_q4_0()),
                  LlamaCpp(options, "llama.cpp Q4_1", programs,
                           peers.gguf_q4_1())]
    if "openvino" in wanted:
        found.append(PythonPeer(
            "OpenVINO GenAI", peers.python(), SCRIPTS / "openvino_peer.py",
            peers.gguf_q4_1(), options.prompt_tokens, options.gen_tokens,
            options.threads))
    if "mlx-lm" in wanted:
        found.append(PythonPeer("mlx-lm (float32)", peers.python(),
                                SCRIPTS / "mlx_lm_peer.py", options.model, 8))
    if "avx2" in wanted:
        programs = peers.llama("avx2")
        found += [Mlxcel(options, "mlxcel, AVX2", isa="avx2"),
                  LlamaCpp(options, "llama.cpp Q4_0, AVX2", programs,
                           peers.gguf_q4_0()),
                  LlamaCpp(options, "llama.cpp Q4_1, AVX2", programs,
                           peers.gguf_q4_1())]
    return found


def time_to_first_token(options):
    """Seconds from process start to the end of a one-token run."""
    prompt = "one two three four five six seven eight nine ten eleven twelve"
    times = []
    for _ in range(5):
        start = time.perf_counter()
        output_of(MLXCEL, "generate", "--model", options.model, "--prompt",
                  prompt, "--no-chat-template", "--max-tokens", 1,
                  "--threads", options.threads)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def shape_of(options):
    """A random checkpoint of a larger shape: its share of the bandwidth."""
    return json.loads(output_of(
        MLXCEL, "bench", "--shape", options.shape, "--bits", 4,
        "--prompt-tokens", options.prompt_tokens, "--gen-tokens", 32,
        "--repeat", 3, "--threads", options.threads, "--json"))


def processor():
    text = Path("/proc/cpuinfo").read_text()
    match = re.search(r"model name\s*: (.*)", text)
    return match.group(1).strip() if match else os.uname().machine


def median(runs, name, part):
    values = [run[part] for run in runs[name] if part in run]
    return statistics.median(values) if values else None


def base_of(name, all_engines):
    """The engine of ours that a row is measured against."""
    ours = [engine.name for engine in all_engines if engine.ours]
    avx2 = [other for other in ours if "AVX2" in other]
    return avx2[0] if "AVX2" in name and avx2 else ours[0]


def table(all_engines, runs):
    int8 = next((engine.name for engine in all_engines
                 if "int8" in engine.name), None)
    head = ["engine", "decode t/s", "mlxcel is", "prefill t/s", "mlxcel is"]
    head += ["with int8"] if int8 else []
    lines = ["| " + " | ".join(head) + " |",
             "|---|" + "---:|" * (len(head) - 1)]

    def ratio(ours, theirs):
        return f"{ours / theirs:.2f}x" if ours and theirs else ""
    for engine in all_engines:
        cells = [engine.name]
        base = base_of(engine.name, all_engines)
        for part in ("decode", "prefill"):
            value = median(runs, engine.name, part)
            cells.append(f"{value:.4g}" if value else "")
            cells.append("" if engine.ours else
                         ratio(median(runs, base, part), value))
        if int8:
            cells.append("" if engine.ours or "AVX2" in engine.name else ratio(
                median(runs, int8, "prefill"),
                median(runs, engine.name, "prefill")))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def write_results(options, all_engines, runs, machine, first_token, shape):
    folder = ROOT / "bench" / "results"
    folder.mkdir(parents=True, exist_ok=True)
    date = datetime.date.today().isoformat()
    slug = re.sub(r"[^a-z0-9]+", "-", machine["processor"].lower()).strip("-")
    medians = {engine.name: {
        part: value for part in ("decode", "prefill")
        if (value := median(runs, engine.name, part)) is not None}
        for engine in all_engines}
    path = folder / f"{date}-{slug}.json"
    path.write_text(json.dumps({
        "date": date, "machine": machine,
        "model": options.model.name, "threads": options.threads,
        "prompt_tokens": options.prompt_tokens,
        "gen_tokens": options.gen_tokens, "rounds": options.rounds,
        "start_to_first_token_seconds": first_token,
        "medians_tokens_per_second": medians, "runs": runs,
        "mlxcel": all_engines[0].last, "random_checkpoint": shape},
        indent=1) + "\n")

    def rows(part):
        return sorted(((name, values[part], name.startswith("mlxcel"))
                       for name, values in medians.items() if part in values),
                      key=lambda row: -row[1])
    caption = (f"{options.model.name}, {machine['processor']}, "
               f"{options.threads} threads, medians of {options.rounds} "
               f"alternating rounds, {date}")
    (folder / "chart.svg").write_text(chart.draw(
        [("Decode, tokens/s", rows("decode")),
         (f"Prefill of {options.prompt_tokens}, tokens/s", rows("prefill"))],
        caption))
    return path


def arguments():
    parser = argparse.ArgumentParser(
        prog="./dev bench", description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True,
                        help="the default model's folder")
    parser.add_argument("--engines", default="llama.cpp,openvino,mlx-lm,avx2",
                        help="which to compare with (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int,
                        default=len(os.sched_getaffinity(0)))
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--gen-tokens", type=int, default=128)
    parser.add_argument("--shape", default="1b",
                        help="also measure mlxcel on a random 4-bit checkpoint "
                        "of this shape; empty: not (%(default)s)")
    parser.add_argument("--no-int8", dest="int8", action="store_false",
                        help="leave out mlxcel --prefill-int8")
    parser.add_argument("--no-save", dest="save", action="store_false",
                        help="print only, write nothing to bench/results")
    return parser.parse_args()


def main():
    options = arguments()
    all_engines = engines(options, Peers())
    runs = {engine.name: [] for engine in all_engines}
    for number in range(options.rounds):
        say(f"round {number + 1} of {options.rounds}")
        for engine in all_engines:
            try:
                runs[engine.name].append(engine.run())
            except subprocess.CalledProcessError as error:
                sys.exit(f"{engine.name} failed:\n{error.stderr[-2000:]}")
    first_token = time_to_first_token(options)
    shape = shape_of(options) if options.shape else None

    last = all_engines[0].last
    machine = {"processor": processor(), "threads": options.threads,
               "read_bandwidth_gb_per_second":
                   last.get("read_bandwidth_gb_per_second"),
               "compute_peak_gflop_per_second":
                   last.get("compute_peak_gflop_per_second"),
               "compute_peak_kind": last.get("compute_peak_kind")}
    print(table(all_engines, runs))
    print()
    for name, value in machine.items():
        if value is not None:
            print(f"{name.replace('_', ' ')}: {value}")
    print(f"process start to first token: {first_token:.3f} s")
    print(f"peak memory: {last['peak_memory_bytes'] / 1e6:.0f} MB, weights "
          f"{last['weights_bytes'] / 1e6:.0f} MB")
    print(f"prefill at {last['compute_peak_share']:.0%} of the compute peak, "
          f"decode at {last['read_bandwidth_share']:.0%} of the bandwidth")
    if shape:
        print(f"random {options.shape} checkpoint, 4 bits: decode "
              f"{shape['decode_tokens_per_second']:.4g} t/s, "
              f"{shape['read_bandwidth_share']:.0%} of the bandwidth; prefill "
              f"{shape['prefill_tokens_per_second']:.4g} t/s, "
              f"{shape['compute_peak_share']:.0%} of the compute peak")
    if options.save:
        path = write_results(options, all_engines, runs, machine, first_token,
                             shape)
        print(f"written: {path.relative_to(ROOT)}, bench/results/chart.svg")


if __name__ == "__main__":
    main()

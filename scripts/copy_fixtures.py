#!/usr/bin/env python3
"""Copies the part of the reference fixtures that the repository carries.

    scripts/copy_fixtures.py FULL_SET [TARGET]

The full set is large; this part (under 12 MB) keeps at least one case of each
packed format, each surgery operation and each kind of refusal, and the smallest
cases of as many families as fit; text/not_carried.json lists the others. The
rules below are the record of the choice. Indexes are filtered to the cases that
were copied.
"""

import json
import re
import shutil
import sys
from pathlib import Path

LIMIT = 12_000_000

# Cases that tests name, or that show what no smaller case of theirs does.
TEXT_ALWAYS = ["llama_base", "llama_bf16", "qwen2_tied", "qwen2_moe_mlx",
               "gemma2_window", "mistral_window", "phi3_longrope_long"]

QUANT = [
    "affine_4b_g32", "affine_4b_g64", "affine_4b_g128", "affine_4b_g32_f16",
    "affine_4b_g64_bf16", "affine_4b_g64_tied", "affine_4b_g64_qwen2_bias",
    "affine_8b_g128", "config_bits_wrong",
    "config_group_size_wrong", "config_without_quantization",
    "mixed_override_group_size", "affine_4b_g64_moe",
    "mixed_moe_gate8_no_override",
]
# Stacks of one bit: not read, but neither is anything else of one bit.
KINDS_LEFT_OUT = ["one_bit_moe"]
BAD_LEFT_OUT = ["prune_channel_q_down_aligned"]  # its sibling tells the same

LORA_BASES = ["llama_untied_f32", "llama_tied_q", "llama_untied_q",
              "qwen3_noflag_tied_q", "mistral_tied_f32", "llama_square_f32"]
LORA_CASE_BYTES = 50_000
LORA_ADAPTER_BYTES = 27_000

SURGERY_BASES = ["float", "q", "mxfp4"]
SURGERY_CASE_BYTES = 16_000
SURGERY_BAD_BYTES = 8_000


def size(path):
    return sum(f.stat().st_size for f in path.rglob("*") if f.is_file())


def copy(source, target, name):
    if (source / name).is_dir():
        shutil.copytree(source / name, target / name, dirs_exist_ok=True)
    else:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source / name, target / name)


def smallest_of_each_kind(bad, folder):
    best = {}
    for entry in bad:
        if entry["kind"] in KINDS_LEFT_OUT:
            continue
        other = best.get(entry["kind"])
        if other is None or size(folder / entry["name"]) < size(
                folder / other["name"]):
            best[entry["kind"]] = entry
    return list(best.values())


def with_all_kinds(kept, bad, folder):
    """Adds the smallest refusal of each kind that `kept` does not have."""
    have = {entry["kind"] for entry in kept}
    return kept + [entry for entry in smallest_of_each_kind(bad, folder)
                   if entry["kind"] not in have]


def in_order(entries, all_entries):
    names = {entry["name"] for entry in entries}
    return [entry for entry in all_entries if entry["name"] in names]


def write_index(target, index, cases, bad):
    index = dict(index, cases=in_order(cases, index["cases"]),
                 bad=in_order(bad, index["bad"]))
    (target / "index.json").write_text(json.dumps(index, indent=1) + "\n")


def copy_text(source, target, room):
    """The cases above, then the smallest case of each family, the small ones
    first, while there is room. The families that are left out are listed, so
    that a test can tell them from forgotten ones."""
    best = {}
    for meta in source.glob("*/meta.json"):
        family = json.loads(meta.read_text())["family"]
        case = meta.parent
        if case.name in TEXT_ALWAYS:
            copy(source, target, case.name)
            best[family] = (0, case.name)
        elif family not in best or (size(case), case.name) < best[family]:
            best[family] = (size(case), case.name)
    left_out = []
    for family, (bytes_, case) in sorted(best.items(), key=lambda e: e[1]):
        if bytes_ and size(target) + bytes_ > room:
            left_out.append(family)
        elif bytes_:
            copy(source, target, case)
    for config in (source.parent / "tasks").glob("*/model/config.json"):
        left_out.append(json.loads(config.read_text()).get("model_type", ""))
    left_out = [name for name in set(left_out) if name]
    (target / "not_carried.json").write_text(
        json.dumps(sorted(left_out), indent=1) + "\n")


def copy_quant(source, target):
    index = json.loads((source / "index.json").read_text())
    cases = [case for case in index["cases"] if case["name"] in QUANT]
    assert len(cases) == len(QUANT), set(QUANT) - {c["name"] for c in cases}
    bad = smallest_of_each_kind(index["bad"], source / "bad")
    for case in cases:
        copy(source, target, case["name"])
    for entry in bad:
        copy(source, target, f"bad/{entry['name']}")
    write_index(target, index, cases, bad)


def copy_lora(source, target):
    index = json.loads((source / "index.json").read_text())
    bases = [f"bases/{name}" for name in LORA_BASES]
    cases = [case for case in index["cases"]
             if case["base"] in bases
             and size(source / "cases" / case["name"]) <= LORA_CASE_BYTES
             and all(size(source / adapter["path"]) <= LORA_ADAPTER_BYTES
                     for adapter in case["adapters"])]
    bad = [entry for entry in index["bad"] if entry["base"] in bases]
    bad = with_all_kinds(bad, index["bad"], source / "bad")
    for case in cases:
        copy(source, target, f"cases/{case['name']}")
        for adapter in case["adapters"]:
            copy(source, target, adapter["path"])
    for entry in bad:
        copy(source, target, f"bad/{entry['name']}")
    for base in sorted({entry["base"] for entry in cases + bad}):
        copy(source, target, base)
    write_index(target, index, cases, bad)


def copy_surgery(source, target):
    index = json.loads((source / "index.json").read_text())
    bases = [f"bases/{name}" for name in SURGERY_BASES]
    cases = [case for case in index["cases"]
             if case["base"] in bases
             and size(source / "cases" / case["name"]) <= SURGERY_CASE_BYTES]
    bad = [entry for entry in index["bad"]
           if entry["base"] in bases and entry["name"] not in BAD_LEFT_OUT
           and size(source / "bad" / entry["name"]) <= SURGERY_BAD_BYTES]
    bad = with_all_kinds(bad, index["bad"], source / "bad")
    for case in cases:
        copy(source, target, f"cases/{case['name']}")
    for entry in bad:
        copy(source, target, f"bad/{entry['name']}")
    for base in sorted({entry["base"] for entry in cases + bad}):
        copy(source, target, base)
    copy(source, target, "donors")
    write_index(target, index, cases, bad)

    def operations(root):
        word = re.compile(r"(?:op|method|granularity):\s*\w+")
        return {match for path in (root / "cases").glob("*/surgery.yaml")
                for match in word.findall(path.read_text(errors="replace"))}
    missing = operations(source) - operations(target)
    assert not missing, f"operations without a case: {missing}"


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    source = Path(sys.argv[1])
    target = Path(sys.argv[2] if len(sys.argv) == 3 else
                  Path(__file__).parent.parent / "tests" / "fixtures")
    for name in ["text", "quant", "lora", "surgery", "tokenizer", "real"]:
        # Cases with a reference of our own are not in the full set and stay.
        for entry in (source / name).glob("*"):
            old = target / name / entry.name
            shutil.rmtree(old) if old.is_dir() else old.unlink(missing_ok=True)
    for name, copy_set in [("quant", copy_quant), ("lora", copy_lora),
                           ("surgery", copy_surgery)]:
        (target / name).mkdir(parents=True, exist_ok=True)
        copy_set(source / name, target / name)
        print(f"{name}: {size(target / name) / 1e6:.1f} MB")
    shutil.copytree(source / "tokenizer", target / "tokenizer",
                    ignore=shutil.ignore_patterns("README.md"),
                    dirs_exist_ok=True)
    (target / "real").mkdir(exist_ok=True)
    for name in ["smollm2.json", "adapters_expected.json"]:
        copy(source / "real", target / "real", name)
    text = target / "text"
    text.mkdir(parents=True, exist_ok=True)
    copy_text(source / "text", text, LIMIT - size(target) + size(text))
    print(f"text: {size(text) / 1e6:.1f} MB")
    total = size(target)
    print(f"all: {total / 1e6:.1f} MB of {LIMIT / 1e6:.0f}")
    if total > LIMIT:
        sys.exit("the copied part is over its limit")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Checks that a folder of src/ includes only folders above it.

Also that MLX is seen by the graph backend alone, and that a backend's own
headers stay inside it: models and everything after them use ops/ops.h.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src"

# Folders on one line may not include each other.
LAYERS = [
    ["core"],
    ["io"],
    ["text"],
    ["ops"],
    ["ops/cpu", "ops/graph"],
    ["models"],
    ["adapters"],
    ["surgery"],
    ["loading"],
    ["gguf"],
    ["engine"],
    ["http"],
    ["server"],
    ["cli"],
]
LEVEL = {name: level for level, row in enumerate(LAYERS) for name in row}
BACKENDS = {"ops/cpu", "ops/graph"}
# The command line measures the machine with the kernels themselves.
MAY_SEE_BACKENDS = {"cli"}

INCLUDE = re.compile(r'^\s*#\s*include\s+(["<])([^">]+)[">]')


def layer_of(relative):
    """The layer that owns a path below src/, "" for src/main.cpp."""
    folder = relative.parent.as_posix()
    while folder not in (".", ""):
        if folder in LEVEL:
            return folder
        folder = Path(folder).parent.as_posix()
    return "" if relative.parent == Path(".") else None


def check_file(path):
    relative = path.relative_to(SRC)
    own = layer_of(relative)
    if own is None:
        yield f"src/{relative}: its folder is no layer (see LAYERS in {__file__})"
        return
    if own == "":  # the program's entry sees everything
        return
    for number, line in enumerate(path.read_text().splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        quote, name = match.groups()
        where = f"src/{relative}:{number}"
        if name.startswith("mlx/") and own != "ops/graph":
            yield f"{where}: {name}: only src/ops/graph includes MLX"
        if quote != '"' or "/" not in name or name.startswith("mlx/"):
            continue
        other = layer_of(Path(name))
        if other is None:
            if (SRC / name).exists():
                yield f"{where}: {name}: its folder is no layer"
            continue
        if other == own:
            continue
        if LEVEL[other] >= LEVEL[own]:
            yield f"{where}: {own} may not include {name}"
        elif other in BACKENDS and own not in MAY_SEE_BACKENDS:
            yield f"{where}: {name} is private to its backend"


def main():
    faults = [fault for path in sorted(SRC.rglob("*"))
              if path.suffix in (".h", ".cpp") for fault in check_file(path)]
    for fault in faults:
        print(fault, file=sys.stderr)
    if faults:
        sys.exit(f"{len(faults)} includes against the order of the layers")


if __name__ == "__main__":
    main()

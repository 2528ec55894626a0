#!/usr/bin/env python3
"""Fails when a source file is over 600 lines, or a model family's over 120: what
is more belongs into the parts that families share."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 600
FAMILIES, FAMILY_LIMIT = "src/models/families/", 120
PATTERNS = ["*.cpp", "*.h", "*.rs", "*.py", "*.sh", "*.cmake", "dev"]


def main():
    names = subprocess.run(
        ["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others",
         "--exclude-standard", "--", *PATTERNS],
        check=True, capture_output=True, text=True).stdout.split("\0")
    long_files = []
    for name in filter(None, names):
        path = ROOT / name
        limit = FAMILY_LIMIT if name.startswith(FAMILIES) else LIMIT
        if path.is_file() and (lines := path.read_bytes().count(b"\n")) > limit:
            long_files.append(f"{name}: {lines} lines, the limit is {limit}")
    if long_files:
        sys.exit("\n".join(long_files))


if __name__ == "__main__":
    main()

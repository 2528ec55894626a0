#!/usr/bin/env python3
"""Gathers the licences of everything that an installed mlxcel carries.

    scripts/collect_licences.py --output FILE [--wheels SITE_PACKAGES]
                                [--cargo CARGO]

Three sources: the MLX wheels, the Rust crates linked into the program (their
folders in cargo's registry) and the C++ libraries of the distribution.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Headers compiled in or libraries copied beside the program.
DEBIAN_LIBRARIES = ["libfmt-dev", "nlohmann-json3-dev", "libcli11-dev",
                    "libssl-dev", "libboost1.81-dev"]
LICENCE_NAMES = ("LICENSE", "LICENCE", "COPYING", "NOTICE", "UNLICENSE")


def licence_files(folder):
    return sorted(path for path in folder.iterdir() if path.is_file()
                  and path.name.upper().startswith(LICENCE_NAMES))


def wheel_entries(site_packages):
    for info in sorted(site_packages.glob("mlx*.dist-info")):
        name = info.name.removesuffix(".dist-info").replace("-", " ")
        folder = info / "licenses"
        files = licence_files(folder) if folder.is_dir() else []
        yield name, "MIT", [path.read_text() for path in files]
    libraries = sorted(site_packages.glob("mlx_*.libs/lib*"))
    names = {path.name.split("-")[0] for path in libraries}
    if {"libblas", "liblapack"} & names:
        yield "Reference BLAS and LAPACK", "BSD-3-Clause", [
            "Copyright (c) 1992-2023 The University of Tennessee and The "
            "University of Tennessee Research Foundation, The University of "
            "California Berkeley, The University of Colorado Denver. All "
            "rights reserved. Distributed under the modified BSD licence; the "
            "text is at https://www.netlib.org/lapack/LICENSE.txt."]
    if {"libgfortran", "libquadmath"} & names:
        yield ("GNU Fortran run-time libraries",
               "GPL-3.0-or-later WITH GCC-exception-3.1 (libgfortran), "
               "LGPL-2.1-or-later (libquadmath)",
               ["Unmodified shared libraries, which may be replaced. Sources: "
                "https://gcc.gnu.org/."])


def crate_entries(cargo):
    manifest = ROOT / "textkit" / "Cargo.toml"
    metadata = json.loads(subprocess.run(
        [cargo, "metadata", "--format-version", "1", "--locked", "--offline",
         "--filter-platform", host_of(cargo), "--manifest-path", manifest],
        check=True, capture_output=True, text=True).stdout)
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    # What is linked: normal dependencies only, from the library itself.
    reached, queue = set(), [metadata["resolve"]["root"]]
    while queue:
        current = queue.pop()
        if current in reached:
            continue
        reached.add(current)
        for dependency in nodes[current]["deps"]:
            if any(kind["kind"] is None for kind in dependency["dep_kinds"]):
                queue.append(dependency["pkg"])
    for identity in sorted(reached, key=lambda key: packages[key]["name"]):
        package = packages[identity]
        if package["source"] is None:  # ours
            continue
        files = licence_files(Path(package["manifest_path"]).parent)
        yield (f"{package['name']} {package['version']} (Rust)",
               package["license"] or "see below",
               [path.read_text(errors="replace") for path in files])


def host_of(cargo):
    text = subprocess.run([cargo, "-vV"], check=True, capture_output=True,
                          text=True).stdout
    return next(line.split(": ")[1] for line in text.splitlines()
                if line.startswith("host: "))


def debian_entries():
    for package in DEBIAN_LIBRARIES:
        path = Path("/usr/share/doc") / package / "copyright"
        if path.is_file():
            yield package, "see below", [path.read_text(errors="replace")]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--wheels", default="")
    parser.add_argument("--cargo", default="")
    options = parser.parse_args()

    entries = []
    if options.wheels:
        entries += wheel_entries(Path(options.wheels))
    if options.cargo and (ROOT / "textkit" / "Cargo.toml").is_file():
        entries += crate_entries(options.cargo)
    entries += debian_entries()
    if not entries:
        sys.exit("no licences found: nothing to write")

    # Many crates share one text: print each once, where it first occurs.
    seen = {}
    lines = ["What mlxcel carries, with its licences.", ""]
    for name, licence, texts in entries:
        lines += ["=" * 78, f"{name}: {licence}", ""]
        for text in texts:
            key = " ".join(text.split())
            if key in seen:
                lines += [f"The same text as under {seen[key]}.", ""]
            else:
                seen[key] = name
                lines += [text.rstrip(), ""]
    options.output.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()

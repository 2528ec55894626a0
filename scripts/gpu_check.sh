#!/usr/bin/env bash
# Checks the graph backend on a GPU machine that has no network but has the
# NVIDIA libraries as Python packages (nvidia/*/lib in python3's site-packages).
#
#   scripts/gpu_check.sh pack OUT_FOLDER   here: what is built in build/release,
#                                          the carried fixtures, those in
#                                          MLXCEL_FIXTURES if it is set, and
#                                          MLX's CUDA 13 wheel
#   OUT_FOLDER/gpu_check.sh keep           there: stores the wheel parts that
#                                          have arrived, for a later step
#   OUT_FOLDER/gpu_check.sh run [ARGS...]  there: the graph backend's tests
#   OUT_FOLDER/gpu_check.sh exec CMD...    there: a command with the libraries
#                                          and programs of the bundle
#
# The wheel is split (PART_MB, 40 by default) so that it can travel in several
# steps. On the GPU machine everything unpacks into MLXCEL_GPU_SITE.
set -euo pipefail

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
version=0.32.4
site=${MLXCEL_GPU_SITE:-${TMPDIR:-/tmp}/mlxcel-gpu}

pack() {
  local root out
  root=$(cd -- "$here/.." && pwd)
  mkdir -p "$1/wheel"
  out=$(cd -- "$1" && pwd)
  local cache=$root/.cache/wheels
  mkdir -p "$cache"
  local wheel
  wheel=$(find "$cache" -name "mlx_cuda_13-$version-*.whl" | head -n 1)
  if [[ -z $wheel ]]; then
    python3 -m pip download --quiet --no-deps --only-binary=:all: \
      --python-version 3.12 --implementation cp \
      --platform manylinux_2_35_x86_64 -d "$cache" "mlx-cuda-13==$version"
    wheel=$(find "$cache" -name "mlx_cuda_13-$version-*.whl" | head -n 1)
  fi
  rm -f "$out"/wheel/part-*
  split -b "${PART_MB:-40}M" -d -a 2 "$wheel" "$out/wheel/part-"
  sha256sum "$wheel" | cut -d ' ' -f 1 >"$out/wheel.sha256"

  local stage program
  stage=$(mktemp -d)
  mkdir -p "$stage/bin" "$stage/lib/mlxcel" "$stage/fixtures"
  for program in mlxcel ops_tests models_tests loading_tests; do
    if [[ -e $root/build/release/bin/$program ]]; then
      strip -o "$stage/bin/$program" "$root/build/release/bin/$program"
    fi
  done
  cp "$root/build/release/lib/libmlxcel_graph.so" "$stage/lib/mlxcel/"
  # Libraries that a bare machine may lack.
  ldd "$stage"/bin/* | awk '/lib(fmt|crypto)\.so/ {print $3}' | sort -u |
    xargs -r cp -Lt "$stage/lib"
  # Some cases are in the repository alone; the named set adds to them.
  cp -r "$root/tests/fixtures/." "$stage/fixtures/"
  local set
  if [[ -n ${MLXCEL_FIXTURES:-} ]]; then
    for set in text quant lora surgery tasks; do
      cp -r "$MLXCEL_FIXTURES/$set" "$stage/fixtures/"
    done
  fi
  cp -r "$root/tests/data" "$stage/"
  echo "$root" >"$stage/source"
  # The programs hold the same libraries: a long window sees that.
  tar -C "$stage" -c . | xz -T1 --lzma2=preset=6,dict=128MiB \
    >"$out/programs.tar.xz"
  rm -r "$stage"
  cp "${BASH_SOURCE[0]}" "$out/gpu_check.sh"
  ls -l "$out" "$out/wheel"
}

keep() {
  mkdir -p "$site/parts"
  cp "$here"/wheel/part-* "$site/parts/"
}

# Unpacks the wheel beside links to the NVIDIA packages: libmlx looks for them,
# and its run-time compiler for their headers, in ../../nvidia.
prepare() {
  mkdir -p "$site"
  python3 -m tarfile -e "$here/programs.tar.xz" "$site"
  if [[ ! -e $site/ready ]]; then
    keep
    cat "$site"/parts/part-* >"$site/mlx.whl"
    echo "$(cat "$here/wheel.sha256")  $site/mlx.whl" | sha256sum --check --quiet
    python3 - "$site" <<'PYTHON'
import pathlib
import sys
import zipfile

import nvidia

site = pathlib.Path(sys.argv[1])
zipfile.ZipFile(site / "mlx.whl").extractall(site)
# libmlx's compiler looks for headers there before CUDA_HOME, and the packages
# may lack some of them: those of an installed CUDA stand in.
packages = pathlib.Path(list(nvidia.__path__)[0])
toolkit = pathlib.Path("/usr/local/cuda/include")
(site / "nvidia").mkdir(exist_ok=True)
for package in packages.iterdir():
    target = site / "nvidia" / package.name
    if target.is_symlink() or target.exists() or not package.is_dir():
        continue
    if (
        (package / "include/cuda_fp16.h").exists()
        and not (package / "include/crt/mma.h").exists()
        and (toolkit / "crt/mma.h").exists()
    ):
        target.mkdir()
        for part in package.iterdir():
            source = toolkit if part.name == "include" else part
            (target / part.name).symlink_to(source)
    else:
        target.symlink_to(package)
PYTHON
    rm -r "$site/mlx.whl" "$site/parts"
    touch "$site/ready"
  fi
  local libraries=$site/lib:$site/mlx/lib folder
  for folder in "$site"/nvidia/*/lib; do
    libraries+=:$folder
  done
  export LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  if [[ -z ${CUDA_HOME:-} ]]; then
    for folder in "$site/nvidia/cu13" /usr/local/cuda; do
      # The packages may lack the part of the headers that MLX needs.
      if [[ -e $folder/include/crt/mma.h ]]; then
        export CUDA_HOME=$folder
        break
      fi
    done
  fi
  # The tests look for their own data where they were built.
  local source
  source=$(cat "$site/source")
  if [[ ! -e $source/tests ]]; then
    mkdir -p "$source/tests"
    ln -s "$site/data" "$source/tests/data"
    ln -s "$site/fixtures" "$source/tests/fixtures"
  fi
  export MLXCEL_GRAPH_LIBRARY=$site/lib/mlxcel/libmlxcel_graph.so
  export MLXCEL_FIXTURES=$site/fixtures
  export PATH=$site/bin:$PATH
}

run() {
  prepare
  local status=0
  "$site/bin/ops_tests" --gtest_brief=1 --gtest_filter='Graph*:Backends*' "$@" ||
    status=1
  "$site/bin/models_tests" --gtest_brief=1 --gtest_filter='*Graph*' "$@" ||
    status=1
  "$site/bin/loading_tests" --gtest_brief=1 --gtest_filter='*graph*' "$@" ||
    status=1
  return $status
}

case ${1:-} in
  pack)
    pack "${2:?usage: gpu_check.sh pack OUT_FOLDER}"
    ;;
  keep)
    keep
    ;;
  run)
    run "${@:2}"
    ;;
  exec)
    prepare
    exec "${@:2}"
    ;;
  *)
    sed -n '2,18p' "${BASH_SOURCE[0]}" >&2
    exit 2
    ;;
esac

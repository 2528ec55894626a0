#!/usr/bin/env bash
# Makes build/packages: the program as .tar.gz and .deb, the model as .deb.
#   scripts/package.sh MODEL_FOLDER
set -euo pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
model=${1:?usage: package.sh MODEL_FOLDER}
cd "$root/build/release"

cmake . -DMLXCEL_PACKAGED_MODEL="$model" >/dev/null
rm -rf ../packages
# The archive unpacks into one folder and runs from there.
cpack -G TGZ -D CPACK_COMPONENTS_ALL=program \
  -D CPACK_ARCHIVE_COMPONENT_INSTALL=OFF \
  -D CPACK_PACKAGING_INSTALL_PREFIX= >&2
cpack -G DEB -D "CPACK_COMPONENTS_ALL=program;model" >&2
rm -rf ../packages/_CPack_Packages
ls -l ../packages

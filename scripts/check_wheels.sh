#!/usr/bin/env bash
# Each package's wheel builds alone, and its own tests pass in a fresh environment that holds nothing but the wheel,
# what it declares, and its test extra. Sibling requirements come from the wheels built here.
#   scripts/check_wheels.sh [package ...]
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
packages=("$@")
[ ${#packages[@]} -gt 0 ] || packages=(di-kernels di-cache di-scheduler di-model di-spec di-engine)

for package in di-kernels di-cache di-scheduler di-model di-spec di-engine; do
  # From a copy, so that an editable build's directory cannot leak into the wheel.
  mkdir -p "$work/src"
  git -C "$root" archive HEAD "packages/$package" | tar -x -C "$work/src"
  "$python" -m pip -q --disable-pip-version-check wheel --no-deps -w "$work/wheels" "$work/src/packages/$package"
done
ls -1 "$work/wheels"
# Siblings come from here and from nowhere else: their names may be somebody else's on the index.
cp "$root/constraints.txt" "$work/constraints.txt"
for wheel in "$work"/wheels/*.whl; do
  name=$(basename "$wheel"); name=${name%%-*}
  echo "${name//_/-} @ file://$wheel" >>"$work/constraints.txt"
done

for package in "${packages[@]}"; do
  echo "== $package"
  "$python" -m venv "$work/venv"
  "$work/venv/bin/pip" -q --disable-pip-version-check install -c "$work/constraints.txt" \
    "$(ls "$work"/wheels/"${package//-/_}"-*.whl)[test]"
  (cd "$work/src/packages/$package" && "$work/venv/bin/python" -m pytest -q --import-mode=importlib tests)
  rm -rf "$work/venv"
done

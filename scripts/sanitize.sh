#!/usr/bin/env bash
# Build both native modules with the address and undefined-behaviour sanitizers and run the native tests on them.
# The suite's own environment is used; only the native modules are replaced, in copies under build/sanitize.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
python=$root/.venv/bin/python
out=$root/build/sanitize
preload="$(gcc -print-file-name=libasan.so) $(gcc -print-file-name=libstdc++.so)"

# The import hooks of editable installs would find the ordinary modules first; this start-up drops them.
run_pytest='import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "skbc" not in type(finder).__module__]
import pytest
sys.exit(pytest.main(sys.argv[1:]))'

build() { # package, import name
  cmake -S "$root/packages/$1" -B "$out/$1" -G Ninja -DCMAKE_BUILD_TYPE=Release -DDI_SANITIZE=ON \
    -DPython_EXECUTABLE="$python" -Dnanobind_DIR="$("$python" -m nanobind --cmake_dir)" >"$out/$1.log"
  cmake --build "$out/$1" >>"$out/$1.log" || { tail -n 60 "$out/$1.log"; return 1; }
  rm -rf "$out/path/$2" && cp -r "$root/packages/$1/src/$2" "$out/path/"
  cp "$out/$1"/_native*.so "$out/path/$2/"
}

check() { # test files or folders
  PYTHONPATH=$out/path ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 OMP_WAIT_POLICY=passive \
    LD_PRELOAD=$preload "$python" -c "$run_pytest" -q -p no:cacheprovider --rootdir "$root" -c "$root/pyproject.toml" "$@"
}

mkdir -p "$out/path"
export PATH="$root/.venv/bin:$PATH"
build di-scheduler di_scheduler
build di-kernels di_kernels
check "$root/packages/di-scheduler/tests"
check "$root/packages/di-kernels/tests"

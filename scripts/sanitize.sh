#!/usr/bin/env bash
# Build the native modules with sanitizers and run the native tests on them: both with address and undefined behaviour, the
# scheduler's tests of several threads with the thread sanitizer too. The suite's own environment is used; only the
# native modules are replaced, in copies under build/sanitize.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
python=$root/.venv/bin/python
out=$root/build/sanitize
export PATH="$root/.venv/bin:$PATH"

# The import hooks of editable installs would find the ordinary modules first; this start-up drops them.
run_pytest='import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "skbc" not in type(finder).__module__]
import pytest
sys.exit(pytest.main(sys.argv[1:]))'

library() { gcc -print-file-name="$1"; }

build() { # sanitizers, package, import name
  local folder=$out/$1
  mkdir -p "$folder/path"
  cmake -S "$root/packages/$2" -B "$folder/$2" -G Ninja -DCMAKE_BUILD_TYPE=Release -DDI_SANITIZE="$1" \
    -DPython_EXECUTABLE="$python" -Dnanobind_DIR="$("$python" -m nanobind --cmake_dir)" >"$folder/$2.log"
  cmake --build "$folder/$2" >>"$folder/$2.log" || { tail -n 60 "$folder/$2.log"; return 1; }
  rm -rf "$folder/path/$3" && cp -r "$root/packages/$2/src/$3" "$folder/path/"
  cp "$folder/$2"/_native*.so "$folder/path/$3/"
}

check() { # sanitizers, libraries to load first, test files or folders
  local path=$out/$1/path preload=$2
  shift 2
  PYTHONPATH=$path ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
    TSAN_OPTIONS=halt_on_error=1 \
    OMP_WAIT_POLICY=passive LD_PRELOAD=$preload "$python" -c "$run_pytest" -q -s -p no:cacheprovider --rootdir "$root" \
    -c "$root/pyproject.toml" "$@"
}

build address,undefined di-scheduler di_scheduler
build address,undefined di-kernels di_kernels
build thread di-scheduler di_scheduler
check thread "$(library libtsan.so)" "$root/packages/di-scheduler/tests/test_threads.py"
check address,undefined "$(library libasan.so) $(library libstdc++.so)" "$root/packages/di-scheduler/tests" \
  --ignore "$root/packages/di-scheduler/tests/test_mutations.py" # builds modules of its own
check address,undefined "$(library libasan.so) $(library libstdc++.so)" "$root/packages/di-kernels/tests"

#!/usr/bin/env bash
# Rebuild the native module of one package into the development environment: scripts/rebuild.sh di-kernels
# Incremental (about a tenth of a cold build); callers may run it at the same time, one build goes at once.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
package=${1:?usage: scripts/rebuild.sh di-kernels|di-scheduler}
mkdir -p "$root/build"
exec flock "$root/build/$package.lock" "$root/.venv/bin/pip" install -q --no-deps --no-build-isolation -e "$root/packages/$package"

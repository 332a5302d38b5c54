#!/usr/bin/env bash
# Installs the pinned cargo-zigbuild and its Zig (scripts/zigbuild.txt) into the cache, and prints the path of the
# folder with both as the last line of stdout. Zig links releases against an older glibc than this machine's, for
# any architecture.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/lib.sh"

environment=$(python_environment zigbuild "$here/zigbuild.txt")
echo "$environment/bin"

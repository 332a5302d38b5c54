#!/usr/bin/env bash
# Installs the pinned cargo-deb, which makes the Debian package (cargo_tool in lib.sh).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

cargo_tool cargo-deb 3.8.0

#!/usr/bin/env bash
# Installs a headless Chromium and its driver, pinned by tests/browser/package-lock.json (npm_packages in
# lib.sh).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

npm_packages browser tests/browser

#!/usr/bin/env bash
# Installs OpenTelemetry's JavaScript SDK, pinned by tests/clients/js/package-lock.json (npm_packages in lib.sh).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

npm_packages otel-js tests/clients/js

#!/usr/bin/env bash
# Installs OpenTelemetry's JavaScript SDK, pinned by tests/clients/js/package-lock.json, into the cache and prints the path of
# its node_modules, last, on stdout. Does nothing when it is there already.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/lib.sh"

packages=$here/../tests/clients/js
directory=$cache/otel-js/$(fingerprint "$packages/package-lock.json")

need node "install Node.js 18.19 or later, with npm"
if [[ ! -d $directory ]]; then
    need npm "install Node.js 18.19 or later, with npm"
    say "installing OpenTelemetry's JavaScript SDK"
    stage "$directory"
    cp "$packages/package.json" "$packages/package-lock.json" "$staging"
    # No script of a package is run.
    (cd "$staging" && npm ci --ignore-scripts --no-audit --no-fund >&2)
    place "$directory"
fi
echo "$directory/node_modules"

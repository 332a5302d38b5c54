#!/usr/bin/env bash
# Installs the pinned telemetrygen (OpenTelemetry's own load generator) into the cache and prints
# the program's path, last, on stdout. Does nothing when it is there already.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

version=v0.161.0
directory=$cache/telemetrygen/$version

if [[ ! -x $directory/telemetrygen ]]; then
    need go "install Go 1.26 or later"
    say "building telemetrygen $version"
    stage "$directory"
    GOBIN=$staging go install \
        "github.com/open-telemetry/opentelemetry-collector-contrib/cmd/telemetrygen@$version" >&2
    place "$directory"
fi
echo "$directory/telemetrygen"

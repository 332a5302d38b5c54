#!/usr/bin/env bash
# Builds the OpenTelemetry Collector that the tests use (tests/collector/builder.yaml) with the
# pinned Collector builder, into the cache, and prints the program's path, last, on stdout. Does
# nothing when this very manifest has been built before.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/lib.sh"

manifest=$here/../tests/collector/builder.yaml
directory=$cache/collector/$collector_version-$(fingerprint "$manifest")

if [[ ! -x $directory/collector ]]; then
    builder=$(collector_builder)
    say "building the Collector of $(basename "$manifest") (about two minutes)"
    stage "$directory"
    cp "$manifest" "$staging/builder.yaml"
    build_collector "$builder" collector
    place "$directory"
fi
echo "$directory/collector"

#!/usr/bin/env bash
# Builds the tests' OpenTelemetry Collector (tests/collector/builder.yaml) with the pinned Collector builder
# into the cache, and prints the program's path as the last line of stdout. Skips the build if this manifest
# was built before.
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

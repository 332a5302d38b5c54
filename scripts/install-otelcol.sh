#!/usr/bin/env bash
# Builds a Collector with Millpond's exporter (otel-exporter/builder.yaml) with the pinned Collector builder
# into the cache, and prints the program's path as the last line of stdout. Skips the build if these sources
# were built before.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/lib.sh"

exporter=$(cd "$here/../otel-exporter" && pwd)
# The program's sources: everything in the folder except its tests and the benchmark.
mapfile -t sources < <(find "$exporter" -path '*/internal/bench' -prune -o -type f \( -name '*.go' -o -name 'go.*' -o -name builder.yaml \) ! -name '*_test.go' -print | sort)
directory=$cache/otelcol-millpond/$collector_version-$(fingerprint "${sources[@]}")

if [[ ! -x $directory/otelcol-millpond ]]; then
    builder=$(collector_builder)
    say "building a Collector with Millpond's exporter"
    stage "$directory"
    sed "s|MILLPOND_OTEL_EXPORTER|$exporter|" "$exporter/builder.yaml" >"$staging/builder.yaml"
    build_collector "$builder" otelcol-millpond
    place "$directory"
fi
echo "$directory/otelcol-millpond"

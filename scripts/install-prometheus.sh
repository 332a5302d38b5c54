#!/usr/bin/env bash
# Builds tests/prometheus (Prometheus' scraper and query engine, for the tests) into the cache, and prints the
# program's path as the last line of stdout. Skips the build if it exists.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

module=$(cd "$(dirname "${BASH_SOURCE[0]}")/../tests/prometheus" && pwd)
directory=$cache/prometheus/$(fingerprint "$module"/{main.go,go.mod,go.sum})

if [[ ! -x $directory/prometheus ]]; then
    need go "install Go 1.26 or later, or set MILLPOND_PROMETHEUS to this program"
    say "building Prometheus' parts for the tests"
    stage "$directory"
    (cd "$module" && go build -o "$staging/prometheus" . >&2)
    place "$directory"
fi
echo "$directory/prometheus"

#!/usr/bin/env bash
# Downloads the pinned Kafka broker (otel-exporter/internal/bench/kafka/pom.xml) with Maven into the cache,
# and prints the folder of its jars as the last line of stdout. Skips the download if it exists. Only
# `make bench-exporter` and tests/test_move_from_kafka.py need it.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/lib.sh"

pom=$here/../otel-exporter/internal/bench/kafka/pom.xml
directory=$cache/kafka/$(fingerprint "$pom")

need java "install a Java runtime, 17 or later"
if [[ ! -d $directory ]]; then
    need mvn "install Maven"
    say "fetching the Kafka of $(basename "$pom") (100 MB)"
    stage "$directory"
    mvn --quiet --batch-mode --file "$pom" dependency:copy-dependencies "-DoutputDirectory=$staging" >&2
    place "$directory"
fi
echo "$directory"

#!/usr/bin/env bash
# Downloads the pinned ZooKeeper (tests/cluster/pom.xml) with Maven into the cache, and prints the folder of
# its jars as the last line of stdout. Skips the download if it exists. Only `make test-cluster` needs it.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/lib.sh"

pom=$here/../tests/cluster/pom.xml
directory=$cache/zookeeper/$(fingerprint "$pom")

need java "install a Java runtime, 17 or later"
if [[ ! -d $directory ]]; then
    need mvn "install Maven"
    say "fetching the ZooKeeper of tests/cluster/pom.xml (10 MB)"
    stage "$directory"
    mvn --quiet --batch-mode --file "$pom" dependency:copy-dependencies "-DoutputDirectory=$staging" >&2
    place "$directory"
fi
echo "$directory"

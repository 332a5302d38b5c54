#!/usr/bin/env bash
# Builds the OpenTelemetry Collector that the tests use (tests/collector/builder.yaml) with the
# pinned Collector builder, into the cache, and prints the program's path, last, on stdout. Does
# nothing when this very manifest has been built before.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/lib.sh"

version=v0.161.0
manifest=$here/../tests/collector/builder.yaml
directory=$cache/collector/$version-$(fingerprint "$manifest")
builder=$cache/collector-builder/$version

if [[ ! -x $directory/collector ]]; then
    need go "install Go 1.26 or later"
    if [[ ! -x $builder/builder ]]; then
        say "building the Collector builder $version"
        stage "$builder"
        GOBIN=$staging go install "go.opentelemetry.io/collector/cmd/builder@$version" >&2
        place "$builder"
    fi
    say "building the Collector of $(basename "$manifest") (about two minutes)"
    stage "$directory"
    # The builder writes its Go module and the program into the working directory's dist.output_path.
    cp "$manifest" "$staging/builder.yaml"
    if ! (cd "$staging" && "$builder/builder" --skip-strict-versioning --config builder.yaml) \
        >"$staging/build.log" 2>&1; then
        cat "$staging/build.log" >&2
        exit 1
    fi
    mv "$staging/source/collector" "$staging/collector"
    rm -rf "$staging/source"
    place "$directory"
fi
echo "$directory/collector"

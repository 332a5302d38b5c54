#!/usr/bin/env bash
# Installs the pinned MinIO (the S3-compatible store of the tests and of the demo) into the cache and
# prints the program's path, last, on stdout. Does nothing when it is there already; cold it builds for
# about two minutes.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# RELEASE.2026-02-12, by its commit: MinIO's own version tags are not ones that Go understands.
version=v0.0.0-20260212201848-7aac2a2c5b7c
directory=$cache/bin/minio-$version

if [[ ! -x $directory/minio ]]; then
    need go "install Go 1.24 or later, or set MILLPOND_MINIO to a minio program"
    say "building MinIO $version (about two minutes)"
    stage "$directory"
    GOBIN=$staging CGO_ENABLED=0 go install -trimpath "github.com/minio/minio@$version" >&2
    place "$directory"
fi
echo "$directory/minio"

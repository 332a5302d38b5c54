#!/usr/bin/env bash
# Installs the pinned versitygw (an S3 server over a directory: the second store of the fault tests) into the
# cache and prints the program's path, last, on stdout. Does nothing when it is there already; cold it
# builds for about a minute and a half.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

version=v1.8.0
directory=$cache/bin/versitygw-$version

if [[ ! -x $directory/versitygw ]]; then
    need go "install Go 1.26 or later, or set MILLPOND_VERSITYGW to a versitygw program"
    say "building versitygw $version (about a minute and a half)"
    stage "$directory"
    GOBIN=$staging CGO_ENABLED=0 go install -trimpath "github.com/versity/versitygw/cmd/versitygw@$version" >&2
    place "$directory"
fi
echo "$directory/versitygw"

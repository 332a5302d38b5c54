#!/usr/bin/env bash
# Installs the pinned toxiproxy (a TCP proxy whose faults are switched over HTTP) into the cache and prints
# the program's path, last, on stdout. Does nothing when it is there already.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

version=v2.5.0
directory=$cache/bin/toxiproxy-$version

if [[ ! -x $directory/toxiproxy ]]; then
    need go "install Go 1.26 or later, or set MILLPOND_TOXIPROXY to a toxiproxy server"
    say "building toxiproxy $version"
    stage "$directory"
    GOBIN=$staging CGO_ENABLED=0 go install -trimpath "github.com/Shopify/toxiproxy/v2/cmd/server@$version" >&2
    # The program's folder is called server.
    mv "$staging/server" "$staging/toxiproxy"
    place "$directory"
fi
echo "$directory/toxiproxy"

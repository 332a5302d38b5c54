#!/usr/bin/env bash
# Makes an archive with the root file system of a minimal Debian 12 with systemd in the cache, for the tests of the
# Debian package, and prints its path as the last line of stdout. Does nothing else if it exists. Needs root.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

suite=bookworm
directory=$cache/debian/$suite-1

if [[ ! -f $directory/root.tar ]]; then
    need mmdebstrap "apt-get install mmdebstrap (Debian or Ubuntu)"
    # A Debian 12 knows its mirror. Elsewhere mmdebstrap uses Debian's main one.
    sources=()
    for file in /etc/apt/sources.list.d/debian.sources /etc/apt/sources.list; do
        if [[ ${#sources[@]} == 0 ]] && grep -qs "$suite" "$file"; then sources=("$file"); fi
    done
    say "installing a Debian ($suite) for the tests"
    stage "$directory"
    mmdebstrap --quiet --variant=minbase --include=systemd,ca-certificates --dpkgopt=force-unsafe-io \
        "$suite" "$staging/root.tar" "${sources[@]}" >&2
    place "$directory"
fi
echo "$directory/root.tar"

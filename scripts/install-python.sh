#!/usr/bin/env bash
# Creates a virtual environment with the pinned packages of tests/requirements.txt in the cache, and prints
# the path of its python as the last line of stdout. Does nothing else if it exists.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/lib.sh"

requirements=$here/../tests/requirements.txt
need python3 "install Python 3.10 or later, with venv"
python=$(python3 -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])')
environment=$cache/python/$python-$(fingerprint "$requirements")

if [[ ! -x $environment/bin/python ]]; then
    say "installing $(basename "$requirements") for Python $python"
    # A virtual environment cannot be moved: build it under a unique name, and put the link to it in place
    # with a rename.
    mkdir -p "$cache/python"
    built=$(mktemp -d "$environment.XXXXXX")
    trap '[[ $(readlink "$environment") == "$built" ]] || rm -rf "$built"' EXIT
    chmod 755 "$built"
    python3 -m venv "$built" >&2
    "$built/bin/python" -m pip install --quiet --disable-pip-version-check \
        --requirement "$requirements" >&2
    ln -s "$built" "$built/link"
    mv -T "$built/link" "$environment"
fi
echo "$environment/bin/python"

#!/usr/bin/env bash
# Creates a virtual environment with the pinned packages of tests/requirements.txt in the cache, and prints
# the path of its python as the last line of stdout. Does nothing else if it exists.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/lib.sh"

environment=$(python_environment python "$here/../tests/requirements.txt")
echo "$environment/bin/python"

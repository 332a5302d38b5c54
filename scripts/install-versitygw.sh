#!/usr/bin/env bash
# Installs the pinned versitygw, an S3 server over a directory: the second store of the fault tests (go_tool
# in lib.sh). The first build takes about 90 seconds.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

go_tool versitygw v1.8.0 github.com/versity/versitygw/cmd/versitygw

#!/usr/bin/env bash
# Installs the pinned Helm, which packs the chart (go_tool in lib.sh). deploy/tests has the same version as a library.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

go_tool helm v3.21.3 helm.sh/helm/v3/cmd/helm

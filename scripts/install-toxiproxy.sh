#!/usr/bin/env bash
# Installs the pinned toxiproxy, a TCP proxy with faults controlled over HTTP (go_tool in lib.sh).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

go_tool toxiproxy v2.5.0 github.com/Shopify/toxiproxy/v2/cmd/server

#!/usr/bin/env bash
# Installs the pinned telemetrygen, OpenTelemetry's own load generator (go_tool in lib.sh).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

go_tool telemetrygen "$collector_version" github.com/open-telemetry/opentelemetry-collector-contrib/cmd/telemetrygen

#!/usr/bin/env bash
# Installs the pinned MinIO, the S3-compatible store of the tests and the demo (go_tool in lib.sh). The first
# build takes about two minutes.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# RELEASE.2026-02-12 by its commit: Go does not understand MinIO's version tags.
go_tool minio v0.0.0-20260212201848-7aac2a2c5b7c github.com/minio/minio

#!/usr/bin/env bash
# Installs the pinned MinIO, the S3-compatible store of the tests and of the demo (go_tool in lib.sh). Cold it builds for
# about two minutes.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# RELEASE.2026-02-12, by its commit: MinIO's own version tags are not ones that Go understands.
go_tool minio v0.0.0-20260212201848-7aac2a2c5b7c github.com/minio/minio

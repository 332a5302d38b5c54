#!/usr/bin/env bash
# What the tutorial needs beside Millpond: an object store (MinIO) and a ClickHouse (its engine, embedded), with their data in
# tutorial/data. Runs until it is stopped. `make tutorial` sets MILLPOND_MINIO, MILLPOND_LIBCHDB and builds first.
#
# tutorial/env, which it writes, is for the shells that follow the tutorial.
set -euo pipefail
tutorial=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
programs=${MILLPOND_BIN_DIR:-${tutorial%/*}/target/debug}
minio_port=${TUTORIAL_MINIO_PORT:-9000}
clickhouse_port=${TUTORIAL_CLICKHOUSE_PORT:-8123}
data=$tutorial/data

for port in "$minio_port" "$clickhouse_port"; do
    if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
        echo "port $port is taken: stop what uses it, or set TUTORIAL_MINIO_PORT and TUTORIAL_CLICKHOUSE_PORT" >&2
        exit 1
    fi
done
mkdir -p "$data"

cat >"$tutorial/env" <<ENV
export PATH=$(printf %q "$programs"):\$PATH
export AWS_ACCESS_KEY_ID=tutorial AWS_SECRET_ACCESS_KEY=tutorial-secret AWS_REGION=us-east-1
export MILLPOND_BUFFER=s3://telemetry/buffer
export MILLPOND_S3_ENDPOINT=http://127.0.0.1:$minio_port
export TUTORIAL_COLLECTOR=${TUTORIAL_COLLECTOR:-127.0.0.1:4319}
export GATEWAY_2=${TUTORIAL_GATEWAY_2:-127.0.0.1:14317} GATEWAY_3=${TUTORIAL_GATEWAY_3:-127.0.0.1:24317}
export KAFKA=${TUTORIAL_KAFKA:-127.0.0.1:9092}
export GATEWAY_HTTP=${MILLPOND_LISTEN_HTTP:-127.0.0.1:4318} GATEWAY_ADMIN=${MILLPOND_GATEWAY_ADMIN:-127.0.0.1:9464}
export MILLPOND_CLICKHOUSE=http://127.0.0.1:$clickhouse_port
# Asks ClickHouse.
sql() { curl -sS --fail-with-body "\$MILLPOND_CLICKHOUSE" --data-binary "\$1"; }
ENV

stop() {
    trap '' INT TERM
    kill "${running[@]}" 2>/dev/null || true
    wait
}
running=()
trap stop EXIT
trap 'exit 0' INT TERM

MINIO_ROOT_USER=tutorial MINIO_ROOT_PASSWORD=tutorial-secret MINIO_BROWSER=off MINIO_UPDATE=off \
    "$MILLPOND_MINIO" server --quiet --address "127.0.0.1:$minio_port" "$data/minio" >"$data/minio.log" 2>&1 &
running+=($!)
"$programs/embedded-clickhouse" --listen "127.0.0.1:$clickhouse_port" --path "$data/clickhouse" >"$data/clickhouse.log" 2>&1 &
running+=($!)

answers() { curl -sf -o /dev/null "$1"; }
until answers "http://127.0.0.1:$minio_port/minio/health/ready" && answers "http://127.0.0.1:$clickhouse_port/ping"; do
    if ! kill -0 "${running[@]}" 2>/dev/null; then
        tail -n 3 "$data"/*.log >&2
        exit 1
    fi
    sleep 0.2
done
cat <<SAY

MinIO and ClickHouse are running, with their data in tutorial/data. Leave them running. In another terminal, in this folder, run

    source tutorial/env

and continue with tutorial/README.md. Ctrl-C stops both; tutorial/data stays until you delete it.
SAY
# Whichever ends first, by itself: then the other is of no use.
wait -n "${running[@]}"

#!/usr/bin/env bash
# Runs every fuzz target (fuzz/targets) over its seeds with libFuzzer, on a stable compiler:
#
#   scripts/fuzz.sh [TARGET…]      all of them, or those named, like otlp-logs
#
#   FUZZ_RUNS      inputs for each target
#   FUZZ_SECONDS   instead: how long each target runs
#
# What it finds worth keeping is in target/fuzz/TARGET and is where the next run begins. An input that breaks a property
# is kept in target/fuzz/found; run the target's program with that file to see it again.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

declare -A seeds=(
    [buffer]=fuzz/seeds/buffer
    [manifest]=manifest/testdata
    [page]=manifest/testdata
    [cursor]=manifest/testdata
    [segment]=segment/testdata
    [otlp-logs]=fuzz/seeds/otlp
    [otlp-json]=fuzz/seeds/otlp-json
    [clickhouse]=fuzz/seeds/otlp
    [clickhouse-answer]=fuzz/seeds/clickhouse-answer
    [buffer-url]=fuzz/seeds/buffer-url
    [settings]=fuzz/seeds/settings
    [tokens]=fuzz/seeds/tokens
)
targets=("$@")
if [[ $# == 0 ]]; then
    mapfile -t targets < <(printf '%s\n' "${!seeds[@]}" | sort)
fi

# The whole workspace is named, and examples, so that dependencies have the features that `make build` gave them.
RUSTC_WORKSPACE_WRAPPER=$PWD/scripts/rustc-with-coverage.sh \
    cargo build --locked --workspace --example 'fuzz-*'
mkdir -p target/fuzz/found

bound=(-runs="${FUZZ_RUNS:-10000}")
if [[ -n ${FUZZ_SECONDS:-} ]]; then
    bound=(-max_total_time="$FUZZ_SECONDS")
fi
for target in "${targets[@]}"; do
    [[ -n ${seeds[$target]:-} ]] || { printf 'fuzz.sh: there is no target %s\n' "$target" >&2; exit 1; }
    corpus=target/fuzz/$target
    log=target/fuzz/$target.log
    mkdir -p "$corpus"
    # A hundred times what an input takes on a slow machine.
    if ! "target/debug/examples/fuzz-$target" "${bound[@]}" -timeout=60 -rss_limit_mb=2048 \
        -artifact_prefix=target/fuzz/found/"$target"- -print_final_stats=1 \
        "$corpus" "${seeds[$target]}" >"$log" 2>&1; then
        grep -v '^#' "$log" | tail -n 60 >&2
        exit 1
    fi
    # A target that sees no coverage tries bytes at random.
    if ! grep -q 'DONE *cov: ' "$log"; then
        printf 'fuzz.sh: %s was built without coverage\n' "$target" >&2
        exit 1
    fi
    printf '%-16s %s\n' "$target" "$(grep -o 'DONE .*' "$log")"
done

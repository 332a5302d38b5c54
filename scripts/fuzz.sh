#!/usr/bin/env bash
# Runs every fuzz target (fuzz/targets) over its seeds with libFuzzer, on a stable compiler:
#
#   scripts/fuzz.sh [TARGET…]      all targets, or the named ones, like otlp-logs
#
#   FUZZ_RUNS      inputs per target
#   FUZZ_SECONDS   time per target, instead of FUZZ_RUNS
#
# The corpus is in target/fuzz/TARGET, and the next run continues with it. Inputs that break a property are in
# target/fuzz/found; run the target's program with such a file to reproduce the failure.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

declare -A seeds=(
    [buffer]=fuzz/seeds/buffer
    [manifest]=manifest/testdata
    [page]=manifest/testdata
    [unique]=manifest/testdata
    [cursor]=manifest/testdata
    [segment]=segment/testdata
    [otlp-logs]=fuzz/seeds/otlp
    [otlp-json]=fuzz/seeds/otlp-json
    [events]=fuzz/seeds/events
    [clickhouse]=fuzz/seeds/otlp
    [clickhouse-answer]=fuzz/seeds/clickhouse-answer
    [kafka]=fuzz/seeds/kafka
    [peer]=fuzz/seeds/peer
    [buffer-url]=fuzz/seeds/buffer-url
    [settings]=fuzz/seeds/settings
    [tokens]=fuzz/seeds/tokens
)
targets=("$@")
if [[ $# == 0 ]]; then
    mapfile -t targets < <(printf '%s\n' "${!seeds[@]}" | sort)
fi

# Names the whole workspace and its examples, so that dependencies have the same features as in `make build`.
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
    # A target without coverage feedback tries random bytes.
    if ! grep -q 'DONE *cov: ' "$log"; then
        printf 'fuzz.sh: %s was built without coverage\n' "$target" >&2
        exit 1
    fi
    printf '%-16s %s\n' "$target" "$(grep -o 'DONE .*' "$log")"
done

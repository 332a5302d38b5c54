#!/usr/bin/env bash
# Builds and runs the benchmarks of the hot pieces (bench/src/bin/micro). With BASE it compares this tree with another
# commit, or with the report of an earlier run:
#
#   scripts/bench-micro.sh [FLAG…]
#   BASE=main scripts/bench-micro.sh
#   BASE=bench-results/micro-30f44b2.json scripts/bench-micro.sh --only logs-insert
#
# The report of each run goes to bench-results/micro-COMMIT.json.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

target=$PWD/target
mkdir -p "$target/micro"

base=()
if [[ -f ${BASE:-} ]]; then
    base=(--base "$BASE")
elif [[ -n ${BASE:-} ]]; then
    commit=$(git rev-parse --verify --short "$BASE^{commit}")
    tree=$target/micro/$commit
    if [[ ! -d $tree ]]; then
        git worktree prune
        git worktree add --detach "$tree" "$commit"
    fi
    if [[ ! -f $tree/bench/src/bin/micro/main.rs ]]; then
        printf 'bench-micro.sh: %s is from before this benchmark: choose a later commit\n' "$commit" >&2
        exit 1
    fi
    # Its own target folder: in a shared one cargo takes crates of one tree for those of the other.
    (cd "$tree" && CARGO_TARGET_DIR=$target/micro/base cargo build --locked --release --bin micro)
    "$target/micro/base/release/micro" --report "$target/micro/$commit.json" "$@"
    base=(--base "$target/micro/$commit.json")
    git worktree remove --force "$tree"
fi
cargo build --locked --release --bin micro
report=(--report "bench-results/micro-$(git rev-parse --short HEAD).json")
[[ " $* " != *" --profile"* ]] || report=()
exec "$target/release/micro" "${report[@]}" "${base[@]}" "$@"

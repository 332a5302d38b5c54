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

# One target folder for both: they share the compiled dependencies.
target=$PWD/target

# Builds the benchmark of the tree in the working directory, and copies it to $1.
build() {
    CARGO_TARGET_DIR=$target cargo build --locked --release --bin micro
    mkdir -p "$(dirname "$1")"
    cp "$target/release/micro" "$1"
}

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
    (cd "$tree" && build "$target/micro/micro-$commit")
    "$target/micro/micro-$commit" --report "$target/micro/$commit.json" "$@"
    base=(--base "$target/micro/$commit.json")
    git worktree remove --force "$tree"
fi
build "$target/micro/micro-now"
report=(--report "bench-results/micro-$(git rev-parse --short HEAD).json")
[[ " $* " != *" --profile"* ]] || report=()
exec "$target/micro/micro-now" "${report[@]}" "${base[@]}" "$@"

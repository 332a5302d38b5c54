#!/usr/bin/env bash
# Runs every test, for `make test`. Tests with processes mostly wait, so one lane has them. Another, at the lowest priority, has
# everything that computes, and gets the cores whenever the first leaves them idle. Each line of output begins with its lane.
# A failure in one lane does not stop the other. The output ends with the last lines of each lane that failed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# lane NAME NICENESS TARGET… makes targets until one fails.
lane() {
    local name=$1 niceness=$2
    shift 2
    nice -n "$niceness" make --no-print-directory BUILT=1 "$@" </dev/null 2>&1 |
        sed --unbuffered "s/^/$name | /" | tee "$logs/$name"
}

# In the background, in a process group that a trap can end.
logs=$(mktemp -d)
set -m
scripts/tools.sh >/dev/null &
set +m
background=$!
trap 'kill -- "-$background" 2>/dev/null || true; rm -r "$logs"' EXIT
# The examples bring the features of the tests, so that the tests share these dependencies.
cargo build --locked --workspace --bins --examples
wait "$background"

set -m
lane crates 19 planted-bugs test-seeds fuzz test-go test-clients test-deploy &
set +m
background=$!
failed=()
lane processes 0 test-processes test-cluster || failed+=(processes)
wait "$background" || failed+=(crates)
trap 'rm -r "$logs"' EXIT
for name in "${failed[@]}"; do
    tail -n 40 "$logs/$name"
    printf 'test.sh: tests failed in the lane "%s"\n' "$name" >&2
done
[[ ${#failed[@]} == 0 ]]

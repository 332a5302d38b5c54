#!/usr/bin/env bash
# Runs every test, for `make test`. Tests with processes mostly wait, so one lane has them. Another, at the lowest priority, has
# what computes for longest, and gets the cores whenever the first leaves them idle. The rest follows the processes, so that both
# lanes end at about the same time. Each line of output begins with its lane. A failure stops nothing else.
# The output ends with the last lines of each target that failed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# lane NAME NICENESS TARGET… makes targets, one after the other.
lane() {
    local name=$1 niceness=$2 target
    shift 2
    for target in "$@"; do
        nice -n "$niceness" make --no-print-directory BUILT=1 "$target" </dev/null 2>&1 |
            sed --unbuffered "s/^/$name | /" | tee "$logs/$target" || touch "$logs/$target.failed"
    done
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
lane crates 19 planted-bugs test-seeds fuzz &
set +m
background=$!
lane processes 0 test-processes test-cluster test-go test-clients test-deploy
wait "$background"
trap 'rm -r "$logs"' EXIT
failed=("$logs"/*.failed)
[[ -e ${failed[0]} ]] || exit 0
for mark in "${failed[@]}"; do
    log=${mark%.failed}
    tail -n 40 "$log"
    printf 'test.sh: failed: make %s\n' "${log##*/}" >&2
done
exit 1

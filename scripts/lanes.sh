#!/usr/bin/env bash
# Runs lanes of Makefile targets side by side, each lane in its order: tests that mostly wait leave the processors to others. The
# first lane prints as it goes, and the others after it. Ends with 1 if a lane fails.
#
#     scripts/lanes.sh "test-rust fuzz" "test-processes"
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
first=$1
others=("${@:2}")
running=()
for lane in "${!others[@]}"; do
    # shellcheck disable=SC2086 # one word for each target
    "${MAKE:-make}" --no-print-directory ${others[$lane]} >"$logs/$lane" 2>&1 </dev/null &
    running+=($!)
done
failed=()
# shellcheck disable=SC2086
"${MAKE:-make}" --no-print-directory $first </dev/null || failed+=("$first")
for lane in "${!others[@]}"; do
    tail -n +1 -f --pid="${running[$lane]}" "$logs/$lane"
    wait "${running[$lane]}" || failed+=("${others[$lane]}")
done
if ((${#failed[@]} > 0)); then
    printf 'failed: %s\n' "${failed[@]}"
    exit 1
fi

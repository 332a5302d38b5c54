#!/usr/bin/env bash
# Runs a long build behind one line: the number of crates so far and the time. The build's output goes to a log, which is printed if
# the build fails.
#
#   scripts/quietly.sh TITLE LOG COMMAND…
set -euo pipefail
title=$1 log=$2
shift 2
mkdir -p "$(dirname "$log")"

elapsed() {
    printf '%d min %02d s' $((SECONDS / 60)) $((SECONDS % 60))
}

SECONDS=0
printf '%s (log: %s)\n' "$title" "$log" >&2
"$@" >"$log" 2>&1 &
build=$!
trap 'kill "$build" 2>/dev/null || true; exit 130' INT TERM
while kill -0 "$build" 2>/dev/null; do
    # A pipe gets the first and the last line only.
    if [[ -t 2 ]]; then
        crates=$(grep -cE '^ *Compiling ' "$log" || true)
        printf '\r  %s crates, %s ' "$crates" "$(elapsed)" >&2
    fi
    sleep 0.5
done
if [[ -t 2 ]]; then
    printf '\r\033[K' >&2
fi
status=0
wait "$build" || status=$?
if [[ $status != 0 ]]; then
    cat "$log" >&2
    printf '%s: failed after %s\n' "$title" "$(elapsed)" >&2
    exit "$status"
fi
printf '%s: done in %s\n' "$title" "$(elapsed)" >&2

#!/usr/bin/env bash
# Installs every pinned tool that the tests and the demo use and prints shell `export` lines for
# them on stdout, to be used as:  eval "$(scripts/tools.sh)"
#
# With names as arguments, only those:  scripts/tools.sh minio libchdb
# A variable that is set already is left alone, so that a tool of one's own can be used instead.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

for tool in "${@:-minio versitygw toxiproxy libchdb telemetrygen collector otelcol python otel_js browser}"; do
    for name in $tool; do
        variable=MILLPOND_${name^^}
        path=${!variable:-}
        if [[ -z $path ]]; then
            path=$("$here/install-$name.sh" | tail -n 1)
        fi
        if [[ ! -e $path ]]; then
            printf 'tools.sh: install-%s.sh gave "%s", which does not exist\n' "$name" "$path" >&2
            exit 1
        fi
        printf 'export %s=%q\n' "$variable" "$path"
    done
done

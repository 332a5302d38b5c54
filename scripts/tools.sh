#!/usr/bin/env bash
# Installs every pinned tool of the tests and the demo, and prints shell `export` lines for them on
# stdout:  eval "$(scripts/tools.sh)"
#
# To install only some of them:  scripts/tools.sh minio libchdb
# A variable that is already set stays unchanged, so you can use your own build of a tool.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

for tool in "${@:-minio versitygw toxiproxy libchdb telemetrygen collector otelcol python otel_js browser prometheus}"; do
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

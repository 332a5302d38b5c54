#!/usr/bin/env bash
# Checks the crates against RustSec's advisories with deny.toml, if cargo-deny and the database are available. If not,
# it reports that nothing was checked, and succeeds: a machine without the internet must still be able to test.
#
#   MILLPOND_ADVISORIES=required    fail if nothing can be checked (for releases)
#   CARGO_NET_OFFLINE=true          use the local database, and fetch nothing
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

not_checked() {
    printf 'advisories: NOT CHECKED: %s\n' "$1"
    [[ ${MILLPOND_ADVISORIES:-} != required ]]
    exit
}

cargo deny --version >/dev/null 2>&1 || not_checked 'cargo-deny is not installed (cargo install --locked cargo-deny)'
databases=${CARGO_HOME:-$HOME/.cargo}/advisory-dbs
if [[ ${CARGO_NET_OFFLINE:-} != true ]]; then
    timeout 120 cargo deny fetch db >/dev/null 2>&1 || true
fi
compgen -G "$databases/*" >/dev/null || not_checked "there is no database in $databases, and it could not be fetched"
cargo deny check --disable-fetch advisories
printf 'advisories: checked, with the database of %s\n' "$(stat -c %y "$databases" | cut -d. -f1)"

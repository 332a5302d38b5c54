# Shared by the install scripts (sourced, not run): where the pinned tools live, and how one gets
# there atomically. Nothing is ever installed into the tree, and a half-finished install is never
# mistaken for a finished one: everything is built beside its place and renamed into it.

cache=${MILLPOND_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/millpond}

# say MESSAGE: progress, on stderr; stdout belongs to the resulting path.
say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }

# need PROGRAM WHY: stops with a sentence when a toolchain is missing.
need() { command -v "$1" >/dev/null || { say "$1 is not on the PATH: $2"; exit 1; }; }

# fingerprint FILE…: 12 hex digits that change with the files, for the names of versioned directories.
fingerprint() { cat "$@" | sha256sum | cut -c1-12; }

# stage DIRECTORY: sets $staging to a fresh directory beside DIRECTORY, removed when the script ends.
stage() {
    mkdir -p "$(dirname "$1")"
    staging=$(mktemp -d "$1.XXXXXX")
    trap 'rm -rf "$staging"' EXIT
}

# place DIRECTORY: renames $staging to DIRECTORY. When another run got there first, its result stands.
place() {
    chmod 755 "$staging"
    mv -T "$staging" "$1" 2>/dev/null || [[ -d $1 ]] || { say "cannot move $staging to $1"; exit 1; }
}

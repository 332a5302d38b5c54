# Functions for the install scripts (sourced, not run): the location of the pinned tools, and atomic
# installation. Nothing is installed into the tree. Each tool is built beside its destination and renamed into
# place, so an unfinished install never looks finished.

cache=${MILLPOND_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/millpond}
source "$(dirname "${BASH_SOURCE[0]}")/go-env.sh"

# say MESSAGE: prints progress on stderr; stdout is for the resulting path.
say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }

# need PROGRAM REMEDY: stops with a sentence if a toolchain is missing.
need() { command -v "$1" >/dev/null || { say "$1 is not on the PATH: $2"; exit 1; }; }

# fingerprint FILE…: 12 hex digits that change with the files, for the names of versioned directories.
fingerprint() { cat "$@" | sha256sum | cut -c1-12; }

# stage DIRECTORY: sets $staging to a new directory beside DIRECTORY, removed when the script ends.
stage() {
    mkdir -p "$(dirname "$1")"
    staging=$(mktemp -d "$1.XXXXXX")
    trap 'rm -rf "$staging"' EXIT
}

# place DIRECTORY: renames $staging to DIRECTORY. If another run was faster, its result stands.
place() {
    chmod 755 "$staging"
    mv -T "$staging" "$1" 2>/dev/null || [[ -d $1 ]] || { say "cannot move $staging to $1"; exit 1; }
}

# go_tool NAME VERSION PACKAGE: installs a pinned Go program into the cache as NAME, and prints its path as
# the last line of stdout. Skips the build if it exists.
go_tool() {
    local name=$1 version=$2 package=$3
    local directory=$cache/bin/$name-$version
    if [[ ! -x $directory/$name ]]; then
        need go "install Go 1.26 or later, or set MILLPOND_${name^^} to a $name of your own"
        say "building $name $version"
        stage "$directory"
        GOBIN=$staging go install "$package@$version" >&2
        # Go names a program by its folder.
        [[ -e $staging/$name ]] || mv "$staging/${package##*/}" "$staging/$name"
        place "$directory"
    fi
    echo "$directory/$name"
}

# cargo_tool NAME VERSION: installs a pinned program of crates.io into the cache, and prints its path as the last
# line of stdout. Skips the build if it exists.
cargo_tool() {
    local name=$1 version=$2 variable=${1//-/_}
    local directory=$cache/bin/$name-$version
    if [[ ! -x $directory/bin/$name ]]; then
        need cargo "install Rust, or set MILLPOND_${variable^^} to a $name of your own"
        say "building $name $version"
        stage "$directory"
        cargo install --quiet --locked --root "$staging" --target-dir "$staging/target" "$name@$version" >&2
        rm -rf "$staging/target"
        place "$directory"
    fi
    echo "$directory/bin/$name"
}

# python_environment NAME REQUIREMENTS: creates a virtual environment with the pinned packages of a file in the
# cache, and prints its directory as the last line of stdout. Does nothing else if it exists.
python_environment() {
    local name=$1 requirements=$2 python built
    need python3 "install Python 3.10 or later, with venv"
    python=$(python3 -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])')
    local environment
    environment=$cache/$name/$python-$(fingerprint "$requirements")
    if [[ ! -x $environment/bin/python ]]; then
        say "installing $(basename "$requirements") for Python $python"
        # A virtual environment cannot be moved: build it under a unique name, and put the link to it in place
        # with a rename.
        mkdir -p "$cache/$name"
        built=$(mktemp -d "$environment.XXXXXX")
        chmod 755 "$built"
        if ! { python3 -m venv "$built" >&2 && "$built/bin/python" -m pip install --quiet \
            --disable-pip-version-check --requirement "$requirements" >&2; }; then
            rm -rf "$built"
            exit 1
        fi
        ln -s "$built" "$built/link"
        mv -T "$built/link" "$environment"
    fi
    echo "$environment"
}

# npm_packages NAME FOLDER: installs the packages that a folder of the project pins into the cache, and prints
# the path of their node_modules as the last line of stdout. Skips the install if they exist.
npm_packages() {
    local name=$1 packages
    packages=$(cd "$(dirname "${BASH_SOURCE[0]}")/../$2" && pwd)
    local directory
    directory=$cache/$name/$(fingerprint "$packages/package-lock.json")
    need node "install Node.js 20 or later, with npm"
    if [[ ! -d $directory ]]; then
        need npm "install Node.js 20 or later, with npm"
        say "installing the packages of $2"
        stage "$directory"
        cp "$packages/package.json" "$packages/package-lock.json" "$staging"
        # Runs no script of any package.
        (cd "$staging" && npm ci --ignore-scripts --no-audit --no-fund >&2)
        place "$directory"
    fi
    echo "$directory/node_modules"
}

# The versions in this release of the Collector build together.
collector_version=v0.161.0

# collector_builder: installs the pinned Collector builder and prints the program's path.
collector_builder() {
    local directory=$cache/collector-builder/$collector_version
    need go "install Go 1.26 or later"
    if [[ ! -x $directory/builder ]]; then
        say "building the Collector builder $collector_version"
        (
            stage "$directory"
            GOBIN=$staging go install "go.opentelemetry.io/collector/cmd/builder@$collector_version" >&2
            place "$directory"
        )
    fi
    echo "$directory/builder"
}

# build_collector BUILDER NAME: builds the Collector of $staging/builder.yaml, with dist.name NAME and
# dist.output_path ./source, and keeps only the program.
build_collector() {
    # The builder writes its Go module and the program into the working directory's dist.output_path.
    if ! (cd "$staging" && "$1" --skip-strict-versioning --config builder.yaml) >"$staging/build.log" 2>&1; then
        cat "$staging/build.log" >&2
        exit 1
    fi
    mv "$staging/source/$2" "$staging/$2"
    rm -rf "$staging/source"
}

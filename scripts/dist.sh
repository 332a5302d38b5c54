#!/usr/bin/env bash
# Builds what a release needs into dist/: for each architecture a tarball, the symbols, a Debian package and a
# container image; the chart; bills of materials and checksums. design/releasing.md has the steps of a release.
#
#   scripts/dist.sh            builds everything; needs Debian 12 (its packages are the image's base)
#   scripts/dist.sh version    prints the version: Cargo.toml's on the tag v<version>, else with -dev and the commit
#   DIST_TARGETS               Rust's names of the platforms (default: x86-64 and arm64)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib.sh

# RHEL 8, Debian 11, Ubuntu 20.04, Amazon Linux 2023, and later. tests/dist compares the program with it, and
# cli/Cargo.toml has it as the Debian package's dependency.
glibc=2.28
read -ra targets <<< "${DIST_TARGETS:-x86_64-unknown-linux-gnu aarch64-unknown-linux-gnu}"
stage_root=target/dist

version() {
    local number tree
    number=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
    # A source tarball has no history: it is the release.
    if tree=$(git describe --always --dirty --abbrev=10 --exclude '*' 2>/dev/null); then
        if [[ $tree == *-dirty ]] || ! git tag --points-at HEAD | grep -qx "v$number"; then
            number+=-dev.$(git rev-list --count HEAD).g${tree/-/.}
        fi
    fi
    echo "$number"
}

# debian_name TARGET: Debian's name of the architecture.
debian_name() {
    case $1 in
        x86_64-unknown-linux-gnu) echo amd64 ;;
        aarch64-unknown-linux-gnu) echo arm64 ;;
        *)
            say "DIST_TARGETS has $1; it may have x86_64-unknown-linux-gnu and aarch64-unknown-linux-gnu"
            exit 1
            ;;
    esac
}

# check_machine: finds what is missing before an hour of building.
check_machine() {
    local target
    need apt-get "run this on Debian 12: the image's base comes from its packages"
    need dpkg-deb "run this on Debian 12"
    need readelf "install binutils"
    grep -q '^VERSION_CODENAME=bookworm$' /etc/os-release || {
        say "this is not Debian 12 (/etc/os-release), whose packages are the image's base"
        exit 1
    }
    for target in "${targets[@]}"; do
        debian_name "$target" >/dev/null
        if [[ ! -d $(rustc --print target-libdir --target "$target") ]]; then
            say "installing Rust's standard library for $target"
            rustup target add "$target" >&2 || {
                say "Rust's standard library for $target is missing: install it, or leave $target out of DIST_TARGETS"
                exit 1
            }
        fi
    done
}

# build TARGET: compiles the program with symbols.
build() {
    say "building millpond for $1 with glibc $glibc"
    # The program has neither paths nor names of this machine, so another one can build the same bytes.
    # A build ID ties the program to its symbols.
    local registry=${CARGO_HOME:-$HOME/.cargo}/registry/src
    CARGO_TARGET_DIR=$PWD/target \
        CARGO_ENCODED_RUSTFLAGS="--remap-path-prefix=$registry=crates"$'\x1f'"--remap-path-prefix=$PWD=millpond"$'\x1f'-Clink-arg=-Wl,--build-id=sha1 \
        CFLAGS="-ffile-prefix-map=$registry=crates -ffile-prefix-map=$PWD=millpond" \
        ZIG_GLOBAL_CACHE_DIR="$cache/zig" \
        PATH="$zigbuild:$PATH" \
        cargo zigbuild --locked --release --package millpond-cli --features bridge-tls --bin millpond --target "$1.$glibc" >&2
}

# llvm_objcopy: rustc's, because binutils know only the machine's architecture.
llvm_objcopy() {
    local root
    root=$(rustc --print sysroot)
    LD_LIBRARY_PATH=$root/lib "$root/lib/rustlib/$(rustc --print host-tuple)/bin/rust-objcopy" "$@"
}

# split_symbols TARGET FOLDER: puts the stripped program into FOLDER, and its symbols where debuggers and Rust's backtraces
# look for them, below FOLDER/symbols.
split_symbols() {
    local program=target/$1/release/millpond id symbols
    id=$(readelf --notes "$program" | sed -n 's/.*Build ID: //p')
    symbols=$2/symbols/usr/lib/debug/.build-id/${id:0:2}/${id:2}.debug
    mkdir -p "$(dirname "$symbols")"
    llvm_objcopy --only-keep-debug "$program" "$symbols"
    llvm_objcopy --strip-all --add-gnu-debuglink="$symbols" "$program" "$2/millpond"
}

# documents TARGET FOLDER: the licences of all that is linked, and the bill of materials.
documents() {
    "$python" scripts/sbom.py millpond --target "$1" >"$2/millpond.cdx.json"
    "$python" scripts/licences.py --target "$1" >"$2/third-party-licences.txt"
}

# shell_files PROGRAM FOLDER: the completions of the shells that Debian has folders for, and the man pages. They are the same for
# every platform, so a program of this machine writes them.
shell_files() {
    local shell
    mkdir -p "$2/completions"
    for shell in bash zsh fish; do
        "$1" completions "$shell" >"$2/completions/millpond.$shell"
    done
    "$1" man "$2/man1"
}

# pack FOLDER FILE ENTRIES…: a tarball whose bytes depend on the content only.
pack() {
    tar --create --directory "$1" --sort=name --owner=0 --group=0 --numeric-owner --mode=u+w,go-w,a+rX \
        --mtime="@$SOURCE_DATE_EPOCH" "${@:3}" | gzip -9n >"$2"
}

# tarball TARGET FOLDER
tarball() {
    local name=millpond-$version
    local root=$2/$name
    mkdir -p "$root/deploy"
    cp "$2/millpond" "$2/millpond.cdx.json" "$2/third-party-licences.txt" LICENSE CHANGELOG.md "$root"
    cp -r docs "$stage_root/completions" "$root"
    mkdir "$root/man"
    cp -r "$stage_root/man1" "$root/man"
    cp -r deploy/{README.md,systemd,iam,grafana} "$root/deploy"
    pack "$2" "dist/$name-${1%%-*}-linux-gnu.tar.gz" "$name"
    pack "$2/symbols" "dist/$name-${1%%-*}-linux-gnu-symbols.tar.gz" usr
}

# package TARGET FOLDER: the Debian package of [package.metadata.deb] in cli/Cargo.toml.
package() {
    # cargo-deb takes the files from the target folder: from one with the stripped program.
    mkdir -p "$2/target/$1/release" "$2/target/release"
    cp "$2/millpond" "$2/target/$1/release/millpond"
    cp "$2/third-party-licences.txt" "$2/millpond.cdx.json" "$2/target/$1/release"
    cp -r "$stage_root"/{completions,man1} "$2/target/$1/release"
    gzip -9n "$2/target/$1/release/man1/"*
    # ~ sorts before the release.
    CARGO_TARGET_DIR=$PWD/$2/target "$cargo_deb" --quiet --locked --no-build --no-strip --no-dbgsym \
        --package millpond-cli --target "$1" --deb-version "${version/-/\~}" --output "$PWD/dist/" >&2
}

# fetch_packages ARCHITECTURE FOLDER: downloads the packages of the image's base.
fetch_packages() {
    local state=$PWD/$2/apt options
    mkdir -p "$state/lists/partial" "$state/cache/archives/partial" "$2/packages"
    # The machine's mirror and keys, but lists of the image's architecture.
    options=(
        -q
        -o "Dir::State::Lists=$state/lists"
        -o "Dir::Cache=$state/cache"
        -o Dir::State::status=/dev/null
        -o "APT::Architecture=$1"
        -o "APT::Architectures::=$1"
        -o APT::Sandbox::User=root
        -o Acquire::Languages=none
    )
    apt-get "${options[@]}" update >&2
    (cd "$2/packages" && apt-get "${options[@]}" download base-files libc6 ca-certificates >&2)
    rm -rf "$state"
}

# image TARGET FOLDER
image() {
    local architecture
    architecture=$(debian_name "$1")
    fetch_packages "$architecture" "$2"
    python3 scripts/image.py --architecture "$architecture" --version "$version" --program "$2/millpond" \
        --packages "$2/packages" --document LICENSE --document "$2/third-party-licences.txt" \
        --document "$2/millpond.cdx.json" --output "dist/millpond-$version-$architecture.oci.tar"
}

chart() {
    "$helm" package deploy/helm/millpond --version "$version" --app-version "$version" --destination dist >&2
}

if [[ ${1:-} == version ]]; then
    version
    exit
fi

check_machine
zigbuild=$(scripts/install-zigbuild.sh | tail -n 1)
cargo_deb=${MILLPOND_CARGO_DEB:-$(scripts/install-cargo_deb.sh | tail -n 1)}
helm=${MILLPOND_HELM:-$(scripts/install-helm.sh | tail -n 1)}
python=${MILLPOND_PYTHON:-$(scripts/install-python.sh | tail -n 1)}
version=$(version)
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || stat -c %Y Cargo.toml)}
export SOURCE_DATE_EPOCH

rm -rf dist "$stage_root"
mkdir -p dist "$stage_root"
host=$(rustc --print host-tuple)
build "$host"
shell_files "target/$host/release/millpond" "$stage_root"
for target in "${targets[@]}"; do
    folder=$stage_root/$target
    mkdir -p "$folder"
    build "$target"
    split_symbols "$target" "$folder"
    documents "$target" "$folder"
    tarball "$target" "$folder"
    package "$target" "$folder"
    image "$target" "$folder"
done
chart
"$python" scripts/sbom.py exporter >"dist/otel-exporter-$version.cdx.json"
(cd dist && sha256sum -- * >../"$stage_root/SHA256SUMS" && mv ../"$stage_root/SHA256SUMS" .)
say "dist/ has millpond $version"

#!/usr/bin/env bash
# Downloads the pinned version of libchdb, ClickHouse's engine as a library, from its npm package into
# Millpond's cache, and prints the path of libchdb.so as the last line of stdout. Skips the download if
# that version exists. Needs npm; 180 MB over the network, 570 MB on disk.
#
#   MILLPOND_CACHE   the cache folder (default: $XDG_CACHE_HOME/millpond or ~/.cache/millpond)
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/lib.sh"

# The version that embedded-clickhouse looks for in the cache (embedded-clickhouse/src/main.rs), with the
# checksum of its package: npm verifies the registry's checksum, this one verifies the registry.
version=26.7.3-stable.1
sha512=5cff7b98caa7739b59a4a432c11f0dedc2d3b073624e61ebdf4a42e66ce8de35a6ba48ca9f62016bad1cd81fe059435cb858ce3235a8a2b408082a81563e70a7
folder=$cache/libchdb-$version

case $(uname -s)-$(uname -m) in
    Linux-x86_64) package=@chdb/lib-linux-x64-gnu ;;
    *)
        say "this script knows libchdb for Linux on x86-64 only, not for $(uname -s) on $(uname -m);" \
            "use a ClickHouse server instead of embedded-clickhouse"
        exit 1
        ;;
esac

if [[ ! -f $folder/libchdb.so ]]; then
    need npm "install Node.js 18 or later, or set MILLPOND_LIBCHDB to a libchdb.so"
    say "fetching $package@$version (180 MB)"
    stage "$folder"
    # `pack` only downloads: it runs no script of the package and installs nothing.
    npm pack --silent --pack-destination "$staging" "$package@$version" >/dev/null
    tarballs=("$staging"/*.tgz)
    if [[ $(sha512sum "${tarballs[0]}" | cut -d' ' -f1) != "$sha512" ]]; then
        say "$package@$version is not the package that is pinned here (its SHA-512 differs); nothing was installed"
        exit 1
    fi
    tar -xzf "${tarballs[0]}" -C "$staging" --strip-components=1 package/libchdb.so
    rm "${tarballs[@]}"
    place "$folder"
fi
echo "$folder/libchdb.so"

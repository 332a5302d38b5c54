#!/usr/bin/env bash
# The RUSTC_WORKSPACE_WRAPPER of `make fuzz`: compiles the decoding crates and the targets with libFuzzer's coverage
# and with every check on. The flags are cargo-fuzz's without the sanitizers, which need a nightly compiler.
# Everything else is compiled as usual, so `make build` has most of it already.
set -euo pipefail

case " $* " in
    *' --crate-name millpond_segment '* | *' --crate-name millpond_manifest '* | *' --crate-name millpond_otlp '* | \
        *' --crate-name millpond_clickhouse '* | *' --crate-name millpond_gateway '* | \
        *' --crate-name millpond_kafka '* | *' --crate-name millpond_peer '* | *' --crate-name fuzz_'*) ;;
    *) exec "$@" ;;
esac
exec "$@" \
    -Copt-level=1 -Cdebug-assertions=on -Coverflow-checks=on \
    -Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares

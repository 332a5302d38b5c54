#!/usr/bin/env bash
# What `make fuzz` gives cargo as RUSTC_WORKSPACE_WRAPPER: compiles the crates that decode, and the targets, with the
# coverage that guides libFuzzer, with every check on. The flags are those of cargo-fuzz but for the sanitizers,
# which need a nightly compiler. Everything else is compiled as ever, so that `make build` has most of it.
set -euo pipefail

case " $* " in
    *' --crate-name millpond_segment '* | *' --crate-name millpond_manifest '* | *' --crate-name millpond_otlp '* | \
        *' --crate-name millpond_clickhouse '* | *' --crate-name fuzz_'*) ;;
    *) exec "$@" ;;
esac
exec "$@" \
    -Copt-level=1 -Cdebug-assertions=on -Coverflow-checks=on \
    -Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares

//! `cargo +nightly fuzz run read` in `segment/fuzz`, with `../testdata` as a seed corpus.
#![no_main]

#[path = "../../tests/support/mod.rs"]
mod support;

libfuzzer_sys::fuzz_target!(|data: &[u8]| support::read_anything(&bytes::Bytes::copy_from_slice(data)));

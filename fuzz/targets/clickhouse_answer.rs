//! Answers of ClickHouse, or of another server in its place. The sink accepts or rejects them the same way however the
//! network splits them, and no number in them determines an allocation. Quoted text in an exception does not decide its
//! kind.
#![no_main]

use millpond_clickhouse::{read_answer, read_exception};
use millpond_fuzz::memory;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let limit = (64 << 10) | (1_024 * data.len());
    let whole = memory::bounded(limit, || read_answer(data, data.len()));
    let bytes = memory::bounded(limit, || read_answer(data, 1));
    assert_eq!(whole, bytes);

    let text = String::from_utf8_lossy(data);
    let kind = read_exception(&text);
    let quoted: String = text.escape_default().collect();
    assert_eq!(read_exception(&format!("'{quoted}'")), "none");
    if !text.contains(['\'', '"', '`', '\\']) {
        assert_eq!(read_exception(&format!("{text} '{quoted}'")), kind);
    }
});

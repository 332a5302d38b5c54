//! A buffer's URL: a parsed URL is written as a URL of the same place.
#![no_main]

use millpond_storage::BufferUrl;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    match BufferUrl::parse(text) {
        Ok(url) => assert_eq!(BufferUrl::parse(&url.to_string()).as_ref(), Ok(&url)),
        Err(error) => assert!(error.to_string().contains("write s3://")),
    }
});

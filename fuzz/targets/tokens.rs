//! A tokens file: an error names the line of a mistake and quotes no token, and a file with a count of tokens applies
//! as a whole or not at all.
#![no_main]

use millpond_fuzz::memory::{bounded, of_toml};
use millpond_gateway::count_tokens;

const SECRET: &str = "zq-secret-token-of-a-file-zq";

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let counted = bounded(of_toml(data.len()), || count_tokens(data));
    let Ok(text) = std::str::from_utf8(data) else {
        assert!(counted.is_err());
        return;
    };
    let entry = format!("[[token]]\nname = \"zq-last\"\ntoken = \"{SECRET}\"\n");
    let longer = match count_tokens(format!("{text}\n{entry}").as_bytes()) {
        Ok(longer) => longer,
        Err(mistake) => {
            assert!(!mistake.contains(SECRET), "{mistake}");
            return;
        }
    };
    // The shortened text may not be a valid file: it may lack a token or end inside a table.
    let Ok(shorter) = counted else { return };
    assert_eq!(longer, shorter + 1);
    let with_count = |rest: &str| count_tokens(format!("count = {longer}\n{text}\n{rest}").as_bytes());
    // Unless the text has a count itself, the file is complete with the entry and incomplete without it.
    if let Ok(whole) = with_count(&entry) {
        assert_eq!(whole, longer);
        assert!(with_count("").is_err());
    }
});

//! A tokens file: a mistake names its line and quotes no token, and a file that says how many tokens it has is taken whole or not at all.
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
    match (&counted, count_tokens(format!("{text}\n{entry}").as_bytes())) {
        // The entry may have ended a string of the text's.
        (Ok(before), Ok(after)) => assert_eq!(after, before + 1),
        (_, Err(mistake)) => assert!(!mistake.contains(SECRET), "{mistake}"),
        (Err(_), Ok(after)) => assert!(after > 0),
    }
    // Cut anywhere, a file that says its count is refused.
    if let Ok(tokens) = counted.filter_without_count(text) {
        let whole = format!("count = {}\n{text}\n{entry}", tokens + 1);
        assert_eq!(count_tokens(whole.as_bytes()), Ok(tokens + 1));
        let half = format!("count = {}\n{text}\n", tokens + 1);
        assert!(count_tokens(half.as_bytes()).is_err());
    }
});

/// Keeps to texts that do not say their count themselves.
trait WithoutCount {
    fn filter_without_count(self, text: &str) -> Result<usize, String>;
}

impl WithoutCount for Result<usize, String> {
    fn filter_without_count(self, text: &str) -> Result<usize, String> {
        if text.contains("count") || text.contains("zq-last") {
            return Err(String::new());
        }
        self
    }
}

//! A settings file: the parsed settings are written and parsed again, and no error quotes a value.
#![no_main]

#[path = "../../cli/src/settings_file.rs"]
mod settings_file;

use millpond_fuzz::memory::{bounded, of_toml};
use settings_file::parse;

const TABLES: [&str; 2] = ["gateway", "consume"];
const SECRET: &str = "zqSecretOfAFilezq";

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    if let Ok(settings) = bounded(of_toml(data.len()), || parse(text, &TABLES)) {
        let mut written: Vec<_> = settings.iter().map(|setting| (&setting.table, setting)).collect();
        written.sort_by_key(|(table, _)| table.is_some());
        let mut again = toml::Table::new();
        for (table, setting) in written {
            let value = toml::Value::String(setting.value.clone());
            let place = match table {
                None => &mut again,
                Some(table) => {
                    let inner = again.entry(table.clone());
                    let inner = inner.or_insert_with(|| toml::Table::new().into());
                    inner.as_table_mut().expect("no setting has a table's name")
                }
            };
            place.insert(setting.key.clone(), value);
        }
        let mut read = parse(&again.to_string(), &TABLES).expect("the written text");
        let mut settings = settings;
        // The written text has other lines.
        for setting in read.iter_mut().chain(&mut settings) {
            setting.line = 0;
        }
        read.sort_by(|a, b| (&a.table, &a.key).cmp(&(&b.table, &b.key)));
        settings.sort_by(|a, b| (&a.table, &a.key).cmp(&(&b.table, &b.key)));
        assert_eq!(read, settings);
    }
    // The same text with a secret as the value of its last line.
    let with_secret = format!("clickhouse_password = \"{SECRET}\"\n{text}\notlp_headers = {SECRET}\n");
    if let Err(error) = parse(&with_secret, &TABLES) {
        assert!(!error.contains(SECRET), "{error}");
    }
});

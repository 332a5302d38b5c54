//! The file of `--unique`: the streams whose repeated events the consumer drops, by which key, and within which window.

use crate::list_file;
use crate::units::Time;
use anyhow::{Context, anyhow, ensure};
use millpond_gateway::is_for_otlp;
use millpond_manifest::UniqueSetting;
use millpond_manifest::cursor::UniqueSettings;
use serde::Deserialize;
use std::path::Path;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    unique: Vec<Unique>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Unique {
    stream: String,
    key: Vec<String>,
    window: String,
}

/// Reads a file. `has_table`: returns true for the streams of events that the consumer reads.
pub(crate) fn read(path: &Path, has_table: impl Fn(&str) -> bool) -> anyhow::Result<UniqueSettings> {
    list_file::read("--unique", path, |text| parse(text, has_table))
}

/// Reads the keys of a file by their streams.
pub(crate) fn keys(path: &Path) -> anyhow::Result<Vec<(String, Vec<String>)>> {
    let settings = list_file::read("--unique", path, |text| parse(text, |_| true))?;
    for stream in settings.keys() {
        ensure!(
            !is_for_otlp(stream),
            "--unique {}: stream {stream} holds OTLP, whose records have no keys: name streams of events",
            path.display()
        );
    }
    let settings = settings.into_iter();
    Ok(settings.map(|(stream, setting)| (stream, setting.key)).collect())
}

fn parse(text: &str, has_table: impl Fn(&str) -> bool) -> anyhow::Result<UniqueSettings> {
    let File { unique } = toml::from_str(text)?;
    let mut settings = UniqueSettings::new();
    for Unique { stream, key, window } in unique {
        let of = || format!("stream {stream}");
        ensure!(
            has_table(&stream),
            "stream {stream} has no table of events: name it in the file of --event-tables, or leave it out here"
        );
        let window: Time = window
            .parse()
            .map_err(|error: String| anyhow!(error))
            .with_context(of)?;
        let window_ms = u64::try_from(window.0.as_millis()).unwrap_or(u64::MAX);
        let setting = UniqueSetting { key, window_ms };
        setting.check().map_err(|error| anyhow!(error)).with_context(of)?;
        let other = settings.insert(stream.clone(), setting);
        ensure!(
            other.is_none(),
            "stream {stream} is there twice: give one key and one window"
        );
    }
    Ok(settings)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORDERS: &str =
        "[[unique]]\nstream = \"events.order\"\nkey = [\"event_id\", \"user.id\"]\nwindow = \"8h\"\n";

    #[test]
    fn a_file_names_keys_and_windows() {
        let settings = parse(ORDERS, |_| true).unwrap();
        let expected = UniqueSetting {
            key: vec!["event_id".into(), "user.id".into()],
            window_ms: 8 * 60 * 60 * 1_000,
        };
        assert_eq!(
            settings.into_iter().collect::<Vec<_>>(),
            [("events.order".to_owned(), expected)]
        );
    }

    #[test]
    fn a_wrong_file_says_where() {
        for (text, words) in [
            (String::new(), "unique"),
            (ORDERS.repeat(2), "events.order is there twice"),
            (ORDERS.replace("8h", "8 hats"), "stream events.order"),
            (ORDERS.replace("8h", "1ms"), "1s to 366days"),
            (ORDERS.replace("user.id", "user..id"), "is not a path"),
            (ORDERS.replace("[\"event_id\", \"user.id\"]", "[]"), "0 paths"),
            (format!("{ORDERS}table = 1"), "table"),
        ] {
            let error = format!("{:#}", parse(&text, |_| true).unwrap_err());
            assert!(error.contains(words), "{error}");
        }
        let error = parse(ORDERS, |_| false).unwrap_err().to_string();
        assert!(error.contains("--event-tables"), "{error}");
    }
}

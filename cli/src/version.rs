//! `--version`: the versions of the program and of the formats that it writes.

use millpond_clickhouse::SCHEMA_VERSION;
use millpond_manifest::{
    BUFFER_VERSION, CLIENTS_VERSION, CURSOR_VERSION, FORMAT_VERSION as OBJECT_FORMAT, Manifest, Object as _,
};
use millpond_segment::FORMAT_VERSION as SEGMENT_FORMAT;

/// The program's version, and a line per format. `design/compatibility.md` has the promises behind them.
pub(crate) fn long() -> String {
    format!(
        "{}\n\
         segments: format {SEGMENT_FORMAT}\n\
         buffer, pages, cursors, dead letters, snapshots of keys: format {OBJECT_FORMAT}\n\
         manifest: format {OBJECT_FORMAT}, with numbered requests {CLIENTS_VERSION}, with sources {manifest}\n\
         buffers that route streams by key: format {BUFFER_VERSION}\n\
         cursors of consumers with --unique: format {CURSOR_VERSION}\n\
         rows in ClickHouse: schema version {SCHEMA_VERSION}",
        env!("CARGO_PKG_VERSION"),
        manifest = Manifest::VERSION_MAX,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_long_form_names_the_formats_and_the_short_one_is_a_line() {
        let command = crate::Cli::command();
        assert_eq!(
            command.render_version(),
            format!("millpond {}\n", env!("CARGO_PKG_VERSION"))
        );
        assert_eq!(command.render_long_version(), format!("millpond {}\n", long()));
    }

    #[test]
    fn the_versions_are_those_that_compatibility_is_promised_for() {
        let promised = include_str!("../../design/compatibility.md");
        let row = |object: &str, version: &str| {
            assert!(
                promised.contains(&format!("| {object} | {version} |")),
                "design/compatibility.md has no version {version} of {object}"
            );
        };
        row("segment", &SEGMENT_FORMAT.to_string());
        for object in ["buffer", "page", "cursor", "dead letter", "snapshot of keys"] {
            row(object, &OBJECT_FORMAT.to_string());
        }
        row(
            "manifest",
            &format!(
                "{OBJECT_FORMAT}, with numbered requests {CLIENTS_VERSION}, with sources {}",
                Manifest::VERSION_MAX
            ),
        );
        row("buffer that routes streams by key", &BUFFER_VERSION.to_string());
        row(
            "cursor of a consumer with `--unique`",
            &CURSOR_VERSION.to_string(),
        );
        row("rows in ClickHouse", &SCHEMA_VERSION.to_string());
    }
}

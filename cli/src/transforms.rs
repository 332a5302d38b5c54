//! The file of `--transform`: the programs that make rows from the events of streams. And `millpond transform`, which tries them.

use crate::list_file;
use crate::output::{inline, say};
use anyhow::{Context, anyhow, ensure};
use millpond_clickhouse::transform::{Made, Transform};
use millpond_clickhouse::{EventTable, Signal};
use millpond_runtime::{Environment as _, SystemEnvironment};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::io::Read as _;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tracing::warn;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    stream: Streams,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Streams {
    transform: Vec<TransformOf>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TransformOf {
    stream: String,
    program: Option<String>,
    file: Option<PathBuf>,
    max_event_bytes: Option<NonZeroUsize>,
}

/// Bytes of a program: as many as the file with the list may have.
const PROGRAM_MAX: u64 = 4 << 20;

/// Reads a file and adds its programs to the tables of their streams.
pub(crate) fn read(path: &Path, tables: &mut [EventTable]) -> anyhow::Result<()> {
    let programs = programs(path, |stream| tables.iter().any(|events| events.stream == stream))?;
    for (stream, transform) in programs {
        let of_stream = tables.iter_mut().find(|events| events.stream == stream);
        of_stream.expect("each program has a table").transform = Some(transform);
    }
    Ok(())
}

fn programs(path: &Path, has_table: impl Fn(&str) -> bool) -> anyhow::Result<BTreeMap<String, Transform>> {
    let directory = path.parent().unwrap_or(Path::new(""));
    list_file::read("--transform", path, |text| parse(text, directory, has_table))
}

fn parse(
    text: &str,
    directory: &Path,
    has_table: impl Fn(&str) -> bool,
) -> anyhow::Result<BTreeMap<String, Transform>> {
    let File { stream: streams } = toml::from_str(text)?;
    let mut transforms = BTreeMap::new();
    for TransformOf {
        stream,
        program,
        file,
        max_event_bytes,
    } in streams.transform
    {
        ensure!(
            Signal::of_stream(&stream).is_none(),
            "stream {stream} is for OTLP: a transform is for a stream of JSON events"
        );
        ensure!(
            has_table(&stream),
            "stream {stream} has no table of events: name it in the file of --event-tables, or leave it out here"
        );
        let of = || format!("stream {stream}");
        let (name, source) = match (program, file) {
            (Some(program), None) => (format!("program of {stream}"), program),
            (None, Some(file)) => {
                let source = source(&directory.join(&file)).with_context(of)?;
                (file.display().to_string(), source)
            }
            _ => return Err(anyhow!("give either a program or a file")).with_context(of),
        };
        let compiled = Transform::new(&name, &source);
        let compiled = compiled.map_err(|error| anyhow!("{name}: {}", error.trim()));
        let (transform, warnings) = compiled.with_context(of)?;
        let transform = match max_event_bytes {
            Some(bytes) => transform.with_event_bytes_max(bytes.get()),
            None => transform,
        };
        if let Some(warnings) = warnings {
            warn!("--transform, stream {stream}, {name}: {}", warnings.trim());
        }
        ensure!(
            transforms.insert(stream.clone(), transform).is_none(),
            "stream {stream} is there twice: give it one program"
        );
    }
    Ok(transforms)
}

fn source(file: &Path) -> anyhow::Result<String> {
    let unread = || format!("{}: cannot be read", file.display());
    let opened = std::fs::File::open(file).with_context(unread)?;
    let mut text = String::new();
    opened
        .take(PROGRAM_MAX + 1)
        .read_to_string(&mut text)
        .with_context(unread)?;
    let is_small = text.len() as u64 <= PROGRAM_MAX;
    ensure!(is_small, "{}: is larger than 4 MiB", file.display());
    Ok(text)
}

/// A program and events to try it with.
#[derive(Debug, clap::Args)]
pub(crate) struct TransformArgs {
    /// TOML file with the programs, as for `millpond consume`.
    #[arg(long, env = "MILLPOND_TRANSFORM", value_name = "FILE")]
    transform: PathBuf,

    /// The stream whose program to run, such as events.signup.
    #[arg(long, value_name = "STREAM")]
    stream: String,

    /// A file with events: JSON values, one after the other, at most 64 MiB. Default: standard input.
    #[arg(value_name = "EVENTS")]
    events: Option<PathBuf>,
}

/// Bytes of the events.
const EVENTS_MAX: u64 = 64 << 20;

/// Prints the row of each event, and on standard error what became of the others. Exits 1 if a row is missing.
pub(crate) fn run(args: &TransformArgs) -> anyhow::Result<ExitCode> {
    let TransformArgs {
        transform: path,
        stream,
        events,
    } = args;
    let programs = programs(path, |_| true)?;
    let transform = programs.get(stream).with_context(|| {
        format!(
            "--transform {}: has no program for stream {stream}",
            path.display()
        )
    })?;
    let mut text = Vec::new();
    let name = || {
        events
            .as_ref()
            .map_or("standard input".to_owned(), |file| file.display().to_string())
    };
    let read = match events {
        Some(file) => {
            std::fs::File::open(file).and_then(|file| file.take(EVENTS_MAX + 1).read_to_end(&mut text))
        }
        None => std::io::stdin().take(EVENTS_MAX + 1).read_to_end(&mut text),
    };
    read.with_context(|| format!("{}: cannot be read", name()))?;
    ensure!(
        text.len() as u64 <= EVENTS_MAX,
        "{}: is larger than 64 MiB; give fewer events",
        name()
    );

    let (mut rows, mut dropped, mut failed) = (0_u64, 0_u64, 0_u64);
    let mut told = Ok(());
    millpond_clickhouse::transform::each(transform, &text, SystemEnvironment.now_us(), |number, made| {
        match made {
            Made::Row(row) => {
                rows += 1;
                told = say!("{row}");
            }
            Made::Dropped => dropped += 1,
            Made::Failed(reason) => {
                failed += 1;
                eprintln!("event {number}: {}", inline(&reason));
            }
        }
        told.is_ok()
    });
    told?;
    eprintln!("{rows} rows, {dropped} events dropped, {failed} events failed");
    Ok(if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

#[cfg(all(test, feature = "transform"))]
mod tests {
    use super::*;

    const SIGNUP: &str = "[[stream.transform]]\nstream = \"events.signup\"\nprogram = \".a = 1\"\n";

    #[test]
    fn a_file_names_programs() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR"));
        let text = format!("{SIGNUP}[[stream.transform]]\nstream = \"events.click\"\nfile = \"none.vrl\"");
        let error = format!("{:#}", parse(&text, directory, |_| true).unwrap_err());
        assert!(
            error.contains("stream events.click") && error.contains("none.vrl: cannot be read"),
            "{error}"
        );
        let transforms = parse(SIGNUP, directory, |_| true).unwrap();
        assert_eq!(transforms.into_keys().collect::<Vec<_>>(), ["events.signup"]);
    }

    #[test]
    fn a_wrong_file_says_where() {
        for (text, words) in [
            (String::new(), "stream"),
            ("[stream]\n".to_owned(), "transform"),
            (SIGNUP.repeat(2), "events.signup is there twice"),
            (SIGNUP.replace("program", "programme"), "programme"),
            (
                SIGNUP.replace("program = \".a = 1\"", ""),
                "either a program or a file",
            ),
            (format!("{SIGNUP}file = \"a.vrl\""), "either a program or a file"),
            (format!("{SIGNUP}max_event_bytes = 0"), "max_event_bytes"),
            (SIGNUP.replace("events.signup", "otlp.logs"), "is for OTLP"),
            (
                SIGNUP.replace(".a = 1", ".a = now()"),
                "now is not available in transforms",
            ),
            (
                SIGNUP.replace(".a = 1", ".a = to_int(.b)"),
                "program of events.signup: ",
            ),
        ] {
            let error = format!("{:#}", parse(&text, Path::new(""), |_| true).unwrap_err());
            assert!(error.contains(words), "{error}");
        }
        let error = parse(SIGNUP, Path::new(""), |_| false).unwrap_err().to_string();
        assert!(error.contains("--event-tables"), "{error}");
    }
}

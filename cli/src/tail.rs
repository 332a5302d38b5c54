//! `millpond tail`: prints records as producers commit them.

mod text;

use crate::output::{self, inline, plain};
use crate::store::StoreArgs;
use crate::units::{Time, count, pause};
use anyhow::bail;
use millpond_operate::Target;
use millpond_operate::patience::Patience;
use millpond_operate::tail::{Content, Found, Options, Show, Tail};
use regex::Regex;
use std::io::{self, BufWriter, Stdout, Write};

/// The flags of `millpond tail`.
#[derive(Debug, clap::Args)]
pub(crate) struct TailArgs {
    /// Print only this stream, such as otlp.logs. May be given more than once. Default: all streams.
    #[arg(long, value_name = "NAME")]
    stream: Vec<String>,

    /// Print only this shard. Default: all shards.
    #[arg(long, value_name = "N")]
    shard: Option<u32>,

    /// Start at latest, earliest, a sequence, or the first segment committed at or after a time: 5m for five minutes ago, or
    /// 2026-11-22T10:00Z.
    #[arg(long, value_name = "WHERE", default_value = "latest")]
    from: Target,

    /// Print only records whose line matches this regular expression.
    #[arg(long, value_name = "REGEX")]
    grep: Option<Regex>,

    /// Print one JSON object per record: its place, its time of reception, and the record with OTLP's names, or the event.
    #[arg(long)]
    json: bool,

    /// Exit at the end of the log instead of waiting for more.
    #[arg(long)]
    no_follow: bool,

    /// Interval between two reads of the manifest. 1s costs one GET per second and shard.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = pause)]
    poll_interval: Time,

    #[command(flatten, next_help_heading = "Buffer")]
    store: StoreArgs,
}

/// Prints records until the process is stopped, its output is closed or, with `--no-follow`, the log ends. It outlasts an
/// outage of the store.
pub(crate) async fn run(args: TailArgs) -> anyhow::Result<()> {
    let options = Options {
        streams: args.stream,
        shard: args.shard,
        from: args.from,
    };
    let mut tail = Tail::open(args.store.open(false).await?, options).await?;
    let mut printer = Printer {
        out: BufWriter::new(io::stdout()),
        json: args.json,
        grep: args.grep,
    };
    let mut patience = Patience::default();
    let mut named = false;
    loop {
        match tail.poll(&mut printer).await {
            Ok(()) if args.no_follow => return report_missing(&tail),
            Ok(()) => {
                patience.over();
                if let Some(name) = tail.missing_stream().filter(|_| !named) {
                    // A mistyped name would otherwise wait without a word.
                    eprintln!(
                        "millpond: there is no stream {} yet: waiting for it (`millpond status` lists the streams)",
                        inline(name)
                    );
                    named = true;
                }
            }
            Err(error) if args.no_follow => return Err(error),
            Err(error) => patience.with(error)?,
        }
        tokio::time::sleep(args.poll_interval.0).await;
    }
}

/// Fails for a stream that does not exist: a mistyped name, or a stream still to come.
fn report_missing(tail: &Tail) -> anyhow::Result<()> {
    if let Some(name) = tail.missing_stream() {
        bail!("there is no stream {name}: `millpond status` lists the streams");
    }
    if tail.damaged_parts() > 0 {
        bail!(
            "{} could not be read, see above",
            count(tail.damaged_parts(), "part")
        );
    }
    Ok(())
}

/// Prints records that match.
struct Printer {
    out: BufWriter<Stdout>,
    json: bool,
    grep: Option<Regex>,
}

impl Show for Printer {
    fn record(&mut self, record: &Found<'_>) -> anyhow::Result<()> {
        let line = match &record.content {
            Content::Record(record) => text::line(record),
            // JSON has line ends and tabs between tokens only.
            Content::Row(row) => row.replace(['\n', '\r', '\t'], " "),
            Content::Payload(payload) => payload.clone(),
            Content::Unreadable(reason) => format!("a message that cannot be read: {reason}"),
        };
        if self.grep.as_ref().is_some_and(|grep| !grep.is_match(&line)) {
            return Ok(());
        }
        let written = match self.json {
            true => writeln!(self.out, "{}", plain(&record.json().to_string())),
            false => writeln!(self.out, "{}", inline(&line)),
        };
        written.or_else(output::failed)
    }

    fn flush(&mut self) -> anyhow::Result<()> {
        self.out.flush().or_else(output::failed)
    }
}

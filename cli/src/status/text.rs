//! The state of a buffer as text for people.

use crate::buffer::rows_go;
use crate::output::inline;
use crate::units::{count, grouped, readable, whole};
use millpond_operate::status::{Consumer, Position, Routed, Shard, State, Status};
use std::fmt::{self, Display, Write as _};
use std::time::Duration;

/// The columns of a consumer's table, below the tables.
const LEGEND: &str = "
  behind: records that are committed and not acknowledged; stored: their compressed size; for: the age of the oldest
  next: the sequence to acknowledge next; read: records acknowledged per second since the previous look (--watch)
";

/// The state of a buffer as lines of text.
pub(super) fn of(status: &Status) -> String {
    let mut text = String::new();
    write(&mut text, status).expect("writing to a string succeeds");
    text
}

fn write(text: &mut String, status: &Status) -> fmt::Result {
    writeln!(
        text,
        "{}  buffer {}  at {}",
        status.url, status.buffer_id, status.at
    )?;
    for Routed { stream, key, shards } in &status.routes {
        writeln!(text, "{}", inline(&rows_go(stream, *shards, key)))?;
    }
    for shard in &status.shards {
        write_shard(text, shard, status.unreadable.is_empty())?;
    }
    let consumers = status.shards.iter().flat_map(|shard| &shard.consumers);
    if consumers.map(|consumer| consumer.streams.len()).sum::<usize>() > 0 {
        text.push_str(LEGEND);
    }
    for what in &status.unreadable {
        writeln!(text, "\ncannot be read: {}", inline(what))?;
    }
    Ok(())
}

/// `all_there`: every part of the buffer could be read.
fn write_shard(text: &mut String, shard: &Shard, all_there: bool) -> fmt::Result {
    let Shard { shard: number, .. } = shard;
    let (Some(oldest), Some(newest)) = (shard.oldest_seconds, shard.newest_seconds) else {
        let next = shard.next_sequence;
        writeln!(
            text,
            "\nshard {number:04}: empty, the next segment is sequence {next}"
        )?;
        return write_consumers(text, shard, all_there);
    };
    let committed = match (age(oldest), age(newest)) {
        (oldest, newest) if oldest == newest => newest,
        (oldest, newest) => format!("{oldest} to {newest}"),
    };
    writeln!(
        text,
        "\nshard {number:04}: {} (sequences {}..{}), {}, committed {} ago, producers that committed in the last minute: {}",
        count(shard.segments, "segment"),
        shard.first_sequence,
        shard.next_sequence,
        readable(shard.stored_bytes),
        committed,
        shard.producers_active
    )?;
    if let Some(leader) = &shard.leader {
        writeln!(
            text,
            "leader: {} (producer {}), committing for {}",
            inline(&leader.address),
            leader.producer,
            count(leader.followers as u64, "other"),
        )?;
    }
    let rows = shard.streams.iter().map(|s| {
        [
            s.stream.clone(),
            grouped(s.amount.records),
            readable(s.amount.stored_bytes),
            readable(s.amount.raw_bytes),
            format!("{}/s", rounded(s.records_per_second)),
            format!("{}/s", readable(whole(s.stored_bytes_per_second))),
        ]
    });
    table(
        text,
        ["stream", "records", "stored", "raw", "last minute", ""],
        rows.collect(),
    )?;
    write_consumers(text, shard, all_there)
}

fn write_consumers(text: &mut String, shard: &Shard, all_there: bool) -> fmt::Result {
    if shard.consumers.is_empty() && all_there {
        writeln!(text, "\n  no consumer has read this shard: everything is kept")?;
    }
    for consumer in &shard.consumers {
        write_consumer(text, consumer)?;
    }
    Ok(())
}

fn write_consumer(text: &mut String, consumer: &Consumer) -> fmt::Result {
    writeln!(text, "\n  consumer {}: {}", consumer.consumer, state(consumer))?;
    let rows = consumer.streams.iter().map(|s| {
        [
            s.stream.clone(),
            grouped(s.lag_records),
            readable(s.lag_stored_bytes),
            age(s.lag_seconds),
            s.next.to_string(),
            s.records_per_second
                .map_or_else(String::new, |rate| format!("{}/s", rounded(rate))),
        ]
    });
    table(
        text,
        ["stream", "behind", "stored", "for", "next", "read"],
        rows.collect(),
    )?;
    for reason in &consumer.waiting_for {
        if let Some(why) = reason.strip_prefix("it ended: ") {
            writeln!(text, "    ended: {}", inline(why))?;
        } else if let Some(why) = reason.strip_prefix("it falls behind: ") {
            writeln!(text, "    falls behind: {}", inline(why))?;
        } else {
            writeln!(text, "    waits for: {}", inline(reason))?;
        }
    }
    if !consumer.shares_tables_with.is_empty() {
        let others = consumer.shares_tables_with.join(", ");
        writeln!(text, "    writes to the same tables as: {others}")?;
    }
    for Position { stream, unique, .. } in &consumer.streams {
        if let Some(unique) = unique {
            writeln!(
                text,
                "    dropped {} of {stream}: repeated {} within {}, from sequence {} on",
                count(unique.duplicates, "duplicate"),
                inline(&unique.key.join(" + ")),
                age(unique.window_seconds),
                unique.since
            )?;
        }
    }
    for Position { stream, refused, .. } in &consumer.streams {
        for reason in refused {
            writeln!(
                text,
                "    bisects a refused batch of {stream}: {}",
                inline(reason)
            )?;
        }
    }
    if consumer.dead_letters > 0 {
        let last = consumer
            .last_dead_letter
            .as_deref()
            .unwrap_or("it cannot be read");
        writeln!(
            text,
            "    {} (`millpond dead-letters list`), the newest: {}",
            count(consumer.dead_letters as u64, "dead letter"),
            inline(last)
        )?;
    }
    if consumer.skipped > 0 {
        writeln!(
            text,
            "    {} skipped by an operator (`millpond consumer list`)",
            count(consumer.skipped as u64, "part")
        )?;
    }
    Ok(())
}

fn state(consumer: &Consumer) -> String {
    let owner = inline(consumer.owner.as_deref().unwrap_or_default());
    let lease = consumer.lease_seconds.unwrap_or_default();
    let state = match consumer.state {
        State::Running => format!("run by {owner}, lease for {}", age(lease)),
        State::Expired => format!("left by {owner}, whose lease ran out {} ago", age(-lease)),
        State::Stopped => "stopped".to_owned(),
        State::Abandoned => "stopped with batches in doubt".to_owned(),
    };
    format!(
        "{state}; epoch {}, into {}",
        consumer.epoch,
        inline(&consumer.sink)
    )
}

/// Rows under their headings: the first column left-aligned, the others right-aligned.
fn table<const N: usize>(text: &mut String, heads: [&str; N], rows: Vec<[String; N]>) -> fmt::Result {
    let widths: [usize; N] = std::array::from_fn(|column| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([heads[column].len()]).max().unwrap_or(0)
    });
    let heads = heads.map(str::to_owned);
    for row in std::iter::once(heads).chain(rows) {
        let mut line = format!("    {:<width$}", row[0], width = widths[0]);
        for (cell, width) in row.iter().zip(widths).skip(1) {
            write!(line, "  {cell:>width$}")?;
        }
        writeln!(text, "{}", line.trim_end())?;
    }
    Ok(())
}

/// `850ms`, `12s`, `3h 20m`: two units at most.
fn age(seconds: f64) -> String {
    let age = Duration::try_from_secs_f64(seconds).unwrap_or_default();
    if age < Duration::from_secs(1) {
        return format!("{}ms", age.as_millis());
    }
    let exact = humantime::format_duration(Duration::from_secs(age.as_secs())).to_string();
    exact.split(' ').take(2).collect::<Vec<_>>().join(" ")
}

fn rounded(rate: f64) -> impl Display {
    grouped(whole(rate))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_age_has_two_units_at_most() {
        for (seconds, text) in [
            (0.0, "0ms"),
            (0.8504, "850ms"),
            (12.9, "12s"),
            (12_075.0, "3h 21m"),
        ] {
            assert_eq!(age(seconds), text);
        }
        assert_eq!(age(90_061.0), "1day 1h");
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut text = String::new();
        let row = |name: &str, number: &str| [name.to_owned(), number.to_owned()];
        table(
            &mut text,
            ["stream", "records"],
            vec![row("otlp.logs", "7"), row("s", "12,345,678")],
        )
        .unwrap();
        let expected = "    stream        records\n    otlp.logs           7\n    s          12,345,678\n";
        assert_eq!(text, expected);
    }
}

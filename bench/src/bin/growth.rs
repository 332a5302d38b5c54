//! `make bench-growth`: the cost of a commit and a poll at a backlog of 0, a thousand, a hundred thousand and a million
//! segments, as one line of JSON each. The command fails if a million costs more than twice as much as a thousand.
//!
//! Real producers commit over an in-memory store that counts bytes. The manifest's pure functions build the backlog,
//! with real pages in the store. The backlog keeps its length: before each measurement the log is trimmed to that many
//! segments, like a garbage collector behind a consumer. The cost of a commit depends on the length of the tail, so
//! every result is an average over a whole cycle of [`TAIL_MAX`] commits, from one sealing to the next.

use millpond_runtime::{Environment as _, SystemEnvironment};
use std::collections::HashSet;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use clap::Parser;
use millpond_manifest::cas::{self, Reread};
use millpond_manifest::manifest::TAIL_MAX;
use millpond_manifest::{
    Buffer, Claim, Entry, Manifest, NewPart, NewSegment, Object, Page, ProducerId, Snapshot, Swap, layout,
};
use millpond_producer::{Append, Config, Producer};
use millpond_segment::Encoding;
use millpond_storage::unreliable::Faults;
use millpond_storage::{RequestCounts, Store, Version};
use nix::time::{ClockId, clock_gettime};
use prometheus_client::registry::Registry;
use serde::Serialize;
use ulid::Ulid;
use uuid::Uuid;

const BACKLOGS: [u64; 4] = [0, SMALL, 100_000, LARGE];
/// The baseline for [`LARGE`].
const SMALL: u64 = 1_000;
const LARGE: u64 = 1_000_000;
/// Maximum ratio of the cost at [`LARGE`] to that at [`SMALL`].
const RATIO_MAX: f64 = 2.0;

/// Sequences from one sealing to the next.
const CYCLE: u64 = TAIL_MAX as u64;
/// Number of measurements per cycle, evenly spaced, the first and last half a step from a sealing.
const POINTS: u64 = 32;
const STEP: u64 = CYCLE / POINTS;
/// Commits at each point before a producer stops reading the manifest first.
const UNEXPECTING_MAX: u64 = STEP - 3;
/// How often the CPU time of a commit is taken at each point; the median counts.
const REPEATS: usize = 51;

const SHARD: u32 = 0;
const STREAM: &str = "otlp.logs";
/// The producer of the backlog.
const OTHERS: ProducerId = ProducerId([0x77; 16]);
/// Maximum segments in one of its commits.
const OTHERS_SEGMENTS_MAX: u64 = 512;

/// The printed results of a backlog.
#[derive(Debug, Serialize)]
struct Line {
    /// Segments in the log.
    backlog_segments: u64,
    /// Bytes of manifest and page put for a commit, when nobody else commits meanwhile.
    commit_bytes_written: u64,
    /// Bytes of manifest read per commit when two producers alternate: each reads the other's commit first.
    commit_bytes_read: u64,
    /// Bytes of manifest and page put for a commit when two producers alternate. A producer that does not expect the other's
    /// commit puts the manifest twice.
    contended_bytes_written: u64,
    /// Bytes of manifest and page that a consumer reads for a commit, when it polls after each.
    poll_bytes: u64,
    /// Thread CPU time to read the manifest, commit a segment and write it.
    commit_cpu_us: f64,
}

/// Measure what a commit and a poll cost as the backlog grows.
#[derive(Debug, Parser)]
struct Flags {
    /// Measure the two smallest backlogs only, and judge nothing.
    #[arg(long)]
    short: bool,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run(&Flags::parse()).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("growth: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Returns true if a large backlog costs little more than a small one.
async fn run(flags: &Flags) -> anyhow::Result<bool> {
    if cfg!(debug_assertions) {
        eprintln!("growth: this is a debug build, so its CPU times mean nothing");
    }
    let mut lines = Vec::new();
    let backlogs = if flags.short { &BACKLOGS[..2] } else { &BACKLOGS };
    for &backlog in backlogs {
        let line = measure(backlog)
            .await
            .with_context(|| format!("at a backlog of {backlog}"))?;
        println!("{}", serde_json::to_string(&line)?);
        lines.push(line);
    }
    if flags.short {
        return Ok(true);
    }
    let of = |backlog| lines.iter().find(|line| line.backlog_segments == backlog);
    let (small, large) = of(SMALL).zip(of(LARGE)).context("a backlog is missing")?;
    Ok(judge(small, large))
}

/// Reports which costs of the large backlog are too high. Returns whether none is.
fn judge(small: &Line, large: &Line) -> bool {
    let figures = |line: &Line| {
        [
            ("commit_bytes_written", line.commit_bytes_written as f64),
            ("commit_bytes_read", line.commit_bytes_read as f64),
            ("contended_bytes_written", line.contended_bytes_written as f64),
            ("poll_bytes", line.poll_bytes as f64),
            ("commit_cpu_us", line.commit_cpu_us),
        ]
    };
    let mut held = true;
    for ((name, small), (_, large)) in figures(small).into_iter().zip(figures(large)) {
        let ratio = large / small;
        if ratio.is_nan() || ratio > RATIO_MAX {
            eprintln!(
                "growth: {name} at {LARGE} segments is {large}, {ratio:.2} times the {small} at {SMALL}: at most {RATIO_MAX} times is allowed"
            );
            held = false;
        }
    }
    held
}

async fn measure(backlog: u64) -> anyhow::Result<Line> {
    let store = Store::memory();
    let buffer = Buffer::new(SystemEnvironment.uuid(), SHARD + 1);
    let buffer = cas::create_once(&store, layout::BUFFER, buffer).await?;
    let mut others = Others {
        store: own(&store),
        backlog,
        made: 0,
        sealing: Duration::ZERO,
    };
    others.begin(buffer.id).await?;
    let alone = Measured::start(&store).await?;
    let other = Measured::start(&store).await?;
    let mut reader = Reader::start(&store).await?;
    others.sealing = Duration::ZERO;
    let pages_before = reader.page_bytes;

    let (mut written, mut read, mut contended_written, mut polled) = (0, 0, 0, 0);
    let mut cpu = Duration::ZERO;
    for _ in 0..POINTS {
        let mut taken = 0;
        let uncontended = loop {
            let requests = alone.commit().await?;
            taken += 1;
            if requests.bytes_read == 0 {
                break requests;
            }
            ensure!(
                taken < UNEXPECTING_MAX,
                "a producer that is alone still reads: {requests:?}"
            );
        };
        reader.poll().await?;
        written += uncontended.bytes_written - reader.newest()?.size;
        cpu += cpu_of_commit(&reader.log.state)?;

        for producer in [&other, &alone] {
            let requests = producer.commit().await?;
            taken += 1;
            polled += reader.poll().await?;
            ensure!(
                requests.cas_committed == 1 && requests.bytes_read > 0,
                "{requests:?}"
            );
            contended_written += requests.bytes_written - reader.newest()?.size;
            read += requests.bytes_read;
        }
        others.go_on(STEP - taken).await?;
    }
    reader.poll().await?;
    // Each page of the cycle is written once and read once.
    let pages = (reader.page_bytes - pages_before) / CYCLE;
    let cpu_us = |spent: Duration, commits: u64| spent.as_secs_f64() * 1e6 / commits as f64;
    Ok(Line {
        backlog_segments: backlog,
        commit_bytes_written: written / POINTS + pages,
        commit_bytes_read: read / (2 * POINTS),
        contended_bytes_written: contended_written / (2 * POINTS) + pages,
        poll_bytes: polled / (2 * POINTS) + pages,
        commit_cpu_us: (cpu_us(cpu, POINTS) + cpu_us(others.sealing, CYCLE)).round(),
    })
}

/// The same objects with separate request counts.
fn own(store: &Store) -> Store {
    store.behind(Faults::default()).0
}

/// A producer whose commits are measured.
struct Measured {
    store: Store,
    producer: Producer,
}

impl Measured {
    async fn start(store: &Store) -> anyhow::Result<Measured> {
        let store = own(store);
        let config = Config {
            linger: Duration::from_millis(1),
            ..Config::default()
        };
        let producer = Producer::start(store.clone(), config, &mut Registry::default()).await?;
        Ok(Measured { store, producer })
    }

    /// Commits one message in a new segment and returns the producer's requests for it.
    async fn commit(&self) -> anyhow::Result<RequestCounts> {
        let before = self.store.requests();
        let append = Append {
            stream: Arc::from(STREAM),
            encoding: Encoding::Otlp,
            payload: Bytes::from_static(b"a message"),
            records: 1,
            received_at_us: SystemEnvironment.now_us(),
            reservation: self.producer.budget().nothing(),
        };
        self.producer.append(append).await?;
        let after = self.store.requests();
        Ok(RequestCounts {
            put: after.put - before.put,
            get: after.get - before.get,
            bytes_written: after.bytes_written - before.bytes_written,
            bytes_read: after.bytes_read - before.bytes_read,
            cas_committed: after.cas_committed - before.cas_committed,
            cas_mismatch: after.cas_mismatch - before.cas_mismatch,
            ..RequestCounts::default()
        })
    }
}

/// Reads the log like a consumer.
struct Reader {
    store: Store,
    log: Snapshot<Manifest>,
    pages: HashSet<Ulid>,
    page_bytes: u64,
}

impl Reader {
    async fn start(store: &Store) -> anyhow::Result<Reader> {
        let store = own(store);
        let log = cas::read(&store, &layout::manifest(SHARD)).await?;
        let mut reader = Reader {
            store,
            log: log.context("there is no manifest")?,
            pages: HashSet::new(),
            page_bytes: 0,
        };
        reader.read_pages().await?;
        Ok(reader)
    }

    /// Returns the bytes of manifest read. The last commit is newer than the previous poll.
    async fn poll(&mut self) -> anyhow::Result<u64> {
        let before = self.store.requests().bytes_read;
        let key = layout::manifest(SHARD);
        let known: &Version = &self.log.version;
        let Reread::Changed(log) = cas::read_if_changed(&self.store, &key, known).await? else {
            bail!("a poll after a commit found nothing new");
        };
        self.log = log;
        let read = self.store.requests().bytes_read - before;
        self.read_pages().await?;
        Ok(read)
    }

    fn newest(&self) -> anyhow::Result<&Entry> {
        self.log.state.tail.last().context("nothing was committed")
    }

    /// Reads what is sealed, each page once.
    async fn read_pages(&mut self) -> anyhow::Result<()> {
        for reference in &self.log.state.pages {
            if self.pages.insert(reference.page) {
                let key = layout::page(SHARD, reference.first, reference.page);
                let page: Option<Snapshot<Page>> = cas::read(&self.store, &key).await?;
                let page = page.with_context(|| format!("{key} is missing"))?;
                self.page_bytes += page.bytes as u64;
            }
        }
        Ok(())
    }
}

/// The other processes: producers of the backlog, and the garbage collector that keeps its length.
struct Others {
    store: Store,
    backlog: u64,
    /// Number of segments created.
    made: u128,
    /// Thread CPU time of sealing.
    sealing: Duration,
}

impl Others {
    /// Creates the backlog plus half a step beyond full pages, which puts the tail at the first point of a cycle.
    async fn begin(&mut self, buffer_id: Uuid) -> anyhow::Result<()> {
        let now_ms = SystemEnvironment.now_ms();
        let empty = Manifest::new(buffer_id, SHARD).register(OTHERS, now_ms);
        let cycles = self.backlog.div_ceil(CYCLE);
        let state = self.grow(empty, cycles * CYCLE + STEP / 2).await?;
        self.swap(None, state).await
    }

    /// Adds segments to the log.
    async fn go_on(&mut self, segments: u64) -> anyhow::Result<()> {
        let found = cas::read::<Manifest>(&self.store, &layout::manifest(SHARD)).await?;
        let Snapshot { state, version, .. } = found.context("the manifest is gone")?;
        let state = self.grow(state, segments).await?;
        self.swap(Some(&version), state).await
    }

    async fn swap(&self, expected: Option<&Version>, state: Manifest) -> anyhow::Result<()> {
        let nonce = SystemEnvironment.random();
        match cas::swap(
            &self.store,
            &layout::manifest(SHARD),
            expected,
            state.stamped(nonce),
        )
        .await
        {
            Swap::Committed(_) => Ok(()),
            other => bail!("nobody else should write now: {other:?}"),
        }
    }

    /// Commits this many segments, seals each full tail, and trims the log to the backlog's length.
    async fn grow(&mut self, mut state: Manifest, segments: u64) -> anyhow::Result<Manifest> {
        let now_ms = SystemEnvironment.now_ms();
        let mut left = segments;
        while left > 0 {
            if state.tail.len() >= TAIL_MAX {
                state = self.seal(&state, now_ms).await?;
            }
            let room = CYCLE - state.tail.len() as u64;
            let count = left.min(room).min(OTHERS_SEGMENTS_MAX);
            let new: Vec<NewSegment> = (0..count).map(|_| self.segment(now_ms)).collect();
            state = commit(&state, &new, now_ms)?;
            left -= count;
            let first = state.next_sequence.saturating_sub(self.backlog);
            state = state.collect(first, now_ms.saturating_sub(3_600_000));
        }
        Ok(state)
    }

    async fn seal(&mut self, state: &Manifest, now_ms: u64) -> anyhow::Result<Manifest> {
        let name = Ulid::from_parts(now_ms, SystemEnvironment.random_u128());
        let before = thread_cpu()?;
        let sealed = state.seal(name, state.next_sequence - 1);
        let (page, sealed) = sealed.context("the tail cannot be sealed")?;
        let body = page.encode();
        self.sealing += thread_cpu()?.saturating_sub(before);
        let key = layout::page(SHARD, page.first, name);
        self.store.put_if_absent(&key, vec![body]).await?;
        Ok(sealed)
    }

    /// A segment as a gateway writes it in a second of heavy load. It is absent from the store: nobody reads it here.
    fn segment(&mut self, now_ms: u64) -> NewSegment {
        self.made += 1;
        segment(now_ms, self.made)
    }
}

fn segment(now_ms: u64, random: u128) -> NewSegment {
    let received_at_us = i64::try_from(now_ms).unwrap_or(i64::MAX / 1_000) * 1_000;
    let part = NewPart {
        stream: STREAM.to_owned(),
        encoding: Encoding::Otlp,
        offset: 32,
        length: 9_876_000,
        raw_len: 53_500_000,
        messages: 125,
        records: 125_000,
        first_received_at_us: received_at_us - 1_000_000,
        last_received_at_us: received_at_us,
    };
    NewSegment {
        segment: Ulid::from_parts(now_ms, random),
        size: 9_877_000,
        parts: vec![part],
    }
}

fn commit(state: &Manifest, segments: &[NewSegment], now_ms: u64) -> anyhow::Result<Manifest> {
    let row = state.producer(OTHERS).context("the others are not registered")?;
    let claims = [Claim::one(OTHERS, row.commit + 1, 0..segments.len())];
    Ok(*state.commit(&claims, segments, now_ms)?.state)
}

/// The median CPU time of a commit that reads the manifest first.
fn cpu_of_commit(state: &Manifest) -> anyhow::Result<Duration> {
    let bytes = state.encode();
    let now_ms = SystemEnvironment.now_ms();
    let new = [segment(now_ms, SystemEnvironment.random_u128())];
    let mut spent = Vec::with_capacity(REPEATS);
    for _ in 0..REPEATS {
        let before = thread_cpu()?;
        // The block frees everything: that is part of the cost.
        std::hint::black_box(
            commit(&Manifest::decode(&bytes)?, &new, now_ms)?
                .stamped(1)
                .encode(),
        );
        spent.push(thread_cpu()?.saturating_sub(before));
    }
    spent.sort();
    Ok(spent[spent.len() / 2])
}

#[expect(
    clippy::disallowed_methods,
    reason = "the CPU time of a thread, not the time of day"
)]
fn thread_cpu() -> anyhow::Result<Duration> {
    Ok(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(bytes: u64, commit_cpu_us: f64) -> Line {
        Line {
            backlog_segments: 0,
            commit_bytes_written: 100,
            commit_bytes_read: 100,
            contended_bytes_written: 200,
            poll_bytes: bytes,
            commit_cpu_us,
        }
    }

    #[test]
    fn at_most_twice_the_size_is_allowed() {
        let small = line(100, 10.0);
        assert!(judge(&small, &line(200, 20.0)));
        assert!(!judge(&small, &line(201, 10.0)), "bytes");
        assert!(!judge(&small, &line(100, 20.1)), "CPU time");
        assert!(!judge(&line(100, 0.0), &line(100, 0.0)), "nothing was measured");
    }
}

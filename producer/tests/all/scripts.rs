//! Runs the scripts in `producer/testdata`, which the producer in Go also runs
//! (`otel-exporter/producer/scripts_test.go`). The same commands lead to the same requests and the same states.
//! `MILLPOND_REWRITE=1` rewrites the results.

use std::fmt::Write as _;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use millpond_manifest::manifest::{
    ENTRIES_MAX, PRODUCER_EXPIRY_MS, PRODUCERS_KEPT, PRODUCERS_MAX, STREAMS_MAX, TAIL_MAX,
};
use millpond_manifest::{
    Claim, Commit, CommitRefusal, Entry, Manifest, NewPart, NewSegment, ProducerId, SourcePartition,
    SourceRow,
};
use millpond_producer::Config;
use millpond_producer::commit::{
    Answer, COMMIT_SEGMENTS_MAX, Commits, Draw, Found, Group, Landed, News, Next, Own, Settlement, Swap,
    Verdict, check_offer,
};
use millpond_producer::reads_first::{READS_FIRST, ReadsFirst};
use millpond_segment::Encoding;
use ulid::Ulid;
use uuid::Uuid;

#[derive(Clone)]
struct Stored(Manifest);

impl Found for Stored {
    type Version = u64;

    fn manifest(&self) -> &Manifest {
        &self.0
    }

    fn version(&self) -> u64 {
        self.0.stamp.version
    }
}

/// The clock, and names in the order in which they are drawn.
struct Drawn {
    clock_ms: u64,
    producers: u8,
    pages: u8,
}

impl Draw for Drawn {
    fn unix_ms(&mut self) -> u64 {
        self.clock_ms
    }

    fn nonce(&mut self) -> u64 {
        0
    }

    fn ulid(&mut self, not_before_ms: u64) -> Ulid {
        self.pages += 1;
        Ulid::from_parts(self.clock_ms.max(not_before_ms), self.pages.into())
    }

    fn producer_id(&mut self) -> ProducerId {
        self.producers += 1;
        ProducerId([self.producers; 16])
    }
}

/// The id of the producer that the script calls the other one.
const OTHER: ProducerId = ProducerId([255; 16]);

/// A claim that the producer holds for another one.
struct Held {
    claim: Claim,
    /// The segments that the other one has uploaded. Empty: its records are in the first segment of the group.
    segments: Vec<NewSegment>,
}

struct World {
    stored: Option<Manifest>,
    drawn: Drawn,
    commits: Commits<Stored>,
    reads_first: ReadsFirst,
    group: Vec<NewSegment>,
    held: Vec<Held>,
    sent: Option<Swap<u64>>,
    late: Option<Swap<u64>>,
    /// An earlier state of the manifest, which the store may show again.
    kept: Option<Manifest>,
}

impl World {
    fn new(tail_max: usize) -> World {
        let mut drawn = Drawn {
            clock_ms: 0,
            producers: 0,
            pages: 0,
        };
        World {
            stored: None,
            commits: Commits::new(Uuid::nil(), 0, tail_max, drawn.producer_id()),
            drawn,
            reads_first: ReadsFirst::default(),
            group: Vec::new(),
            held: Vec::new(),
            sent: None,
            late: None,
            kept: None,
        }
    }

    fn run(&mut self, command: &str, arguments: &[&str]) -> String {
        match (command, arguments) {
            ("start", [tail_max]) => *self = World::new(value(tail_max)),
            ("clock", [ms]) => self.drawn.clock_ms = ms.parse().unwrap(),
            ("upload", segments) if self.commits.may_grow() => {
                let new = segments.iter().map(|text| segment(text, self.drawn.clock_ms));
                self.group.extend(new);
                return format!("group: {}", names(&self.group));
            }
            ("upload", _) => return "the group must not change".into(),
            ("hold" | "share", _) if !self.commits.may_grow() => return "the group must not change".into(),
            ("hold", [of, segments @ ..]) => return self.hold(of, segments),
            ("share", [of]) => return self.hold(of, &[]),
            ("release", []) => self.held.clear(),
            ("forward", []) => return self.forward(),
            ("elsewhere", [number]) => {
                return match self.commits.landed_elsewhere(number.parse().unwrap()) {
                    true => format!("acknowledge {}", names(&std::mem::take(&mut self.group))),
                    false => "an old answer".into(),
                };
            }
            ("begin", []) => {
                self.reads_first.begin(&mut self.commits);
            }
            ("next", []) => return self.next(),
            ("read", []) => {
                let news = self.commits.read(self.stored.clone().map(Stored));
                return self.hear("read", news);
            }
            ("keep", []) => self.kept = self.stored.clone(),
            ("read", ["kept"]) => {
                let news = self.commits.read(self.kept.clone().map(Stored));
                return self.hear("read the kept state", news);
            }
            ("restored", []) => self.commits.restored(),
            ("store", [result]) => self.commits.stored(*result == "succeeds"),
            ("swap", [outcome]) => return self.swap(outcome),
            ("land", []) => {
                let late = self.late.take().expect("a late swap");
                return if self.land(&late) {
                    "it lands"
                } else {
                    "the store refuses it"
                }
                .into();
            }
            ("other", segments) => return self.commit_as(OTHER, segments),
            ("register", [id]) => self.change(|state| *state = state.register(claimant(id), 0)),
            ("claims", arguments) => return self.claims(arguments),
            ("impostor", segments) => return self.commit_as(self.commits.producer(), segments),
            ("source", [partition, next]) => {
                let row = source(partition.parse().unwrap(), next.parse().unwrap());
                self.change(|state| *state = state.set_source(None, row).unwrap());
            }
            ("forget", []) => self.change(|state| state.producers.clear()),
            ("floor", [ms]) => self.change(|state| state.orphan_floor_ms = ms.parse().unwrap()),
            ("remove", []) => self.stored = None,
            ("state", []) => return self.stored.as_ref().map_or("there is no manifest".into(), shown),
            ("constants", []) => return constants(),
            ("check", settings) => return check(settings),
            _ => panic!("no such command"),
        }
        String::new()
    }

    fn next(&mut self) -> String {
        let (segments, held) = self.built();
        let group = Group {
            segments: &segments,
            own: self.group.len(),
            held: &held,
            clients: &[],
            holders: &[],
        };
        match self.commits.next(group, &mut self.drawn) {
            Next::Read => "read the manifest".into(),
            Next::StorePage(new) => {
                let (first, last) = (new.page.first, new.page.last());
                format!("store {} with sequences {first} to {last}", name(new.name))
            }
            Next::Swap(swap) => {
                let expected = swap
                    .expected
                    .map_or("nothing".into(), |it| format!("version {it}"));
                let mut text = match &swap.attempt {
                    None => format!("swap {expected}: register {}", producer(self.commits.producer())),
                    Some(attempt) => {
                        let segments: Vec<_> = attempt.segments.iter().copied().map(name).collect();
                        let what = match group.own {
                            0 => String::new(),
                            _ => format!("commit {} has ", attempt.number),
                        };
                        format!(
                            "swap {expected}: {what}{} from sequence {}",
                            segments.join(" "),
                            attempt.first_sequence
                        )
                    }
                };
                for claim in &held {
                    let Range { start, end } = claim.segments;
                    write!(text, ", with {}@{start}..{end}", run(claim)).unwrap();
                }
                for page in &swap.next.pages {
                    write!(text, ", after {}", name(page.page)).unwrap();
                }
                self.sent = Some(swap);
                text
            }
            Next::Spent => "the number is spent".into(),
            Next::Registered => format!("{} is registered", producer(self.commits.producer())),
            Next::Settle(settlement) => self.settle(&settlement),
            Next::UploadAgain { places, floor_ms } => {
                for place in places {
                    let at_ms = self.drawn.clock_ms.max(floor_ms);
                    let segment = &mut self.segment(place).segment;
                    *segment = Ulid::from_parts(at_ms, segment.random());
                }
                format!("upload again, group: {}", names(&self.built().0))
            }
            Next::Drop { place, reason } => {
                let Some(dropped) = segments.get(place).cloned() else {
                    return "drop nothing".into();
                };
                self.group.retain(|segment| segment.segment != dropped.segment);
                self.held.retain(|held| !held.segments.contains(&dropped));
                // The name is the same in both languages; a script is easier to read with the short form.
                let reason = reason.replace(&dropped.segment.to_string(), &name(dropped.segment));
                format!("drop {}: {reason}", name(dropped.segment))
            }
            Next::Renew(renewal) => {
                let unknown = match renewal.in_doubt {
                    true => std::mem::take(&mut self.group),
                    false => Vec::new(),
                };
                let who = producer(renewal.producer);
                let mut text = format!("go on as {who}: {}\n", renewal.reason);
                writeln!(text, "unknown: {}", names(&unknown)).unwrap();
                write!(text, "group: {}", names(&self.group)).unwrap();
                text
            }
        }
    }

    fn acknowledge(&mut self, landed: Landed) -> String {
        let count = landed.count.min(self.group.len());
        let told: Vec<_> = self.group.drain(..count).collect();
        format!(
            "acknowledge {} from sequence {}",
            names(&told),
            landed.first_sequence
        )
    }

    /// The segments of the group and the claims of others.
    fn built(&self) -> (Vec<NewSegment>, Vec<Claim>) {
        let (mut segments, mut claims) = (self.group.clone(), Vec::new());
        for held in &self.held {
            let start = segments.len();
            segments.extend(held.segments.iter().cloned());
            let place = match held.segments.is_empty() {
                true => 0..1,
                false => start..segments.len(),
            };
            claims.push(Claim {
                segments: place,
                ..held.claim.clone()
            });
        }
        (segments, claims)
    }

    fn segment(&mut self, place: usize) -> &mut NewSegment {
        let held = self.held.iter_mut().flat_map(|held| &mut held.segments);
        self.group.iter_mut().chain(held).nth(place).expect("a segment")
    }

    fn hold(&mut self, of: &str, texts: &[&str]) -> String {
        let claim = claim(&format!("{of}@0..1"));
        let (_, known) = self.built();
        if let Err(refusal) = check_offer(self.commits.producer(), &known, &claim) {
            return format!("refused: {refusal}");
        }
        let clock_ms = self.drawn.clock_ms;
        let segments = texts.iter().map(|text| segment(text, clock_ms)).collect();
        self.held.push(Held { claim, segments });
        format!("group: {}", names(&self.built().0))
    }

    fn forward(&mut self) -> String {
        let who = producer(self.commits.producer());
        match self.commits.forward() {
            Some(number) => format!("commit {number} of {who} has {}", names(&self.group)),
            None => "not now".into(),
        }
    }

    fn settle(&mut self, settlement: &Settlement) -> String {
        let mut lines = Vec::new();
        match settlement.own {
            Some(Own::Landed(landed)) => lines.push(self.acknowledge(landed)),
            Some(Own::Elsewhere {
                first_sequence,
                count,
            }) => {
                let told = names(&std::mem::take(&mut self.group));
                lines.push(format!(
                    "acknowledge {told}, elsewhere in {count} from sequence {first_sequence}"
                ));
            }
            None => {}
        }
        for (place, verdict) in &settlement.held {
            let verdict = match verdict {
                Verdict::Committed {
                    first_sequence: Some(sequence),
                } => format!("is committed from sequence {sequence}"),
                Verdict::Committed { first_sequence: None } => "is committed".into(),
                Verdict::Partly { through } => format!("is committed through {through}"),
                Verdict::Gap { last } => format!("does not follow {last}"),
                Verdict::Forgotten => "is of a producer that the manifest does not know".into(),
                Verdict::Spent => "was spent without records".into(),
                Verdict::Client => "has a request that the log does not take".into(),
                Verdict::Invalid => "is not valid".into(),
            };
            lines.push(format!("{} {verdict}", run(&self.held[*place].claim)));
        }
        for (place, _) in settlement.held.iter().rev() {
            self.held.remove(*place);
        }
        lines.join("\n")
    }

    fn hear(&mut self, what: &str, news: News) -> String {
        self.reads_first.hear(news);
        let mut text = what.to_owned();
        if news.is_past {
            text += ", which is earlier and not taken";
        }
        if news.page_joined {
            text += ", the page is in the log";
        }
        if news.met_another {
            text += ", another producer may have committed";
        }
        if let Some(landed) = news.landed {
            let (_, claims) = self.built();
            if !self.group.is_empty() {
                write!(text, "\n{}", self.acknowledge(landed)).unwrap();
            }
            for claim in claims {
                let sequence = landed.first_sequence + claim.segments.start as u64;
                write!(text, "\n{} is committed from sequence {sequence}", run(&claim)).unwrap();
            }
            self.held.clear();
        }
        text
    }

    fn swap(&mut self, outcome: &str) -> String {
        let Some(swap) = self.sent.take() else {
            return "no swap was sent".into();
        };
        let (lands, answered) = match outcome {
            "reported" => (true, "committed"),
            "unreported" => (true, "unknown"),
            "repeated" => (true, "refused"),
            "lost" => (false, "unknown"),
            "late" => {
                self.late = Some(swap.clone());
                (false, "unknown")
            }
            _ => panic!("no such outcome"),
        };
        let landed = lands && self.land(&swap);
        let answered = if lands && !landed { "refused" } else { answered };
        let news = self.commits.swapped(match answered {
            "committed" => Answer::Committed(Stored(*swap.next)),
            "refused" => Answer::Mismatch,
            _ => Answer::Unknown,
        });
        self.hear(answered, news)
    }

    fn land(&mut self, swap: &Swap<u64>) -> bool {
        let version = self.stored.as_ref().map(|state| state.stamp.version);
        let lands = swap.expected == version;
        if lands {
            self.stored = Some((*swap.next).clone());
        }
        lands
    }

    fn change(&mut self, change: impl FnOnce(&mut Manifest)) {
        let mut state = self.stored.take().expect("a manifest");
        change(&mut state);
        self.stored = Some(state.stamped(0));
    }

    /// Commits as another producer, and registers it first if necessary.
    fn commit_as(&mut self, id: ProducerId, segments: &[&str]) -> String {
        let state = self
            .stored
            .take()
            .unwrap_or_else(|| Manifest::new(Uuid::nil(), 0));
        let state = state.register(id, self.drawn.clock_ms);
        let new: Vec<_> = segments
            .iter()
            .map(|text| segment(text, self.drawn.clock_ms))
            .collect();
        let number = state.producer(id).unwrap().commit + 1;
        let claims = [Claim::one(id, number, 0..new.len())];
        let Ok(Commit {
            state,
            first_sequence,
        }) = state.commit(&claims, &new, self.drawn.clock_ms)
        else {
            panic!("the manifest refuses it")
        };
        self.stored = Some(state.stamped(0));
        format!("from sequence {first_sequence}")
    }

    /// Commits with these claims, as whoever holds the records: `2:1-1@0..1 3:1-3@0..2 of a b`.
    fn claims(&mut self, arguments: &[&str]) -> String {
        let of = arguments.iter().position(|word| *word == "of").expect("of");
        let claims: Vec<Claim> = arguments[..of].iter().map(|text| claim(text)).collect();
        let clock_ms = self.drawn.clock_ms;
        let new: Vec<_> = arguments[of + 1..]
            .iter()
            .map(|text| segment(text, clock_ms))
            .collect();
        let state = self.stored.as_ref().expect("a manifest");
        match state.commit(&claims, &new, clock_ms) {
            Ok(commit) => {
                self.stored = Some(commit.state.stamped(0));
                format!("from sequence {}", commit.first_sequence)
            }
            Err(refusal) => refused(&refusal),
        }
    }
}

/// `2` is the producer with an id of 2s.
fn claimant(text: &str) -> ProducerId {
    ProducerId([text.parse().unwrap(); 16])
}

/// `2:1-3@0..2`: the numbers 1 to 3 of producer 2, with records in the first two segments.
fn claim(text: &str) -> Claim {
    let parts = || {
        let (producer, rest) = text.split_once(':')?;
        let (numbers, segments) = rest.split_once('@')?;
        Some((producer, numbers.split_once('-')?, segments.split_once("..")?))
    };
    let (producer, (first, last), (start, end)) = parts().expect("a claim");
    Claim {
        producer: claimant(producer),
        first: first.parse().unwrap(),
        last: last.parse().unwrap(),
        segments: start.parse().unwrap()..end.parse().unwrap(),
    }
}

fn run(claim: &Claim) -> String {
    format!("{}:{}-{}", claim.producer.0[0], claim.first, claim.last)
}

fn refused(refusal: &CommitRefusal) -> String {
    let CommitRefusal::Claims(unusable) = refusal else {
        return refusal.to_string();
    };
    let each = unusable.iter();
    let each = each.map(|unusable| format!("claim {}: {}", unusable.claim, unusable.reason));
    each.collect::<Vec<_>>().join("\n")
}

/// `a`, `a:ndjson` in a stream of this encoding, `a#2` with two parts of one stream, or `a!` in a stream with an
/// invalid name.
fn segment(text: &str, at_ms: u64) -> NewSegment {
    let letter = text.bytes().next().unwrap();
    let encoding = match text.contains(":ndjson") {
        true => Encoding::Ndjson,
        false => Encoding::Otlp,
    };
    let part = NewPart {
        stream: if text.ends_with('!') { "a/b" } else { "events" }.into(),
        encoding,
        offset: 0,
        length: 1,
        raw_len: 1,
        messages: 1,
        records: 1,
        first_received_at_us: 0,
        last_received_at_us: 0,
    };
    NewSegment {
        segment: Ulid::from_parts(at_ms, letter.into()),
        size: 1,
        parts: vec![part; if text.ends_with("#2") { 2 } else { 1 }],
    }
}

fn name(of: Ulid) -> String {
    let drawn = u8::try_from(of.random()).unwrap();
    match drawn {
        b'a'..=b'z' => format!("{}@{}", char::from(drawn), of.timestamp_ms()),
        _ => format!("page{drawn}@{}", of.timestamp_ms()),
    }
}

fn names(of: &[NewSegment]) -> String {
    let names: Vec<_> = of.iter().map(|segment| name(segment.segment)).collect();
    if names.is_empty() {
        "nothing".into()
    } else {
        names.join(" ")
    }
}

fn producer(id: ProducerId) -> String {
    format!("producer {}", id.0[0])
}

fn shown(state: &Manifest) -> String {
    let (version, next, floor) = (state.stamp.version, state.next_sequence, state.orphan_floor_ms);
    let mut text = format!("version {version}, next sequence {next}, orphan floor {floor}\n");
    for stream in &state.streams {
        writeln!(text, "stream {}: {}", stream.name, stream.encoding).unwrap();
    }
    for page in &state.pages {
        writeln!(
            text,
            "{}: sequences {} to {}",
            name(page.page),
            page.first,
            page.last
        )
        .unwrap();
    }
    let tail: Vec<_> = state.tail.iter().map(|entry| name(entry.segment)).collect();
    writeln!(text, "tail from {}: {}", state.tail_start(), tail.join(" ")).unwrap();
    for row in &state.producers {
        let (commit, first, count) = (row.commit, row.first_sequence, row.count);
        let who = producer(row.id);
        writeln!(text, "{who}: commit {commit} has {count} from sequence {first}").unwrap();
    }
    for row in &state.sources {
        writeln!(text, "source {}: next {}", row.of, row.next).unwrap();
    }
    text.trim_end().to_owned()
}

fn source(partition: u32, next: u64) -> SourceRow {
    SourceRow {
        of: Arc::new(SourcePartition {
            source: "cluster".into(),
            topic: "topic".into(),
            partition,
            stream: "events".into(),
        }),
        shard: 0,
        incarnation: 0,
        next,
        seen_at_ms: 0,
    }
}

fn constants() -> String {
    format!(
        "reads first: {READS_FIRST}\nsegments of a commit: {COMMIT_SEGMENTS_MAX}\ntail: {TAIL_MAX}\nstreams: {STREAMS_MAX}\n\
         producers: {PRODUCERS_MAX}\nproducers kept: {PRODUCERS_KEPT}\nproducer expiry: {PRODUCER_EXPIRY_MS} ms"
    )
}

fn value<T: std::str::FromStr<Err: std::fmt::Debug>>(setting: &str) -> T {
    setting.split_once('=').unwrap().1.parse().unwrap()
}

fn check(settings: &[&str]) -> String {
    let mut config = Config {
        encoders: 2,
        ..Config::default()
    };
    for setting in settings {
        match setting.split_once('=').unwrap().0 {
            "linger_ms" => config.linger = Duration::from_millis(value(setting)),
            "segment_bytes" => config.segment_bytes = value(setting),
            "segment_raw_bytes" => config.segment_raw_bytes = value(setting),
            "block_bytes" => config.block_bytes = value(setting),
            "max_uploads" => config.max_uploads = value(setting),
            "compression_level" => config.compression_level = value(setting),
            "memory_limit" => config.memory_limit = value(setting),
            "max_wait_ms" => config.max_wait = Duration::from_millis(value(setting)),
            "encoders" => config.encoders = value(setting),
            "shard" => config.shard = Some(value(setting)),
            "shards" => config.shards_when_created = value(setting),
            "tail_max" => config.tail_max = value(setting),
            "start_timeout_ms" => config.start_timeout = Duration::from_millis(value(setting)),
            _ => panic!("no such setting: {setting}"),
        }
    }
    match config.check() {
        Ok(()) => "it is right".into(),
        // Go has another rule for this setting.
        Err(wrong) if wrong.setting == "memory_limit" => format!("memory_limit is {}", wrong.found),
        Err(wrong) => wrong.to_string(),
    }
}

/// Runs the commands of a script and replaces its results.
fn rerun(path: &std::path::Path, script: &str) -> String {
    let mut world = World::new(1_000);
    let (mut rerun, mut lines) = (String::new(), script.lines());
    while let Some(line) = lines.next() {
        writeln!(rerun, "{line}").unwrap();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let mut words = line.split_whitespace();
        let (command, arguments) = (words.next().unwrap(), words.collect::<Vec<_>>());
        let leads_to = world.run(command, &arguments);
        for expected in leads_to.lines() {
            writeln!(rerun, "  > {expected}").unwrap();
        }
        while lines.clone().next().is_some_and(|line| line.starts_with("  > ")) {
            lines.next();
        }
    }
    assert!(!rerun.is_empty(), "{}", path.display());
    rerun
}

#[test]
fn the_scripts_lead_to_what_they_say() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata");
    let mut paths: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    assert_eq!(paths.len(), 8, "{paths:?}");
    for path in paths {
        let script = std::fs::read_to_string(&path).unwrap();
        let rerun = rerun(&path, &script);
        if std::env::var_os("MILLPOND_REWRITE").is_some() {
            std::fs::write(&path, rerun).unwrap();
        } else {
            for (number, (found, expected)) in rerun.lines().zip(script.lines()).enumerate() {
                assert_eq!(found, expected, "{}:{}", path.display(), number + 1);
            }
            assert_eq!(rerun, script, "{}", path.display());
        }
    }
}

/// The segment that the sealed log refuses is dropped, and no other one, although the unsealed log has no room for those
/// before it.
#[test]
fn a_refused_segment_is_found_behind_a_sealed_tail() {
    let mut world = World::new(3_072);
    world.commit_as(OTHER, &["y"]);
    world.change(|state| {
        let first = state.tail[0].clone();
        state.tail = (0..ENTRIES_MAX as u128)
            .map(|number| Entry {
                segment: Ulid::from_parts(1, number << 8),
                ..first.clone()
            })
            .collect();
        state.next_sequence = ENTRIES_MAX as u64;
    });
    world.run("upload", &["a", "b:ndjson", "c"]);
    world.run("next", &[]);
    world.run("read", &[]);
    world.run("next", &[]);
    world.run("swap", &["reported"]);
    world.run("next", &[]);
    let page = world.run("next", &[]);
    assert!(page.ends_with("with sequences 0 to 4095"), "{page}");
    world.run("store", &["succeeds"]);
    let dropped = world.run("next", &[]);
    assert!(dropped.starts_with("drop b@0: "), "{dropped}");
    let swapped = world.run("next", &[]);
    assert!(swapped.contains("a@0 c@0 from sequence 4096"), "{swapped}");
}

//! A partition that this bridge reads: its messages in flight, and what it does when one of them is not committed. Pure.

use std::sync::Arc;

use millpond_manifest::{ClientId, SourcePartition};
use millpond_producer::{AppendError, ClientRefusal, Numbered, Numbers};
use tokio::time::{Duration, Instant};

use crate::position::Position;
use crate::records::{Batch, Batches};

const PAUSE_MIN: Duration = Duration::from_millis(50);

/// The longest pause before a partition's place is looked for again.
const LOOK_PAUSE_MAX: Duration = Duration::from_secs(5);

/// The longest pause before a partition is read again, but for a half that chance adds. All others are fetched anew with it,
/// so one that always fails must be rare.
const READ_PAUSE_MAX: Duration = Duration::from_secs(30);

/// A partition that was read for so long is not the one that fails.
const WELL_AFTER: Duration = Duration::from_secs(5);

/// The state of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Its place is to be found, no earlier than this.
    Due(Option<Instant>),
    /// Somebody looks for its place.
    Sought,
    /// It is read from here with the next assignment.
    Found(Position),
    /// Its records are taken.
    Read,
}

/// A partition from its assignment on.
#[derive(Debug)]
pub(crate) struct Reading {
    pub(crate) of: Arc<SourcePartition>,
    /// Stands for this assignment: a message of an earlier one is never taken for the same.
    client: ClientId,
    pub(crate) batches: Batches,
    /// The position of the last message that is certainly committed. `None` until the partition has a place: Kafka must not hear
    /// of an offset that means nothing, since `--from committed` and the consumer before the bridge begin there.
    pub(crate) committed: Option<u64>,
    in_flight: usize,
    state: State,
    pause: Duration,
    /// The number of pauses so far.
    pauses: usize,
    /// Since when its records have been taken.
    read_since: Option<Instant>,
    /// A message was committed since then.
    has_committed: bool,
}

impl Reading {
    /// A partition whose place is not known yet.
    pub(crate) fn new(of: Arc<SourcePartition>, client: ClientId, batches: Batches) -> Reading {
        Reading {
            of,
            client,
            committed: None,
            batches,
            in_flight: 0,
            state: State::Due(None),
            pause: PAUSE_MIN,
            pauses: 0,
            read_since: None,
            has_committed: false,
        }
    }

    /// The claim of a message.
    pub(crate) fn numbered(&self, batch: &Batch) -> Numbered {
        Numbered {
            client: self.client,
            numbers: Numbers::Offsets {
                incarnation: self.batches.incarnation(),
                from: batch.from,
                to: batch.to,
            },
            checksum: 0,
            source: Some(Arc::clone(&self.of)),
        }
    }

    /// Returns true if records are of use: none was lost on the way to the log.
    pub(crate) fn takes_records(&self) -> bool {
        self.state == State::Read
    }

    /// A message is with the producer.
    pub(crate) fn submitted(&mut self) {
        self.in_flight += 1;
    }

    /// A message that was with the producer has an outcome.
    pub(crate) fn ended(&mut self, committed: Option<u64>, now: Instant) {
        self.in_flight -= 1;
        match committed {
            Some(to) => {
                self.committed = self.committed.max(Some(to));
                self.has_committed = true;
                self.pause = PAUSE_MIN;
            }
            None => self.fail(now),
        }
    }

    /// Returns true if its records are taken, and nothing suggests that this fails.
    pub(crate) fn is_well(&self, now: Instant) -> bool {
        self.takes_records() && (self.has_committed || self.was_read_long(now))
    }

    fn was_read_long(&self, now: Instant) -> bool {
        let since = self.read_since;
        since.is_some_and(|since| now.saturating_duration_since(since) >= WELL_AFTER)
    }

    /// A message cannot reach the log: what follows it must not either.
    pub(crate) fn fail(&mut self, now: Instant) {
        if self.takes_records() && self.was_read_long(now) {
            self.pause = PAUSE_MIN;
        }
        if matches!(self.state, State::Read | State::Found(_)) {
            self.wait(now, READ_PAUSE_MAX);
        }
    }

    /// Chance keeps partitions apart that failed together, because only one of them did.
    fn wait(&mut self, now: Instant, longest: Duration) {
        let chance = self.client.0[self.pauses % self.client.0.len()];
        self.pauses += 1;
        let more = self.pause * u32::from(chance) / 512;
        self.state = State::Due(Some(now + self.pause + more));
        self.pause = (self.pause * 2).min(longest);
    }

    /// Returns true if the last search found no place.
    pub(crate) fn is_repeated(&self) -> bool {
        self.pause > PAUSE_MIN
    }

    /// Returns true if it is time to look for the manifest's position.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        let is_time = |at: Option<Instant>| at.is_none_or(|at| at <= now);
        self.in_flight == 0 && matches!(self.state, State::Due(at) if is_time(at))
    }

    /// Somebody looks for the place from now on.
    pub(crate) fn seek(&mut self) {
        self.state = State::Sought;
    }

    /// Returns true while somebody looks for the place.
    pub(crate) fn is_sought(&self) -> bool {
        self.state == State::Sought
    }

    /// No place was found: somebody looks for it again later.
    pub(crate) fn postpone(&mut self, now: Instant) {
        self.wait(now, LOOK_PAUSE_MAX);
    }

    /// The next assignment begins here.
    pub(crate) fn found(&mut self, position: Position) {
        self.state = State::Found(position);
    }

    /// Reads from the place that was found, if there is a new one. An assignment must begin there.
    pub(crate) fn restart(&mut self, now: Instant) {
        let State::Found(position) = self.state else {
            return;
        };
        tracing::info!("reads {} from offset {position}", self.of);
        self.batches.restart(position);
        self.read_since = Some(now);
        self.has_committed = false;
        self.committed = Some(position.next);
        self.state = State::Read;
    }
}

/// The label of a message that was not committed.
pub(crate) fn reason(error: &AppendError) -> &'static str {
    match error {
        AppendError::Client(ClientRefusal::Position { .. } | ClientRefusal::SetAnew) => "position",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_gateway::KafkaTopics;

    fn at(next: u64) -> Position {
        Position { incarnation: 0, next }
    }

    /// Finds a place, and reads on from there.
    fn restart(reading: &mut Reading, next: u64, now: Instant) {
        reading.found(at(next));
        reading.restart(now);
    }

    fn reading() -> Reading {
        let of = SourcePartition {
            source: "cluster".into(),
            topic: "orders".into(),
            partition: 0,
            stream: "orders".into(),
        };
        let route = KafkaTopics::default().route("orders").unwrap();
        let batches = Batches::new(route, "orders".into(), 0, Position::default());
        let mut reading = Reading::new(Arc::new(of), ClientId([1; 16]), batches);
        assert!(reading.is_due(Instant::now()) && !reading.takes_records());
        assert_eq!(reading.committed, None, "it has no place yet");
        restart(&mut reading, 5, Instant::now());
        reading
    }

    #[tokio::test]
    async fn after_a_failure_nothing_is_taken_until_every_message_has_an_outcome() {
        let mut reading = reading();
        for _ in 0..3 {
            reading.submitted();
        }
        reading.ended(Some(9), Instant::now());
        reading.ended(None, Instant::now());
        assert!(!reading.takes_records());
        let later = Instant::now() + 2 * READ_PAUSE_MAX;
        assert!(!reading.is_due(later), "a message is in flight");
        reading.ended(None, Instant::now());
        assert!(!reading.is_due(Instant::now()) && reading.is_due(later));
        assert_eq!(reading.committed, Some(9));
        reading.seek();
        assert!(
            !reading.is_due(later) && !reading.takes_records(),
            "somebody looks for its place"
        );
        reading.found(at(7));
        // Records of the old assignment may still arrive.
        assert!(!reading.is_due(later) && !reading.takes_records());
        reading.restart(Instant::now());
        assert!(reading.takes_records() && !reading.is_due(later));
        assert_eq!(reading.committed, Some(7));
    }

    /// Nobody knows which partition has a record that cannot be read, so all of them fail with it, again and again.
    #[tokio::test]
    async fn a_partition_that_was_read_for_a_while_returns_soon() {
        let (mut well, mut broken) = (reading(), reading());
        broken.client = ClientId([255; 16]);
        let mut now = Instant::now();
        for _ in 0..12 {
            now += 2 * WELL_AFTER;
            well.fail(now);
            let soon = now + 2 * PAUSE_MIN;
            assert!(well.is_due(soon));
            restart(&mut well, 5, soon);
            assert!(!well.is_well(soon) && well.is_well(soon + WELL_AFTER));
            restart(&mut broken, 5, now);
            broken.fail(now);
        }
        assert!(!broken.is_due(now + READ_PAUSE_MAX));
        assert!(broken.is_due(now + READ_PAUSE_MAX * 3 / 2));
        assert!(!broken.is_well(now + READ_PAUSE_MAX * 3 / 2));
    }
}

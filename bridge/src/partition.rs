//! A partition that this bridge reads: its messages in flight, and what it does when one of them is not committed. Pure.

use std::sync::Arc;

use millpond_manifest::{ClientId, SourcePartition};
use millpond_producer::{AppendError, ClientRefusal, Numbered, Numbers};
use tokio::time::{Duration, Instant};

use crate::client::Extent;
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

/// librdkafka does not tell which partition it cannot read. This number of errors in a row at the same offset shows it, because
/// the others go on between two errors.
const UNREADABLE_AFTER: u32 = 3;

/// A partition stands still if nothing has arrived for this time although Kafka has more.
const STANDS_AFTER: Duration = Duration::from_secs(300);

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
    /// The position at the last error of reading, and the number of such errors in a row there.
    unread: (u64, u32),
    /// The position at which nothing has arrived since then, although there is more.
    silent: Option<(u64, Instant)>,
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
            unread: (0, 0),
            silent: None,
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

    /// librdkafka could not read records of one of the partitions that have more.
    pub(crate) fn could_be_unreadable(&mut self, extent: Option<Extent>) {
        let position = self.batches.position();
        if !self.takes_records() || extent.is_none_or(|extent| extent.end <= position) {
            return;
        }
        self.unread = match self.unread {
            (at, times) if at == position => (at, times.saturating_add(1)),
            _ => (position, 1),
        };
    }

    /// The offset at which this partition is the one that cannot be read.
    pub(crate) fn unreadable_at(&self) -> Option<u64> {
        let (at, times) = self.unread;
        // Its batches have no position of it while its place is looked for.
        let is_past = self.committed.is_some_and(|committed| committed > at);
        (times >= UNREADABLE_AFTER && !is_past).then_some(at)
    }

    /// Takes note of whether records arrive. librdkafka gives no error for a batch whose length is damaged. `is_paused`: it is
    /// told to read nothing.
    pub(crate) fn listen(&mut self, extent: Option<Extent>, is_paused: bool, now: Instant) {
        let position = self.batches.position();
        // At the end it has read everything: the offsets up to there are the ends of transactions.
        let has_more = extent.is_some_and(|it| it.next.is_some_and(|next| next < it.end));
        let is_silent = self.takes_records() && self.in_flight == 0 && has_more && !is_paused;
        self.silent = match self.silent {
            _ if !is_silent => None,
            Some((at, since)) if at == position => Some((at, since)),
            _ => Some((position, now)),
        };
    }

    /// The offset at which this partition stands still.
    pub(crate) fn stands_at(&self, now: Instant) -> Option<u64> {
        let (at, since) = self.silent?;
        (now.saturating_duration_since(since) >= STANDS_AFTER).then_some(at)
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
        self.silent = None;
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

    /// A partition that has more than its records up to this offset.
    fn more(next: u64) -> Option<Extent> {
        Some(Extent {
            end: 9,
            next: Some(next),
        })
    }

    #[tokio::test]
    async fn the_partition_that_stays_where_it_is_cannot_be_read() {
        let (mut idle, mut well, mut broken) = (reading(), reading(), reading());
        for time in 0..4 {
            let now = Instant::now();
            for (reading, next) in [(&mut idle, 9), (&mut well, 5 + time), (&mut broken, 5)] {
                restart(reading, next, now);
                reading.could_be_unreadable(more(5));
                reading.fail(now);
                // More errors until the next assignment say nothing.
                reading.could_be_unreadable(more(5));
            }
            let expected = (time >= 2).then_some(5);
            assert_eq!(broken.unreadable_at(), expected, "after {} errors", time + 1);
        }
        assert_eq!((idle.unreadable_at(), well.unreadable_at()), (None, None));
        restart(&mut broken, 6, Instant::now());
        assert_eq!(broken.unreadable_at(), None, "somebody has repaired it");
    }

    #[tokio::test]
    async fn a_partition_with_more_of_which_nothing_arrives_stands_still() {
        let start = Instant::now();
        let later = start + STANDS_AFTER;
        let at_the_end = Some(Extent {
            end: 9,
            next: Some(9),
        });
        let unknown = Some(Extent { end: 9, next: None });
        for (extent, is_paused, expected) in [
            (more(5), false, Some(5)),
            // It waits for memory.
            (more(5), true, None),
            // The ends of transactions have no records.
            (at_the_end, false, None),
            (unknown, false, None),
            (None, false, None),
        ] {
            let mut reading = reading();
            reading.listen(extent, is_paused, start);
            assert_eq!(reading.stands_at(later - PAUSE_MIN), None);
            reading.listen(extent, is_paused, later);
            assert_eq!(reading.stands_at(later), expected, "{extent:?}");
        }
        let mut waiting = reading();
        waiting.submitted();
        waiting.listen(more(5), false, start);
        assert_eq!(waiting.stands_at(later), None, "the store is away");
        let mut again = reading();
        again.listen(more(5), false, start);
        restart(&mut again, 5, later);
        again.listen(more(5), false, later);
        assert_eq!(again.stands_at(later), None, "it is only just read again");
        restart(&mut again, 6, later);
        again.listen(more(6), false, later);
        again.listen(at_the_end, false, later + PAUSE_MIN);
        again.listen(more(6), false, later + 2 * PAUSE_MIN);
        assert_eq!(again.stands_at(later + STANDS_AFTER), None, "it had read all");
    }
}

//! A partition that this bridge reads: its messages in flight, and what it does when one of them is not committed. Pure.

use std::sync::Arc;

use millpond_manifest::{ClientId, SourcePartition};
use millpond_producer::{AppendError, ClientRefusal, Numbered, Numbers};
use tokio::time::{Duration, Instant};

use crate::records::{Batch, Batches};

const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(5);

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
    /// A message was not committed: the partition is read again from the manifest's position.
    failed: bool,
    pause: Duration,
    /// No earlier than this.
    again_at: Option<Instant>,
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
            failed: true,
            pause: PAUSE_MIN,
            again_at: None,
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
        !self.failed
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
                self.pause = PAUSE_MIN;
            }
            None => self.fail(now),
        }
    }

    /// A message cannot reach the log: what follows it must not either.
    pub(crate) fn fail(&mut self, now: Instant) {
        if !self.failed {
            self.failed = true;
            self.again_at = Some(now + self.pause);
            self.pause = (self.pause * 2).min(PAUSE_MAX);
        }
    }

    /// Returns true if it is time to read again from the manifest's position.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.failed && self.in_flight == 0 && self.again_at.is_none_or(|at| at <= now)
    }

    /// Another attempt follows later.
    pub(crate) fn postpone(&mut self, now: Instant) {
        self.again_at = Some(now + self.pause);
        self.pause = (self.pause * 2).min(PAUSE_MAX);
    }

    /// Reads on from here.
    pub(crate) fn restart(&mut self, batches: Batches) {
        self.committed = Some(batches.position());
        self.batches = batches;
        self.failed = false;
        self.again_at = None;
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
    use crate::position::Position;
    use millpond_gateway::KafkaTopics;

    fn batches(at: u64) -> Batches {
        let route = KafkaTopics::default().route("orders").unwrap();
        let position = Position {
            incarnation: 0,
            next: at,
        };
        Batches::new(route, "orders".into(), 0, position)
    }

    fn reading() -> Reading {
        let of = SourcePartition {
            source: "cluster".into(),
            topic: "orders".into(),
            partition: 0,
            stream: "orders".into(),
        };
        let mut reading = Reading::new(Arc::new(of), ClientId([1; 16]), batches(0));
        assert!(reading.is_due(Instant::now()) && !reading.takes_records());
        assert_eq!(reading.committed, None, "it has no place yet");
        reading.restart(batches(5));
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
        let later = Instant::now() + PAUSE_MAX;
        assert!(!reading.is_due(later), "a message is in flight");
        reading.ended(None, Instant::now());
        assert!(!reading.is_due(Instant::now()) && reading.is_due(later));
        assert_eq!(reading.committed, Some(9));
        reading.restart(batches(7));
        assert!(reading.takes_records() && !reading.is_due(later));
        assert_eq!(reading.committed, Some(7));
    }
}

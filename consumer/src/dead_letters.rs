//! The dead letters of one batch: records that its sink refuses for good and unreadable messages. The buffer has them
//! before the batch is acknowledged.

use crate::error::ConsumeError;
use crate::metrics::DeadLabel;
use crate::sink::{BatchId, Record, RowId};
use crate::worker::BatchWorker;
use bytes::Bytes;
use futures::future::{BoxFuture, FutureExt};
use millpond_manifest::cas::Object;
use millpond_manifest::{DeadLetter, dead_letter};
use millpond_runtime::{Backoff, Level};
use millpond_segment::Encoding;
use millpond_storage::Created;
use std::time::Duration;
use tracing::warn;

/// Writes and counts the dead letters of a batch.
pub(crate) struct DeadLetterWriter<'w> {
    worker: &'w BatchWorker,
    id: BatchId,
    encoding: Encoding,
    /// The limit per batch.
    max: usize,
    /// The dead letters that count towards it.
    counted: usize,
}

impl<'w> DeadLetterWriter<'w> {
    pub(crate) fn new(worker: &'w BatchWorker, id: BatchId, encoding: Encoding, max: usize) -> Self {
        DeadLetterWriter {
            worker,
            id,
            encoding,
            max,
            counted: 0,
        }
    }

    /// Fails if `more` dead letters that count would exceed the limit: then the rows are not to blame.
    pub(crate) fn check(&self, more: usize, reason: &str) -> Result<(), ConsumeError> {
        if self.counted + more <= self.max {
            return Ok(());
        }
        Err(ConsumeError::TooManyRefused {
            batch: self.id.to_string(),
            max: self.max,
            reason: reason.to_owned(),
        })
    }

    /// Writes the record of a row that the sink refused.
    pub(crate) async fn refused(&mut self, id: RowId, record: Record, reason: String) {
        self.counted += 1;
        self.write(dead_letter::Kind::Refused, id, record, reason).await;
    }

    /// Counts a message that cannot be read, or an event that does not fit its table, and returns what writes it. Events do not
    /// count towards the limit: their senders decide whether they fit, and must not stop the streams of others.
    pub(crate) fn unreadable(
        &mut self,
        id: RowId,
        message: Record,
        reason: String,
    ) -> Result<BoxFuture<'w, ()>, ConsumeError> {
        if self.encoding != Encoding::Ndjson || self.max == 0 {
            self.check(1, &reason)?;
            self.counted += 1;
        }
        Ok(self.write(dead_letter::Kind::Unreadable, id, message, reason))
    }

    fn write(&self, kind: dead_letter::Kind, id: RowId, record: Record, reason: String) -> BoxFuture<'w, ()> {
        let BatchId {
            buffer_id,
            shard,
            stream,
            consumer,
            sink,
            schema_version,
            ..
        } = self.id.clone();
        let letter = DeadLetter {
            buffer_id,
            shard,
            stream,
            consumer,
            sink,
            schema_version,
            sequence: id.sequence,
            record: id.record,
            kind,
            encoding: self.encoding,
            received_at_us: record.received_at_us,
            payload: Bytes::from(record.payload),
            reason,
            written_at_ms: self.worker.environment.now_ms(),
        };
        write(self.worker, self.id.clone(), letter).boxed()
    }
}

async fn write(worker: &BatchWorker, batch: BatchId, letter: DeadLetter) {
    let (key, body) = (letter.key(), letter.encode());
    if let Some(tally) = &worker.repair {
        tally.dead_letter();
    }
    if put(worker, &key, body).await == Created::New {
        let (stream, reason) = (letter.stream.clone(), letter.kind.name());
        worker
            .metrics
            .dead_letters
            .get_or_create(&DeadLabel { stream, reason })
            .inc();
        warn!(
            batch = %batch,
            "{key}: a dead letter, since the sink will never take it: {}",
            letter.reason
        );
    }
}

/// Writes the object, unless a predecessor has written it.
async fn put(worker: &BatchWorker, key: &str, body: Bytes) -> Created {
    let BatchWorker {
        store,
        readiness,
        environment,
        ..
    } = worker;
    let what = format!("writing {key}");
    let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(5));
    loop {
        match store.put_if_absent(key, vec![body.clone()]).await {
            Ok(created) => {
                readiness.goes_on(&what);
                return created;
            }
            Err(error) => readiness.waits(&what, error, Level::Warn),
        }
        backoff.pause(&**environment).await;
    }
}

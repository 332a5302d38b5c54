//! The dead letters of one batch: records that its sink refuses for good and unreadable messages. The buffer has them
//! before the batch is acknowledged.

use crate::error::ConsumeError;
use crate::metrics::DeadLabel;
use crate::sink::{BatchId, Record, RowId};
use crate::worker::BatchWorker;
use bytes::Bytes;
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
    pub(crate) async fn refused(
        &mut self,
        id: RowId,
        record: Record,
        reason: String,
    ) -> Result<(), ConsumeError> {
        self.counted += 1;
        self.write(dead_letter::Kind::Refused, id, record, reason).await
    }

    /// Writes a message that cannot be read, or an event that does not fit its table. Events do not count towards the limit: their
    /// senders decide whether they fit, and must not stop the streams of others.
    pub(crate) async fn unreadable(
        &mut self,
        id: RowId,
        message: Record,
        reason: String,
    ) -> Result<(), ConsumeError> {
        if self.encoding != Encoding::Ndjson || self.max == 0 {
            self.check(1, &reason)?;
            self.counted += 1;
        }
        self.write(dead_letter::Kind::Unreadable, id, message, reason)
            .await
    }

    async fn write(
        &mut self,
        kind: dead_letter::Kind,
        id: RowId,
        record: Record,
        reason: String,
    ) -> Result<(), ConsumeError> {
        let BatchWorker { environment, .. } = self.worker;
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
            written_at_ms: environment.now_ms(),
        };
        let key = letter.key();
        let body = letter.encode();
        if let Some(tally) = &self.worker.repair {
            tally.dead_letter();
        }
        if self.put(&key, body).await == Created::New {
            let (stream, reason) = (letter.stream.clone(), kind.name());
            self.worker
                .metrics
                .dead_letters
                .get_or_create(&DeadLabel { stream, reason })
                .inc();
            warn!(
                batch = %self.id,
                "{key}: a dead letter, since the sink will never take it: {}",
                letter.reason
            );
        }
        Ok(())
    }

    /// Writes the object, unless a predecessor has written it.
    async fn put(&self, key: &str, body: Bytes) -> Created {
        let BatchWorker {
            store,
            readiness,
            environment,
            ..
        } = self.worker;
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
}

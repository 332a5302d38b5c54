//! Resends a dead letter after an operator has repaired the table. The row keeps the record's identity, so the sink can
//! tell whether it has the row: replaying twice inserts once.

use crate::rounds::{self, Attempts, Failed, Unleased};
use crate::sink::{Batch, BatchId, Cut, Part, Sink, SinkError};
use crate::unique::Dropped;
use millpond_manifest::cas::{self, ReadError, Snapshot};
use millpond_manifest::cursor::OtherProgram;
use millpond_manifest::dead_letter::Kind;
use millpond_manifest::{BatchingPolicy, Buffer, Cursor, DeadLetter, layout};
use millpond_segment::{BlockBuilder, Compressor, Encoding, Limits};
use millpond_storage::Store;
use std::sync::Arc;
use thiserror::Error;
use ulid::Ulid;
use uuid::Uuid;

/// The reason why a dead letter stays in the buffer.
#[derive(Debug, Error)]
pub enum ReplayError {
    /// The dead letter does not exist, or no longer does.
    #[error("there is no such dead letter")]
    Gone,
    /// The store did not answer, or the dead letter is damaged.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The store did not delete the dead letter.
    #[error("its rows are in the sink, but it could not be deleted: {0}")]
    Delete(millpond_storage::Error),
    /// The content does not match the name: somebody put the dead letter there, or moved it.
    #[error("it does not belong there: by its content it is {of}")]
    Misplaced {
        /// The name that follows from its content.
        of: String,
    },
    /// The dead letter belongs to another buffer.
    #[error("it is of the buffer {of}, and this is {here}")]
    OtherBuffer {
        /// The dead letter's buffer.
        of: Uuid,
        /// The store's buffer.
        here: Uuid,
    },
    /// Another sink refused the record.
    #[error("it was refused by {refused}, and these settings name {named}")]
    OtherSink {
        /// The dead letter's sink.
        refused: String,
        /// The sink of these settings.
        named: String,
    },
    /// The consumer may write the dead letter again.
    #[error(
        "its consumer has not acknowledged sequence {0} of its stream: it may send it itself, or write the letter again"
    )]
    NotAcknowledged(u64),
    /// A repair may send the record.
    #[error(
        "the repair {0} of its consumer is not finished, and may insert the same record: finish it, or give it up with \
         `millpond consumer remove {0}`"
    )]
    Repaired(String),
    /// The row would be the event as it came, or an event that the consumer drops.
    #[error(
        "its consumer has a program for stream {0}, and none is given: give the consumer's --transform, or one with a corrected program"
    )]
    NoProgram(String),
    /// The sink cannot build rows from the message.
    #[error("it cannot be read: {0}")]
    Unreadable(String),
    /// The sink did not take the rows.
    #[error(transparent)]
    Sink(#[from] SinkError),
    /// The sink accepted the rows in every round and still lacks some.
    #[error("the sink has taken it in every round and lacks {0} of its rows all the same")]
    Missing(u64),
}

/// Inserts the content of a dead letter into the sink and deletes the dead letter. Returns the number of rows.
pub async fn replay(store: &Store, sink: &Arc<dyn Sink>, key: &str) -> Result<u64, ReplayError> {
    let found = cas::read::<DeadLetter>(store, key).await?;
    let letter = found.ok_or(ReplayError::Gone)?.state;
    check_place(store, key, &letter).await?;
    if letter.sink != sink.name() {
        return Err(ReplayError::OtherSink {
            refused: letter.sink,
            named: sink.name().to_owned(),
        });
    }
    let cursor = cas::read::<Cursor>(store, &layout::cursor(letter.shard, &letter.consumer)).await?;
    if let Some(consumer) = cursor.map(|cursor| cursor.state) {
        if !consumer.is_removed() && consumer.next(&letter.stream) <= letter.sequence {
            return Err(ReplayError::NotAcknowledged(letter.sequence));
        }
        // Another program is fine: the letter may be there because the consumer's fails on its event.
        if consumer.other_program(&letter.stream, &sink.programs()) == Some(OtherProgram::Missing) {
            return Err(ReplayError::NoProgram(letter.stream));
        }
    }
    if let Some(repair) = repair_of(store, sink, &letter).await? {
        return Err(ReplayError::Repaired(repair));
    }
    let batch = batch(&letter)?;
    let mut cuts = Vec::new();
    sink.chunks(&batch, &one_chunk(&letter), &mut |cut| {
        cuts.push(cut);
        true
    })?;
    let mut rows = 0;
    match cuts.pop() {
        Some(Cut::Unreadable { reason, .. }) => return Err(ReplayError::Unreadable(reason)),
        Some(Cut::Chunk(_)) if !cuts.is_empty() => {
            // A dead letter has one token, so it must be one chunk.
            return Err(ReplayError::Unreadable(format!(
                "it makes {} chunks",
                cuts.len() + 1
            )));
        }
        Some(Cut::Chunk(chunk)) => {
            rows = chunk.rows;
            // An earlier replay of this dead letter may have been interrupted.
            sink.settle(&rounds::requests_of_batch(&batch.id), None).await?;
            match rounds::again(&Unleased, sink, &batch.id, &chunk, &mut Attempts::default()).await {
                Ok(_) => {}
                Err(Failed::Sink(error)) => return Err(error.into()),
                Err(Failed::Missing(rows)) => return Err(ReplayError::Missing(rows)),
                Err(Failed::CannotTell) => unreachable!("an operator trusts tokens"),
            }
        }
        // A message can have no records.
        None => {}
    }
    store.delete(key).await.map_err(ReplayError::Delete)?;
    Ok(rows)
}

/// The cursor of an unfinished repair that may still send the record of a dead letter. It asks for the record as the replay does, and
/// neither sees the other's INSERT in flight.
async fn repair_of(
    store: &Store,
    sink: &Arc<dyn Sink>,
    letter: &DeadLetter,
) -> Result<Option<String>, ReplayError> {
    let repair = layout::repair(&letter.consumer);
    let cursor = cas::read::<Cursor>(store, &layout::cursor(letter.shard, &repair)).await?;
    let Some(Snapshot { state, .. }) = cursor else {
        return Ok(None);
    };
    if state.is_removed() && state.unsettled {
        // It was given up in the middle of its work.
        let all = rounds::requests_of(letter.buffer_id, letter.shard, &letter.consumer);
        sink.settle(&format!("{all}{repair}/"), None).await?;
    }
    let may_send = !state.is_removed()
        && state.start <= letter.sequence
        && state.next(&letter.stream) <= letter.sequence;
    Ok(may_send.then_some(repair))
}

/// Checks that a dead letter is in its own buffer, under the name that its shard, consumer and content give. A writer
/// of one consumer's dead letters could otherwise make an operator insert rows in the name of another.
async fn check_place(store: &Store, key: &str, letter: &DeadLetter) -> Result<(), ReplayError> {
    let of = letter.key();
    if of != key {
        return Err(ReplayError::Misplaced { of });
    }
    let buffer = cas::read::<Buffer>(store, layout::BUFFER).await?;
    let here = buffer.ok_or(ReplayError::Gone)?.state.id;
    if here != letter.buffer_id {
        return Err(ReplayError::OtherBuffer {
            of: letter.buffer_id,
            here,
        });
    }
    Ok(())
}

/// Returns true if a dead letter has the content of one row at most, whose number the dead letter has. An event that did not fit its table is
/// such a row. The rest of a message after a malformed event has no row at all.
fn is_one_row(letter: &DeadLetter) -> bool {
    letter.kind == Kind::Refused || letter.encoding == Encoding::Ndjson
}

/// Builds a batch of the dead letter's message alone, under a token that no consumer's batch has.
fn batch(letter: &DeadLetter) -> Result<Batch, ReplayError> {
    let unreadable = |error: &dyn std::fmt::Display| ReplayError::Unreadable(error.to_string());
    let mut block = BlockBuilder::with_buffer(letter.received_at_us, Vec::new(), &Limits::default());
    block
        .push(letter.received_at_us, &letter.payload)
        .map_err(|error| unreadable(&error))?;
    let mut compressor = Compressor::new(1).map_err(|error| unreadable(&error))?;
    let block = compressor
        .compress(&block, 0)
        .map_err(|error| unreadable(&error))?;
    let part = Part {
        sequence: letter.sequence,
        first_record: match is_one_row(letter) {
            true => letter.record,
            false => 0,
        },
        segment: Ulid::nil(),
        offset: 0,
        data: block.bytes,
        raw_len: letter.payload.len() as u64,
        records: 0,
        dropped: Dropped::default(),
    };
    let DeadLetter {
        buffer_id,
        shard,
        stream,
        consumer,
        sink,
        sequence,
        record,
        schema_version,
        ..
    } = letter.clone();
    let id = BatchId {
        buffer_id,
        shard,
        stream,
        cursor: format!("{consumer}~dead-letter~{record}"),
        consumer: match is_one_row(letter) {
            true => consumer,
            // The message has one number but may now yield several rows, so they get another source. No consumer's name
            // can contain a `~`.
            false => format!("{consumer}~unreadable~{record}"),
        },
        generation: 0,
        sink,
        low: sequence,
        high: sequence,
        schema_version,
    };
    Ok(Batch {
        id,
        encoding: letter.encoding,
        parts: vec![part],
    })
}

/// A policy that keeps a message in one chunk. The sink estimates from it how many tokens can be in doubt, so the policy
/// states the maximum number of records in the message: a record takes at least one byte.
fn one_chunk(letter: &DeadLetter) -> BatchingPolicy {
    let records = (letter.payload.len() as u64).max(1);
    BatchingPolicy {
        batch_records: records,
        batch_bytes: u64::MAX,
        chunk_rows: records,
        chunk_bytes: u64::MAX,
        max_partitions_per_chunk: u32::MAX,
        max_in_flight: 1,
        sink: letter.sink.clone(),
        schema_version: letter.schema_version,
    }
}

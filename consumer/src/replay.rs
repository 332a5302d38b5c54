//! Sends a dead letter again after an operator has repaired the table. The row keeps the record's identity, so the sink can
//! tell whether it has it: replaying twice inserts once.

use crate::rounds::{self, Attempts, Failed, Unleased};
use crate::sink::{Batch, BatchId, Cut, Part, Sink, SinkError};
use millpond_manifest::cas::{self, ReadError};
use millpond_manifest::dead_letter::Kind;
use millpond_manifest::planted::{self, Bug};
use millpond_manifest::{BatchingPolicy, Buffer, Cursor, DeadLetter, layout};
use millpond_segment::{BlockBuilder, Compressor, Limits};
use millpond_storage::Store;
use std::sync::Arc;
use thiserror::Error;
use ulid::Ulid;
use uuid::Uuid;

/// Why a dead letter stays where it is.
#[derive(Debug, Error)]
pub enum ReplayError {
    /// It is not there, or not any more.
    #[error("there is no such dead letter")]
    Gone,
    /// The store did not answer, or the dead letter is damaged.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The store did not delete the dead letter.
    #[error("its rows are in the sink, but it could not be deleted: {0}")]
    Delete(millpond_storage::Error),
    /// It is not the dead letter of its name: somebody has put it there, or moved it.
    #[error("it does not belong there: by its content it is {of}")]
    Misplaced {
        /// The name that follows from its content.
        of: String,
    },
    /// It is of another buffer.
    #[error("it is of the buffer {of}, and this is {here}")]
    OtherBuffer {
        /// The dead letter's.
        of: Uuid,
        /// The store's.
        here: Uuid,
    },
    /// It was refused by another sink.
    #[error("it was refused by {refused}, and these settings name {named}")]
    OtherSink {
        /// The dead letter's.
        refused: String,
        /// Ours.
        named: String,
    },
    /// Its consumer may write it again.
    #[error(
        "its consumer has not acknowledged sequence {0} of its stream: it may send it itself, or write the letter again"
    )]
    NotAcknowledged(u64),
    /// The sink cannot make rows of it.
    #[error("it cannot be read: {0}")]
    Unreadable(String),
    /// The sink did not take it.
    #[error(transparent)]
    Sink(#[from] SinkError),
    /// The sink accepted rows in every round, and does not have them.
    #[error("the sink has taken it in every round and lacks {0} of its rows all the same")]
    Missing(u64),
}

/// Gets what a dead letter holds into the sink, and deletes the dead letter. Returns how many rows it gave.
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
    if cursor.is_some_and(|cursor| {
        !cursor.state.is_removed() && cursor.state.next(&letter.stream) <= letter.sequence
    }) {
        return Err(ReplayError::NotAcknowledged(letter.sequence));
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
            // One token has one chunk.
            return Err(ReplayError::Unreadable(format!(
                "it makes {} chunks",
                cuts.len() + 1
            )));
        }
        Some(Cut::Chunk(chunk)) => {
            rows = chunk.rows;
            // A replay of this dead letter may have been interrupted.
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

/// A dead letter is where its shard, consumer and content say, in its own buffer. Whoever can write dead letters for one consumer could
/// otherwise have an operator insert rows in the name of another.
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

/// A batch of the dead letter's message alone, under a token that no consumer's batch has.
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
        first_record: match letter.kind {
            Kind::Refused => letter.record,
            Kind::Unreadable => 0,
        },
        segment: Ulid::nil(),
        offset: 0,
        data: block.bytes,
        raw_len: letter.payload.len() as u64,
        records: 0,
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
        consumer: match letter.kind {
            Kind::Refused => consumer,
            // The message has one number but may now yield several rows, so they get another source. No consumer's name
            // can contain a `~`.
            Kind::Unreadable if planted::is(Bug::ReplaySharesName) => {
                format!("{consumer}.unreadable.{record}")
            }
            Kind::Unreadable => format!("{consumer}~unreadable~{record}"),
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

/// A policy that leaves a message whole. A sink estimates from it how many tokens can be in doubt, so it states how many
/// records the message can have: a record takes at least one byte.
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

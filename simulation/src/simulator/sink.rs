//! A process's connection to a table: turns batches into rows, lets requests outlive their senders, and loses answers.

use super::ledger::rows;
use super::process::Process;
use super::record::Event;
use super::repetitions::key_of;
use super::table::{Fate, Insert, Row, Table, WAY_MAX};
use async_trait::async_trait;
use bytes::Bytes;
use millpond_consumer::{
    Attempt, Batch, BatchingPolicy, Chunk, Cut, PartKeys, PartTimes, Presence, Received, Record, RowId,
    RowKey, Settled, Sink, SinkError, SinkTable,
};
use millpond_segment::Encoding;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;

/// A process's connection to a table.
pub(crate) struct Connection {
    pub(crate) table: Arc<Table>,
    pub(crate) process: Arc<Process>,
    /// Tells the table from others.
    pub(crate) identity: String,
}

/// The rows of a batch with their numbers, each as a record.
fn rows_of(batch: &Batch) -> Result<Vec<(RowId, Record)>, SinkError> {
    let mut found = Vec::new();
    for part in &batch.parts {
        let mut id = RowId {
            sequence: part.sequence,
            record: part.first_record,
        };
        for message in part.messages()? {
            for row in rows(&String::from_utf8_lossy(&message.payload)) {
                let record = Record {
                    received_at_us: message.received_at_us,
                    payload: row.into(),
                };
                found.push((id, record));
                id.record += 1;
            }
        }
    }
    Ok(found)
}

/// The wire form of a row: a column has its source.
fn encode(source: &str, row: &[u8]) -> Bytes {
    [source.as_bytes(), b"\n", row].concat().into()
}

/// The rows of a chunk as the table sees them.
fn decode(chunk: &Chunk) -> Vec<Row> {
    let body = chunk.body.iter().zip(chunk.ids());
    body.map(|(row, id)| {
        let row = String::from_utf8_lossy(row);
        let (source, text) = row.split_once('\n').unwrap_or_default();
        // `<buffer>/<shard>/<stream>/<consumer>`
        let mut words = source.split('/').skip(1);
        let shard = words.next().and_then(|shard| shard.parse().ok());
        Row {
            shard: shard.unwrap_or(u32::MAX),
            stream: words.next().unwrap_or_default().to_owned(),
            id,
            text: text.to_owned(),
        }
    })
    .collect()
}

#[async_trait]
impl Sink for Connection {
    fn name(&self) -> &str {
        "table"
    }

    fn schema_version(&self) -> u32 {
        1
    }

    fn tables(&self) -> Vec<SinkTable> {
        vec![SinkTable::new("table", [self.identity.clone()])]
    }

    fn accepts(&self, _: &str, _: Encoding) -> bool {
        true
    }

    fn chunks(
        &self,
        batch: &Batch,
        policy: &BatchingPolicy,
        emit: &mut dyn FnMut(Cut) -> bool,
    ) -> Result<(), SinkError> {
        let (mut found, source) = (rows_of(batch)?, batch.id.source());
        found.retain(|(id, _)| {
            let mut parts = batch.parts.iter();
            let part = parts.find(|part| part.sequence == id.sequence);
            part.is_none_or(|part| !part.dropped.contains(id.record.into()))
        });
        let size = usize::try_from(policy.chunk_rows).unwrap_or(usize::MAX);
        for (index, rows) in (0..).zip(found.chunks(size)) {
            let received = rows.iter().map(|(id, row)| Received {
                at_us: row.received_at_us,
                rows: 1,
                first: *id,
            });
            let chunk = Chunk {
                index,
                table: 0,
                rows: rows.len() as u64,
                raw_bytes: rows.iter().map(|(_, row)| row.payload.len() as u64).sum(),
                body: rows
                    .iter()
                    .map(|(_, row)| encode(&source, &row.payload))
                    .collect(),
                received: Received::joined(received),
            };
            if !emit(Cut::Chunk(chunk)) {
                break;
            }
        }
        Ok(())
    }

    fn keys(&self, batch: &Batch, _: &[String]) -> Result<Vec<PartKeys>, SinkError> {
        let found = rows_of(batch)?;
        let parts = batch.parts.iter().map(|part| {
            let rows = found.iter().filter(|(id, _)| id.sequence == part.sequence);
            let keys = rows.filter_map(|(id, row)| {
                let key = key_of(&String::from_utf8_lossy(&row.payload))?;
                Some(RowKey {
                    record: id.record,
                    at_us: row.received_at_us,
                    key,
                })
            });
            let messages = part.messages()?;
            let mut times_us: Vec<i64> = messages.iter().map(|message| message.received_at_us).collect();
            Ok(PartKeys {
                sequence: part.sequence,
                received: PartTimes::of(&mut times_us),
                keys: keys.collect(),
            })
        });
        parts.collect()
    }

    fn some(&self, chunk: &Chunk, rows: &[u64]) -> Chunk {
        let row = |row: &u64| chunk.body[usize::try_from(*row).expect("a row of a chunk in memory")].clone();
        let body: Vec<Bytes> = rows.iter().map(row).collect();
        Chunk {
            rows: rows.len() as u64,
            raw_bytes: body.iter().map(|row| row.len() as u64).sum(),
            body,
            received: chunk.received(rows),
            ..chunk.clone()
        }
    }

    fn records(&self, batch: &Batch, ids: &[RowId]) -> Result<Vec<Record>, SinkError> {
        let found = rows_of(batch)?;
        let record = |wanted: &RowId| found.iter().find(|(id, _)| id == wanted);
        let records = ids.iter().map(|id| record(id).map(|(_, row)| row.clone()));
        let all: Option<Vec<_>> = records.collect();
        all.ok_or_else(|| SinkError::Refused("the batch has no such record".into()))
    }

    async fn insert(&self, chunk: &Chunk, attempt: &Attempt) -> Result<(), SinkError> {
        let Connection { table, process, .. } = self;
        process.turn().await;
        let (fate, there, back) = table.fate();
        let Attempt {
            token,
            query_id,
            first,
        } = attempt.clone();
        table.record.event(
            &process.name,
            format_args!(
                "{query_id} writes {token}, {} rows, first: {first}: {fate:?}",
                chunk.rows
            ),
        );
        let insert = Insert {
            token,
            query_id,
            rows: decode(chunk),
            fate,
        };
        let refused = table.forbids(&insert.rows);
        let number = table.begins(&insert, first);
        let (delay, lands) = match fate {
            Fate::Down => (there, false),
            Fate::LandsLate(by) => (there + by, !refused),
            _ => (there, !refused),
        };
        let at = Arc::clone(table);
        let work = async move {
            sleep(delay).await;
            // The table refuses a request before it writes anything.
            !lands || at.land(number, &insert)
        };
        let landed = match fate {
            Fate::LandsLate(_) => {
                tokio::spawn(work);
                sleep(there).await;
                true
            }
            // Without a window, no request may outlive its sender.
            _ if !table.scenario.window => work.await,
            // The request continues whatever happens to its sender.
            _ => tokio::spawn(work).await.unwrap_or(false),
        };
        sleep(back).await;
        process.turn().await;
        match fate {
            Fate::Honest if refused => {
                table.record.count(Event::ChunksRefused);
                Err(SinkError::Refused("a row is forbidden".into()))
            }
            Fate::Honest if landed => Ok(()),
            Fate::Honest => Err(SinkError::Transient("the request was ended".into())),
            Fate::Down => Err(SinkError::Transient("the table is away".into())),
            Fate::Breaks { .. } => Err(SinkError::Transient("a part could not be renamed".into())),
            Fate::LandsUnreported | Fate::LandsLate(_) => Err(SinkError::Transient("no answer came".into())),
        }
    }

    async fn presence(&self, source: &str, chunk: &Chunk) -> Result<Presence, SinkError> {
        let Connection { table, process, .. } = self;
        process.turn().await;
        let (fails, there, back) = table.asked();
        sleep(there).await;
        let found = decode(chunk);
        let rows = table.lacks(&found);
        table.record.event(
            &process.name,
            format_args!(
                "asks for {} rows of {source}: {} lack, fails: {fails}",
                chunk.rows,
                rows.len()
            ),
        );
        sleep(back).await;
        process.turn().await;
        if fails {
            return Err(SinkError::Transient("the question was not answered".into()));
        }
        Ok(Presence::Lacks {
            rows,
            certain: table.is_certain(),
        })
    }

    fn attempt_max(&self) -> Duration {
        self.table.scenario.late_by_max + 2 * WAY_MAX
    }

    async fn end_requests(&self, of: &str) {
        let _ = self.settle(of, None).await;
    }

    async fn settle(&self, of: &str, spared: Option<&str>) -> Result<Settled, SinkError> {
        let Connection { table, process, .. } = self;
        process.turn().await;
        let (fails, ends) = table.settles();
        sleep(WAY_MAX).await;
        let found = ends && table.end_requests(of, spared);
        table.record.event(
            &process.name,
            format_args!("settles {of}: fails: {fails}, ends: {ends}, found: {found}"),
        );
        sleep(WAY_MAX).await;
        process.turn().await;
        match (fails, ends) {
            (true, _) => Err(SinkError::Transient("nobody can be ended now".into())),
            (false, true) => {
                table.record.count(Event::SettledByEnding);
                Ok(Settled::Ended)
            }
            (false, false) => {
                table.record.count(Event::SettledByWaiting);
                Ok(Settled::Waits)
            }
        }
    }
}

//! A cursor, and the process that claims it. [`crate::owner`] takes and swaps the cursor.

use crate::error::ConsumeError;
use crate::metrics::Metrics;
use crate::reading::read_patiently;
use millpond_manifest::cas::{self, Snapshot};
use millpond_manifest::cursor::{Programs, UniqueSettings};
use millpond_manifest::{BatchingPolicy, Buffer, Cursor, Fingerprint, SinkTable, layout};
use millpond_runtime::{Environment, Readiness};
use millpond_storage::Store;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;
use uuid::Uuid;

/// The maximum wait for the answer whether there is a buffer.
const ASK: Duration = Duration::from_secs(5);

/// Identifies a cursor and the process that claims it.
#[derive(Clone)]
pub(crate) struct Claim {
    pub(crate) store: Store,
    pub(crate) buffer_id: Uuid,
    pub(crate) shard: u32,
    /// The number of the buffer's shards when this process read it.
    pub(crate) shards: u32,
    /// The consumer's name, which is part of the rows' source.
    pub(crate) consumer: String,
    /// The name of the cursor: the consumer's, or its repair's.
    pub(crate) cursor: String,
    pub(crate) instance: String,
    pub(crate) lease: Duration,
    pub(crate) policy: BatchingPolicy,
    /// The configured settings for repeated events. A repair has none.
    pub(crate) unique: UniqueSettings,
    /// The tables of the sink.
    pub(crate) tables: Vec<SinkTable>,
    /// Whether other consumers may write to them, too.
    pub(crate) share_tables: bool,
    /// The programs of the sink.
    pub(crate) programs: Programs,
    /// The certificate that this process presents to the leader.
    pub(crate) certificate: Option<Fingerprint>,
    pub(crate) environment: Arc<dyn Environment>,
    pub(crate) metrics: Metrics,
    pub(crate) readiness: Readiness,
}

impl Claim {
    pub(crate) fn key(&self) -> String {
        layout::cursor(self.shard, &self.cursor)
    }

    pub(crate) fn removed(&self) -> ConsumeError {
        ConsumeError::Removed {
            consumer: self.cursor.clone(),
            shard: self.shard,
        }
    }

    /// The reason why the cursor is not there: an operator removed the consumer, or the whole buffer is gone.
    pub(crate) async fn why_removed(&self, removed: ConsumeError) -> ConsumeError {
        let buffer = timeout(ASK, cas::read::<Buffer>(&self.store, layout::BUFFER)).await;
        match buffer {
            Ok(Ok(None)) => ConsumeError::BufferGone {
                consumer: self.cursor.clone(),
                url: self.store.url().to_owned(),
            },
            _ => removed,
        }
    }

    pub(crate) fn what(&self) -> String {
        format!("cursor of shard {:04}", self.shard)
    }

    pub(crate) fn unrepairable(&self, reason: String) -> ConsumeError {
        ConsumeError::Repair {
            consumer: self.consumer.clone(),
            shard: self.shard,
            reason,
        }
    }

    /// Reads the cursor, and retries until the store answers.
    pub(crate) async fn read(&self) -> Result<Option<Snapshot<Cursor>>, ConsumeError> {
        read_patiently(&self.store, &self.key(), &self.readiness, &*self.environment).await
    }
}

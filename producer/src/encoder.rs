//! CPU work: compresses blocks off the runtime's threads, at most `encoders` at a time, with reused zstd contexts and
//! block buffers. This module knows nothing about segments.

use std::sync::{Arc, Mutex, PoisonError};

use millpond_runtime::{Environment, blocking};
use millpond_segment::{BlockBuilder, CompressError, Compressor, EncodedBlock, Limits};
use tokio::sync::Semaphore;

use crate::Config;
use crate::metrics::Metrics;

/// The encoders of a producer. Clones share them.
#[derive(Clone)]
pub(crate) struct Encoders(Arc<Inner>);

/// Block-size buffers, at most as many as the budget pays for.
#[derive(Default)]
struct Buffers {
    idle: Vec<Vec<u8>>,
    made: usize,
}

struct Inner {
    free: Semaphore,
    compressors: Mutex<Vec<Compressor>>,
    buffers: Mutex<Buffers>,
    level: i32,
    buffers_max: usize,
    block_bytes: usize,
    environment: Arc<dyn Environment>,
    metrics: Metrics,
}

impl Encoders {
    pub(crate) fn new(config: &Config, environment: Arc<dyn Environment>, metrics: Metrics) -> Self {
        Self(Arc::new(Inner {
            free: Semaphore::new(config.encoders),
            compressors: Mutex::default(),
            buffers: Mutex::default(),
            level: config.compression_level,
            buffers_max: config.block_buffers(),
            block_bytes: config.block_bytes,
            environment,
            metrics,
        }))
    }

    /// Returns a builder for the next block. `full`: the block is expected to fill, so a block-size buffer is worth its
    /// memory. Other buffers grow as they fill.
    pub(crate) fn builder(&self, base_received_at_us: i64, full: bool) -> BlockBuilder {
        let buffer = if full { self.0.whole_buffer() } else { None };
        BlockBuilder::with_buffer(
            base_received_at_us,
            buffer.unwrap_or_default(),
            &Limits::default(),
        )
    }

    /// Compresses a block when an encoder is free.
    pub(crate) async fn encode(&self, block: BlockBuilder, records: u64) -> Result<EncodedBlock, String> {
        let inner = Arc::clone(&self.0);
        inner.metrics.blocks_encoding.inc();
        // The semaphore never closes. If it did, compressing without a permit would still be correct.
        let turn = self.0.free.acquire().await;
        let result = blocking::run(&*self.0.environment, move || inner.compress(block, records)).await;
        drop(turn);
        self.0.metrics.blocks_encoding.dec();
        result
            .map_err(|panic| format!("an encoder broke off: {panic}"))?
            .map_err(|error| error.to_string())
    }
}

impl Inner {
    fn whole_buffer(&self) -> Option<Vec<u8>> {
        let mut buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(buffer) = buffers.idle.pop() {
            return Some(buffer);
        }
        if buffers.made >= self.buffers_max {
            return None;
        }
        buffers.made += 1;
        Some(Vec::with_capacity(self.block_bytes))
    }

    fn compress(&self, block: BlockBuilder, records: u64) -> Result<EncodedBlock, CompressError> {
        let idle = self
            .compressors
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop();
        let mut compressor = match idle {
            Some(compressor) => compressor,
            None => Compressor::new(self.level)?,
        };
        let encoded = compressor.compress(&block, records)?;
        self.compressors
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(compressor);
        let buffer = block.into_buffer();
        let mut buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        // Buffers of giant messages and of slow streams are not worth keeping.
        let useful = self.block_bytes..=self.block_bytes * 2;
        if buffers.idle.len() < buffers.made && useful.contains(&buffer.capacity()) {
            buffers.idle.push(buffer);
        }
        Ok(encoded)
    }
}

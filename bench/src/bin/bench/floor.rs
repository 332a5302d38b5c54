//! The floor: CPU time of zstd alone on the bytes that a gateway has just committed. Reads them from the buffer, groups
//! them into blocks of 1 MiB, and compresses and decompresses them on one thread. Only that thread's time counts.

use std::fs;
use std::path::Path;

use anyhow::Context;
use bytes::Bytes;
use millpond_segment::{Decompressor, Limits, blocks, verify};
use nix::time::ClockId;

const BLOCK_BYTES: usize = 1 << 20;

/// CPU time of zstd at level 1, with its input and output sizes.
#[derive(Debug, Default)]
pub(crate) struct Floor {
    pub(crate) compress_seconds: f64,
    pub(crate) decompress_seconds: f64,
    pub(crate) raw_bytes: u64,
    pub(crate) compressed_bytes: u64,
    /// Size of all segments, including headers and indexes.
    pub(crate) stored_bytes: u64,
}

struct Worker {
    compressor: zstd::bulk::Compressor<'static>,
    decompressor: zstd::bulk::Decompressor<'static>,
    block: Vec<u8>,
    compressed: Vec<u8>,
    decompressed: Vec<u8>,
    floor: Floor,
}

/// Measures the floor for the first shard of the buffer in this directory.
pub(crate) fn measure(buffer: &Path) -> anyhow::Result<Floor> {
    let mut worker = Worker {
        compressor: zstd::bulk::Compressor::new(1)?,
        decompressor: zstd::bulk::Decompressor::new()?,
        block: Vec::with_capacity(2 * BLOCK_BYTES),
        // Touched in advance, so that page faults do not count.
        compressed: vec![1; zstd::zstd_safe::compress_bound(2 * BLOCK_BYTES)],
        decompressed: vec![1; 2 * BLOCK_BYTES],
        floor: Floor::default(),
    };
    let mut reader = Decompressor::new()?;
    let folder = buffer.join("shards/0000/segments");
    for entry in fs::read_dir(&folder).with_context(|| format!("no segments in {}", folder.display()))? {
        let object = Bytes::from(fs::read(entry?.path())?);
        worker.floor.stored_bytes += object.len() as u64;
        for part in &verify(&object, &Limits::default())?.streams {
            let bytes = part
                .slice(&object)
                .context("a part lies outside of its segment")?;
            for block in blocks(&bytes, part.offset, &Limits::default()) {
                for message in block?.decode(&mut reader)?.messages() {
                    worker.add(message?.payload)?;
                }
            }
        }
    }
    worker.work()?;
    Ok(worker.floor)
}

impl Worker {
    fn add(&mut self, payload: &[u8]) -> anyhow::Result<()> {
        if self.block.len() + payload.len() > BLOCK_BYTES {
            self.work()?;
        }
        self.block.extend_from_slice(payload);
        Ok(())
    }

    fn work(&mut self) -> anyhow::Result<()> {
        let began = thread_seconds()?;
        self.compressor
            .compress_to_buffer(&self.block, &mut self.compressed)?;
        let compressed = thread_seconds()?;
        self.decompressor
            .decompress_to_buffer(&self.compressed, &mut self.decompressed)?;
        let decompressed = thread_seconds()?;
        let floor = &mut self.floor;
        floor.compress_seconds += compressed - began;
        floor.decompress_seconds += decompressed - compressed;
        floor.raw_bytes += self.block.len() as u64;
        floor.compressed_bytes += self.compressed.len() as u64;
        anyhow::ensure!(
            self.decompressed == self.block,
            "zstd's round trip changed the data"
        );
        self.block.clear();
        Ok(())
    }
}

/// CPU time of this thread.
fn thread_seconds() -> anyhow::Result<f64> {
    let now = ClockId::CLOCK_THREAD_CPUTIME_ID.now()?;
    Ok(std::time::Duration::from(now).as_secs_f64())
}

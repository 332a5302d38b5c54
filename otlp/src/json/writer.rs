//! Writes protobuf into the given room, and never beyond it.

use super::fault::Fault;
use crate::wire::LEN;
use prost::encoding::{encode_varint, encoded_len_varint};

/// What has been written.
pub(super) struct Writer {
    out: Vec<u8>,
    room: usize,
}

/// A field whose length is unknown until its content is complete. Holds the start of the content.
#[derive(Clone, Copy)]
pub(super) struct Open {
    start: usize,
}

impl Writer {
    pub(super) fn new(room: usize) -> Self {
        Self {
            out: Vec::with_capacity(room),
            room,
        }
    }

    pub(super) fn put(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        if bytes.len() > self.room - self.out.len() {
            return Err(Fault::MoreRoom);
        }
        self.out.extend_from_slice(bytes);
        Ok(())
    }

    pub(super) fn tag(&mut self, number: u32, wire: u32) -> Result<(), Fault> {
        self.varint(u64::from(number << 3 | wire))
    }

    pub(super) fn varint(&mut self, value: u64) -> Result<(), Fault> {
        let (bytes, length) = varint(value);
        self.put(&bytes[..length])
    }

    /// Begins a field of bytes or a message. Reserves one byte for its length, which suffices for most.
    pub(super) fn open(&mut self, number: u32) -> Result<Open, Fault> {
        self.tag(number, LEN)?;
        self.put(&[0])?;
        Ok(Open {
            start: self.out.len(),
        })
    }

    /// The content of the field so far.
    pub(super) fn content(&mut self, open: Open) -> &mut [u8] {
        &mut self.out[open.start..]
    }

    /// Shortens the content of the field to this length.
    pub(super) fn truncate(&mut self, open: Open, length: usize) {
        self.out.truncate(open.start + length);
    }

    /// Ends a field: writes its length before its content.
    pub(super) fn close(&mut self, open: Open) -> Result<(), Fault> {
        let Open { start } = open;
        let length = self.out.len() - start;
        let (bytes, width) = varint(length as u64);
        if width > 1 {
            self.put(&bytes[1..width])?;
            self.out.copy_within(start..start + length, start + width - 1);
        }
        self.out[start - 1..start - 1 + width].copy_from_slice(&bytes[..width]);
        Ok(())
    }

    pub(super) fn finish(self) -> Vec<u8> {
        self.out
    }
}

fn varint(value: u64) -> ([u8; 10], usize) {
    let mut bytes = [0; 10];
    encode_varint(value, &mut &mut bytes[..]);
    (bytes, encoded_len_varint(value))
}

//! Reuses buffers of long messages: a new buffer costs a page fault per 4 KiB, as much CPU as compressing a third of
//! it. The pool never keeps more than its limit, and never hands out more room than a message asked for, rounded up.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

/// The allocator serves shorter messages: it keeps freed blocks of that size at hand.
const POOLED_MIN: usize = 128 << 10;

/// Room is rounded up to this, so that messages of similar length share buffers.
const STEP: usize = 64 << 10;

/// The idle buffers. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Buffers {
    idle: Arc<Mutex<Idle>>,
}

#[derive(Debug)]
struct Idle {
    /// Most recently used last.
    buffers: VecDeque<Vec<u8>>,
    bytes: usize,
    bytes_max: usize,
}

impl Buffers {
    /// Keeps at most `bytes_max` bytes of idle buffers.
    pub(crate) fn new(bytes_max: usize) -> Buffers {
        Buffers {
            idle: Arc::new(Mutex::new(Idle {
                buffers: VecDeque::new(),
                bytes: 0,
                bytes_max,
            })),
        }
    }

    /// The room to allocate for a message of this length.
    pub(crate) fn room(length: usize) -> usize {
        if length < POOLED_MIN {
            length
        } else {
            length.next_multiple_of(STEP)
        }
    }

    /// Takes an idle buffer with exactly this room.
    pub(crate) fn take(&self, room: usize) -> Option<Vec<u8>> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let place = idle
            .buffers
            .iter()
            .rposition(|buffer| buffer.capacity() == room)?;
        idle.bytes -= room;
        idle.buffers.remove(place)
    }

    /// Wraps the message in `buffer`. Dropping the last reference makes the buffer idle.
    pub(crate) fn lend(&self, buffer: Vec<u8>) -> Bytes {
        if buffer.capacity() < POOLED_MIN || buffer.capacity() != Self::room(buffer.capacity()) {
            return buffer.into();
        }
        let buffers = self.clone();
        Bytes::from_owner(Lent { buffer, buffers })
    }

    fn give_back(&self, mut buffer: Vec<u8>) {
        buffer.clear();
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.bytes += buffer.capacity();
        idle.buffers.push_back(buffer);
        while idle.bytes > idle.bytes_max {
            // The one that has been idle for longest.
            let Some(unused) = idle.buffers.pop_front() else {
                break;
            };
            idle.bytes -= unused.capacity();
        }
    }
}

struct Lent {
    buffer: Vec<u8>,
    buffers: Buffers,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.buffer
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.buffers.give_back(std::mem::take(&mut self.buffer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(length: usize) -> Vec<u8> {
        let mut buffer = Vec::with_capacity(Buffers::room(length));
        buffer.resize(length, 7);
        buffer
    }

    #[test]
    fn a_buffer_is_idle_when_its_message_is_gone_and_empty_when_it_is_taken() {
        let buffers = Buffers::new(1 << 20);
        let bytes = buffers.lend(message(300_000));
        let clone = bytes.clone();
        let room = Buffers::room(300_000);
        assert_eq!((bytes.len(), room), (300_000, 320 << 10));
        drop(bytes);
        assert_eq!(buffers.take(room), None, "the clone still needs it");
        drop(clone);
        assert_eq!(buffers.take(Buffers::room(200_000)), None, "has another size");
        let again = buffers.take(room).expect("idle");
        assert_eq!((again.len(), again.capacity()), (0, room));
        assert_eq!(buffers.take(room), None);
    }

    #[test]
    fn no_more_is_kept_than_the_limit_and_the_longest_unused_goes_first() {
        let buffers = Buffers::new(512 << 10);
        drop(buffers.lend(message(256 << 10)));
        drop((buffers.lend(message(128 << 10)), buffers.lend(message(192 << 10))));
        assert_eq!(buffers.idle.lock().unwrap().bytes, 320 << 10);
        assert_eq!(buffers.take(256 << 10), None);
        assert!(buffers.take(128 << 10).is_some() && buffers.take(192 << 10).is_some());
    }

    #[test]
    fn short_messages_and_odd_sizes_are_not_kept() {
        let buffers = Buffers::new(1 << 20);
        drop(buffers.lend(message(1_000)));
        drop(buffers.lend(Vec::with_capacity(POOLED_MIN + 1)));
        assert_eq!(buffers.idle.lock().unwrap().bytes, 0);
    }
}

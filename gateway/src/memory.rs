//! The requests' share of the memory budget. No request holds bytes without a reservation, and requests that are still
//! being read can never fill the budget and wait for each other.

use std::time::Duration;

use millpond_runtime::{Budget, OverBudget, Reservation};

use crate::connections::{Scarce, Seat};

/// Requests that are still being read may hold at most this fraction of the budget when they enter. The rest is for
/// what they turn out to need.
const ENTRY_SHARE: usize = 2;

/// The reservation of a request at its entry: its own bytes, a frame, and a message of typical length.
const ENTRY_BYTES: usize = 256 << 10;

/// Memory of a request beside its message until the answer: its task and its HTTP/2 stream.
const REQUEST_BYTES: usize = 12 << 10;

/// The longest request of a Kafka client, which may have many messages: that of a broker (`socket.request.max.bytes`).
const MANY_MESSAGES_BYTES: usize = 100 << 20;

/// Controls access to the budget. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Admission {
    budget: Budget,
    entry: Budget,
    /// Requests that are longer than a message take turns, or each would wait for memory that the others hold.
    turns: Budget,
    /// A frame leaves HTTP/2's window as a whole, before its content is known.
    beside_message: usize,
}

impl Admission {
    /// Admits requests with frames of at most `frame_bytes`, and with messages of at most `message_bytes`.
    pub(crate) fn new(budget: &Budget, frame_bytes: usize, message_bytes: usize) -> Admission {
        // Beside such a request, one of its messages has room twice: decompressed, and as rows. A quarter is for others.
        let room = (budget.limit() / 4 * 3).saturating_sub(2 * message_bytes);
        let longest = room.min(MANY_MESSAGES_BYTES).max(message_bytes);
        Admission {
            entry: budget.part(ENTRY_SHARE),
            turns: Budget::new(longest, Duration::MAX),
            budget: budget.clone(),
            beside_message: REQUEST_BYTES + frame_bytes,
        }
    }

    /// The longest request with many messages.
    pub(crate) fn longest(&self) -> usize {
        self.turns.limit()
    }

    /// Waits, in order of arrival, for the turn of a request that is longer than a message. This comes before
    /// [`enter`](Self::enter): while it waits, the request holds nothing.
    pub(crate) async fn turn(&self, bytes: usize) -> Reservation {
        self.turns.reserve_at_most(bytes as u64).await
    }

    /// Waits, in order of arrival, for the memory that a request needs at its entry. Meanwhile, connections with
    /// half-sent requests are closed one by one.
    pub(crate) async fn enter(&self, seat: Option<&Seat>) -> Result<HeldMemory, OverBudget> {
        let bytes = ENTRY_BYTES.min(self.entry.limit());
        let entry = self.entry.reserve(bytes);
        let entry = match seat {
            Some(seat) => {
                let requests = self.entry.limit() / bytes.max(1);
                seat.press(Scarce::Reading, requests, entry).await?
            }
            None => entry.await?,
        };
        Ok(HeldMemory {
            reservation: self.budget.reserve(bytes).await?,
            budget: self.budget.clone(),
            beside_message: self.beside_message,
            entry: Some(entry),
            turn: None,
        })
    }
}

/// The reservation of one request while it is read.
#[derive(Debug)]
pub(crate) struct HeldMemory {
    budget: Budget,
    reservation: Reservation,
    beside_message: usize,
    entry: Option<Reservation>,
    turn: Option<Reservation>,
}

impl HeldMemory {
    /// Keeps the turn of a long request until all of its messages are taken out of it.
    pub(crate) fn keep(&mut self, turn: Reservation) {
        self.turn = Some(turn);
    }

    /// Waits until the reservation covers `bytes` of the message.
    pub(crate) async fn grow_to(&mut self, bytes: usize) -> Result<(), OverBudget> {
        let missing = (self.beside_message + bytes).saturating_sub(self.reservation.bytes());
        if missing > 0 {
            self.reservation.merge(self.budget.reserve(missing).await?);
        }
        Ok(())
    }

    /// Shrinks the reservation to `bytes` for the message. The rest goes back, and another request may enter.
    pub(crate) fn settle(&mut self, bytes: usize) {
        self.reservation.shrink(self.beside_message + bytes);
        self.entry = None;
    }

    /// Takes the reservation of a part of the message, whose bytes go on separately.
    pub(crate) fn part(&mut self, bytes: usize) -> Reservation {
        self.reservation.split(bytes)
    }

    /// Splits the reservation: the message's goes with its bytes, the request's stays until the answer.
    pub(crate) fn divide(mut self) -> (Reservation, Reservation) {
        let own = self.reservation.split(REQUEST_BYTES);
        (self.reservation, own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: usize = 4 << 20;

    fn admission() -> (Budget, Admission) {
        let budget = Budget::new(LIMIT, Duration::from_secs(10));
        let admission = Admission::new(&budget, 16 << 10, LIMIT / 8);
        (budget, admission)
    }

    /// If entry could take the whole budget, requests would wait for each other until the gateway refuses them.
    #[tokio::test(start_paused = true)]
    async fn requests_that_are_being_read_leave_room_to_be_finished() {
        let (budget, admission) = admission();
        let mut entered = Vec::new();
        while let Ok(held) = admission.enter(None).await {
            entered.push(held);
        }
        assert_eq!((entered.len(), budget.held()), (8, LIMIT / 2));
        for held in &mut entered {
            held.grow_to(300 << 10).await.expect("room for all that entered");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_knows_what_it_needs_lets_the_next_in_and_keeps_what_it_takes() {
        let (budget, admission) = admission();
        let mut settled = Vec::new();
        for _ in 0..100 {
            let mut held = admission.enter(None).await.expect("the one before has settled");
            held.settle(1_000);
            settled.push(held);
        }
        assert_eq!(budget.held(), 100 * (1_000 + (16 << 10) + REQUEST_BYTES));
        let (message, own) = settled.pop().expect("a hundred").divide();
        assert_eq!(own.bytes(), REQUEST_BYTES);
        assert!(message.bytes() >= 1_000);
        drop((settled, message, own));
        assert_eq!(budget.held(), 0);
    }

    /// A long request holds memory beside its bytes, which must fit, too, or it would wait for itself.
    #[test]
    fn the_longest_request_leaves_room_for_its_largest_message_twice() {
        const MIB: usize = 1 << 20;
        for (memory, message, expected) in [
            (205, 16, 100),
            (1_000, 16, 100),
            (102, 16, 44),
            // A message is a quarter at most.
            (64, 16, 16),
            (400, 100, 100),
        ] {
            let budget = Budget::new(memory * MIB, Duration::ZERO);
            let longest = Admission::new(&budget, 64 << 10, message * MIB).longest();
            assert_eq!(longest / MIB, expected, "{memory} MiB");
            assert!(longest + 2 * message * MIB <= budget.limit() / 4 * 3);
        }
    }
}

//! What requests hold of the process's memory budget. It never lets bytes be held that are not reserved, and never lets
//! requests that are still being read fill the budget, where each would wait for the others.

use millpond_producer::{Budget, OverBudget, Reservation};

use crate::connections::{Scarce, Seat};

/// Requests that are still being read get in while they hold no more than this part of the budget at their entry: the
/// rest is left for what they turn out to need.
const ENTRY_SHARE: usize = 2;

/// What a request reserves before anything of it is read: its own bytes, a frame, and a message of a usual length.
const ENTRY_BYTES: usize = 256 << 10;

/// What a request takes beside its message until it is answered: its task and its HTTP/2 stream.
const REQUEST_BYTES: usize = 12 << 10;

/// The door to the budget. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Admission {
    budget: Budget,
    entry: Budget,
    /// A frame is taken from HTTP/2's window as a whole, before it is known what is in it.
    beside_message: usize,
}

impl Admission {
    /// For requests whose frames are at most `frame_bytes` long.
    pub(crate) fn new(budget: &Budget, frame_bytes: usize) -> Admission {
        Admission {
            entry: budget.part(ENTRY_SHARE),
            budget: budget.clone(),
            beside_message: REQUEST_BYTES + frame_bytes,
        }
    }

    /// Waits for the memory that one request needs at first. In the order of asking. While it waits, connections with half-sent
    /// requests are closed one by one.
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
}

impl HeldMemory {
    /// Waits until the message may take `bytes`. Does nothing when it may.
    pub(crate) async fn grow_to(&mut self, bytes: usize) -> Result<(), OverBudget> {
        let missing = (self.beside_message + bytes).saturating_sub(self.reservation.bytes());
        if missing > 0 {
            self.reservation.merge(self.budget.reserve(missing).await?);
        }
        Ok(())
    }

    /// The request needs no more than `bytes` for its message: what is over goes back, and another request may enter.
    pub(crate) fn settle(&mut self, bytes: usize) {
        self.reservation.shrink(self.beside_message + bytes);
        self.entry = None;
    }

    /// The message's reservation, to go on with the bytes, and the request's own, for as long as it lasts.
    pub(crate) fn divide(mut self) -> (Reservation, Reservation) {
        let own = self.reservation.split(REQUEST_BYTES);
        (self.reservation, own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const LIMIT: usize = 4 << 20;

    fn admission() -> (Budget, Admission) {
        let budget = Budget::new(LIMIT, Duration::from_secs(10));
        let admission = Admission::new(&budget, 16 << 10);
        (budget, admission)
    }

    /// With all of the budget given away at the entry they would wait for each other until they are refused.
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
}

//! What one request holds of the process's memory budget. It never lets bytes be held that are not reserved.

use millpond_producer::{Budget, OverBudget, Reservation};

/// The reservation of one request, growing while it is read.
#[derive(Debug)]
pub(crate) struct Held {
    budget: Budget,
    reservation: Reservation,
}

impl Held {
    pub(crate) fn nothing(budget: &Budget) -> Held {
        Held {
            reservation: budget.nothing(),
            budget: budget.clone(),
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.reservation.bytes()
    }

    /// Waits until `bytes` are held in all. Does nothing when they are.
    pub(crate) async fn grow_to(&mut self, bytes: usize) -> Result<(), OverBudget> {
        let missing = bytes.saturating_sub(self.bytes());
        if missing > 0 {
            self.reservation.merge(self.budget.reserve(missing).await?);
        }
        Ok(())
    }

    /// The reservation, to go on with the bytes.
    pub(crate) fn into_reservation(self) -> Reservation {
        self.reservation
    }
}

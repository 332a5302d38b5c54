//! The workspaces of a sink. Their buffers follow the size of batches, up and down: after a pause of ClickHouse, batches are larger for a while.

use crate::chunks::Workspace;
use std::sync::{Mutex, PoisonError};

/// The number of uses after which the size of buffers is compared with what they were needed for.
const USES: u32 = 64;

/// Workspaces that nobody uses at the moment.
#[derive(Default)]
pub(crate) struct Workspaces(Mutex<State>);

#[derive(Default)]
struct State {
    kept: Vec<Workspace>,
    wear: Wear,
}

/// The sizes of batches, in bytes.
#[derive(Debug, Default)]
struct Wear {
    /// Workspaces of an earlier generation have buffers that are too large.
    generation: u64,
    /// The largest batch of the generation.
    largest: u64,
    /// The largest of the last uses.
    recent: u64,
    uses: u32,
}

impl Wear {
    /// Counts a use. Begins another generation and returns true if much smaller buffers would have done for a while.
    fn used_for(&mut self, bytes: u64) -> bool {
        self.recent = self.recent.max(bytes);
        self.largest = self.largest.max(bytes);
        self.uses += 1;
        if self.uses < USES {
            return false;
        }
        let recent = std::mem::take(&mut self.recent);
        self.uses = 0;
        let ends = recent < self.largest / 2;
        if ends {
            self.largest = recent;
            self.generation += 1;
        }
        ends
    }
}

impl Workspaces {
    /// Lends a workspace for a batch of this size. `make` makes one if none is left.
    ///
    /// # Errors
    /// Those of `make`.
    pub(crate) fn lend<T, E>(
        &self,
        bytes: u64,
        make: impl FnOnce() -> Result<Workspace, E>,
        work: impl FnOnce(&mut Workspace) -> T,
    ) -> Result<T, E> {
        let (kept, generation) = self.with(|state| (state.kept.pop(), state.wear.generation));
        let mut workspace = kept.map_or_else(make, Ok)?;
        let result = work(&mut workspace);
        self.with(|state| {
            if state.wear.used_for(bytes) {
                state.kept.clear();
            }
            if state.wear.generation == generation {
                state.kept.push(workspace);
            }
        });
        Ok(result)
    }

    fn with<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    fn uses(wear: &mut Wear, bytes: u64, times: u32) -> u64 {
        for _ in 0..times {
            wear.used_for(bytes);
        }
        wear.generation
    }

    #[test]
    fn a_generation_ends_when_batches_have_been_small_for_a_while() {
        let mut wear = Wear::default();
        assert_eq!(uses(&mut wear, 100, USES), 0);
        assert_eq!(uses(&mut wear, 50, 10 * USES), 0);
        assert_eq!(uses(&mut wear, 49, USES - 1), 0);
        assert_eq!(uses(&mut wear, 50, 1), 0);
        assert_eq!(uses(&mut wear, 49, USES), 1);
        // 49 is the largest of this one.
        assert_eq!(uses(&mut wear, 25, 10 * USES), 1);
        assert_eq!(uses(&mut wear, 1_000, USES), 1);
        assert_eq!(uses(&mut wear, 400, USES), 2);
    }

    #[test]
    fn a_workspace_of_an_earlier_generation_is_not_lent_again() {
        let workspaces = Workspaces::default();
        let made = Cell::new(0);
        let make = || {
            made.set(made.get() + 1);
            Workspace::new()
        };
        let lend = |bytes| workspaces.lend(bytes, make, |_| {}).unwrap();
        // Two at the same time, the inner one of which is large.
        workspaces.lend(10, make, |_| lend(1_000)).unwrap();
        assert_eq!(made.get(), 2);
        (0..USES).for_each(|_| lend(10));
        assert_eq!(made.get(), 2);
        // The generation ends while another one is in use.
        workspaces
            .lend(10, make, |_| (0..USES).for_each(|_| lend(10)))
            .unwrap();
        assert_eq!(made.get(), 3);
        workspaces.lend(10, make, |_| lend(10)).unwrap();
        assert_eq!(made.get(), 4);
    }
}

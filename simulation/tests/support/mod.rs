//! Searches a model to the end.

use stateright::{Checker, HasDiscoveries, Model};
use std::fmt::Debug;
use std::hash::Hash;
use std::num::NonZero;
use std::thread::available_parallelism;

/// Searches the whole bound: every invariant holds, and the search reaches every required state.
pub(crate) fn holds<M>(model: M)
where
    M: Model<
            State: Clone + Debug + Hash + PartialEq + Send + Sync,
            Action: Clone + Debug + PartialEq + Send + Sync,
        > + Send
        + Sync
        + 'static,
{
    let checker = model
        .checker()
        .threads(available_parallelism().map_or(1, NonZero::get))
        .finish_when(HasDiscoveries::AnyFailures)
        .spawn_dfs()
        .join();
    println!("{} states", checker.unique_state_count());
    let properties = checker.model().properties();
    let failures = properties.iter().filter(|p| p.expectation.discovery_is_failure());
    let violated: Vec<_> = failures
        .filter_map(|p| checker.discovery(p.name).map(|_| p.name))
        .collect();
    assert!(violated.is_empty(), "violated: {violated:?}");
    checker.assert_properties();
}

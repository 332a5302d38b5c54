//! Small bounds searched to the end, and planted bugs found.

use millpond_simulation::{Bounds, Bug, System};
use stateright::{Checker, HasDiscoveries, Model};
use std::num::NonZero;
use std::thread::available_parallelism;

fn threads() -> usize {
    available_parallelism().map_or(1, NonZero::get)
}

/// Searches the whole bound: everything that must hold does, and everything that must be reached is.
fn holds(bounds: Bounds) {
    let system = System {
        bounds,
        bug: Bug::None,
    };
    let checker = system.checker().threads(threads()).spawn_dfs().join();
    println!("{} states", checker.unique_state_count());
    checker.assert_properties();
}

/// The names of the properties that the bug violates, as many as are found until the first.
fn violated(bounds: Bounds, bug: Bug) -> Vec<&'static str> {
    let checker = System { bounds, bug }
        .checker()
        .threads(threads())
        .finish_when(HasDiscoveries::AnyFailures)
        .spawn_bfs()
        .join();
    let properties = checker.model().properties();
    let failures = properties.iter().filter(|p| p.expectation.discovery_is_failure());
    let names = failures.map(|p| p.name);
    names.filter(|name| checker.discovery(name).is_some()).collect()
}

/// Every swap's outcome is reported.
fn calm(bounds: Bounds) -> Bounds {
    Bounds {
        producer_faults: 0,
        collector_faults: 0,
        ..bounds
    }
}

/// The owners are configured with different rules.
fn different_rules(bounds: Bounds) -> Bounds {
    Bounds {
        rules_differ: true,
        ..bounds
    }
}

/// The checker finds the bug, by one of these invariants.
fn finds(bounds: Bounds, bug: Bug, invariants: &[&str]) {
    let violated = violated(bounds, bug);
    println!("{bug:?}: {violated:?}");
    let named = |name: &&str| invariants.iter().any(|invariant| name.starts_with(invariant));
    assert!(violated.iter().any(named), "{bug:?} violated only {violated:?}");
}

#[test]
fn two_producers_and_a_collector() {
    holds(Bounds::commit());
}

#[test]
fn producers_that_crash_and_are_forgotten() {
    holds(Bounds::forgotten());
}

#[test]
fn two_owners_of_a_cursor() {
    holds(Bounds::delivery());
}

#[test]
fn two_owners_that_crash_and_release() {
    holds(Bounds::takeover());
}

#[test]
fn two_owners_with_different_rules() {
    holds(different_rules(Bounds::takeover()));
}

#[test]
fn everybody_at_once() {
    holds(Bounds::whole());
}

/// An owner that was fenced and does not know it goes on while its successor gives the cursor back cleanly and a third
/// one brings another rule into force.
#[test]
fn a_fenced_owner_that_outlives_a_change_of_the_rule() {
    holds(Bounds {
        owner_faults: 0,
        owner_crashes: 0,
        epochs: 3,
        ..different_rules(Bounds::takeover())
    });
}

#[test]
fn finds_that_the_producer_table_is_ignored() {
    finds(Bounds::commit(), Bug::ProducerTableIgnored, &["1", "2"]);
}

#[test]
fn finds_that_an_attempt_is_given_up_while_it_may_still_land() {
    finds(Bounds::commit(), Bug::ResolvedTooEarly, &["2"]);
}

#[test]
fn finds_that_the_group_of_an_unresolved_commit_changes() {
    finds(Bounds::commit(), Bug::UnresolvedGroupChanged, &["2"]);
}

#[test]
fn finds_that_the_orphan_floor_is_ignored() {
    finds(
        calm(Bounds::commit()),
        Bug::OrphanFloorIgnored,
        &["1: what the log refers to"],
    );
}

#[test]
fn finds_that_a_page_reference_is_dropped() {
    finds(
        Bounds::commit(),
        Bug::PageReferenceDropped,
        &["1: the log is whole"],
    );
}

#[test]
fn finds_that_a_page_is_referred_to_before_it_is_stored() {
    finds(
        Bounds::commit(),
        Bug::PageAfterReference,
        &["1: what the log refers to"],
    );
}

#[test]
fn finds_that_the_collector_deletes_before_it_trims() {
    let referred = "1: what the log refers to";
    finds(calm(Bounds::commit()), Bug::DeleteBeforeTrim, &[referred]);
    let one_owner = Bounds {
        owners: 1,
        epochs: 1,
        ..Bounds::whole()
    };
    finds(one_owner, Bug::DeleteBeforeTrim, &[referred]);
}

#[test]
fn finds_that_the_fence_is_ignored() {
    finds(Bounds::delivery(), Bug::FenceIgnored, &["5"]);
}

#[test]
fn finds_that_a_plan_is_written_after_the_sink() {
    finds(
        Bounds::delivery(),
        Bug::PlanAfterSink,
        &["3: nothing is in the sink twice"],
    );
}

#[test]
fn finds_that_a_hole_is_acknowledged() {
    finds(
        Bounds::delivery(),
        Bug::AcknowledgeOverHole,
        &["3: all below next"],
    );
}

#[test]
fn finds_that_the_rule_is_not_pinned() {
    let bounds = different_rules(Bounds::takeover());
    finds(bounds, Bug::RuleNotPinned, &["3: nothing is in the sink twice"]);
}

#[test]
fn finds_that_a_cursor_in_doubt_is_released_as_clean() {
    let bounds = different_rules(Bounds::takeover());
    finds(bounds, Bug::ReleasedInDoubt, &["3: nothing is in the sink twice"]);
}

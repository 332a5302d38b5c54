//! Exhaustive searches within small bounds. `make planted-bugs` shows that they find bugs.

mod support;

use millpond_simulation::{Bounds, System};

fn holds(bounds: Bounds) {
    support::holds(System { bounds });
}

/// The owners are configured with different policies.
fn different_rules(bounds: Bounds) -> Bounds {
    Bounds {
        policies_differ: true,
        ..bounds
    }
}

#[test]
fn two_producers_and_gc() {
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

/// An operator resets the cursor, whoever owns it, and the sink loses the rows of a token.
#[test]
fn a_cursor_that_is_reset() {
    holds(Bounds::operated());
}

/// A consumer that starts again after a removal asks the sink about rows that were sent before.
#[test]
fn a_cursor_that_is_removed() {
    holds(Bounds {
        poisons: 0,
        resets: 0,
        removals: 1,
        ..Bounds::operated()
    });
}

/// Two tokens lose their rows, and a third one inserts them.
#[test]
fn a_sink_that_loses_rows() {
    holds(Bounds {
        segments: vec![vec![1, 1]],
        poisons: 2,
        owner_faults: 0,
        owner_crashes: 1,
        ..Bounds::delivery()
    });
}

/// Owners bisect a refused chunk, in any succession and whenever somebody repairs the sink.
#[test]
fn a_sink_that_refuses_a_row() {
    holds(Bounds::refused());
}

/// Each half is halved again.
#[test]
fn a_sink_that_refuses_rows_of_a_longer_chunk() {
    holds(Bounds {
        segments: vec![vec![1, 1, 1]],
        forbidden: vec![0, 2],
        owner_faults: 0,
        repairs: 0,
        ..Bounds::refused()
    });
}

/// An operator skips a segment, also one in a batch that is in flight.
#[test]
fn a_segment_that_is_left_out() {
    holds(Bounds {
        segments: vec![vec![1, 1]],
        owner_faults: 0,
        poisons: 1,
        skips: 1,
        epochs: 4,
        ..different_rules(Bounds::delivery())
    });
}

/// A skip starts with new chunks, of which the sink has refused nothing.
#[test]
fn a_segment_of_a_refused_chunk_that_is_left_out() {
    holds(Bounds {
        owner_faults: 0,
        skips: 1,
        repairs: 0,
        epochs: 4,
        ..Bounds::refused()
    });
}

#[test]
fn everybody_at_once() {
    holds(Bounds::whole());
}

/// A fenced owner may send a batch that it planned before its segments were in the log.
#[test]
fn owners_that_plan_ahead() {
    holds(Bounds {
        segments: vec![vec![1, 2]],
        ahead: 1,
        ..Bounds::delivery()
    });
}

/// The owners withdraw their plans ahead, so that another policy can come into force.
#[test]
fn owners_that_plan_ahead_and_give_the_cursor_back() {
    holds(Bounds {
        segments: vec![vec![1, 1, 1]],
        ahead: 1,
        owner_faults: 0,
        owner_crashes: 0,
        epochs: 3,
        ..different_rules(Bounds::takeover())
    });
}

/// An owner planned ahead, is fenced and does not know it. Its successor releases the cursor cleanly, and a third owner
/// finds the plans. The sink may lose the rows of the first owner's token.
#[test]
fn owners_after_a_clean_release_with_plans_ahead() {
    holds(Bounds {
        segments: vec![vec![1, 1]],
        ahead: 1,
        owner_faults: 0,
        owner_crashes: 0,
        poisons: 1,
        epochs: 3,
        ..different_rules(Bounds::takeover())
    });
}

/// Rows that were sent lie behind rows that were not, and the successor would cut them into other chunks.
#[test]
fn an_owner_that_leaves_batches_behind_a_hole() {
    holds(Bounds {
        segments: vec![vec![2, 1, 1]],
        owner_faults: 0,
        owner_crashes: 0,
        ..different_rules(Bounds::takeover())
    });
}

/// A fenced owner that does not know it continues, while its successor releases the cursor cleanly and a third owner
/// brings another policy into force.
#[test]
fn a_fenced_owner_that_outlives_a_change_of_the_rule() {
    holds(Bounds {
        owner_faults: 0,
        owner_crashes: 0,
        epochs: 3,
        ..different_rules(Bounds::takeover())
    });
}

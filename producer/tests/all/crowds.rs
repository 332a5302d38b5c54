//! Many producers of one shard that all begin at once, in virtual time, and what becomes of groups that lost a race.

use crate::support::group::{Group, SECOND, load, percentile, slow_store};

#[tokio::test(start_paused = true)]
async fn a_crowd_that_begins_at_once_settles_on_its_leader() {
    let group = Group::new(120, SECOND, slow_store()).await;
    load(&group, 5).await;
    let attempts = group.counts("millpond_producer_commit_attempts_total");
    let segments = group.world.segments().await;
    let waited = load(&group, 20).await;
    let attempts = group.counts("millpond_producer_commit_attempts_total") - attempts;
    let segments = group.world.segments().await - segments;
    let (p50, p99) = (percentile(&waited, 50), percentile(&waited, 99));
    println!(
        "120 at 1 s: p50 {p50:?}, p99 {p99:?}, max {:?}, {segments} segments, {attempts} swaps",
        percentile(&waited, 100)
    );
    assert!(p50 < SECOND, "{p50:?}");
    assert!(p99 < 2 * SECOND, "{p99:?}");
    assert!(segments < 40, "{segments} segments");
    assert!(attempts < 60.0, "{attempts} swaps");
}

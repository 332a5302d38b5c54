//! Many producers of one shard that begin at once, in virtual time, and the groups that lose a race.

use std::time::Duration;

use crate::sources;
use crate::support::group::{Group, SECOND, Way, load, percentile, slow_store};
use crate::support::{append, send_first};
use millpond_manifest::{Buffer, ProducerId, cas, layout};
use millpond_producer::{AppendError, Committed, Producer};
use millpond_storage::unreliable::{Fault, Faults, On};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use uuid::Uuid;

#[tokio::test(start_paused = true)]
async fn a_crowd_that_begins_at_once_settles_on_its_leader() {
    let group = Group::crowd(250, SECOND, slow_store()).await;
    let begun = load(&group, 20).await;
    let begun_segments = group.world.segments().await;
    let settled = load(&group, 20).await;
    let settled_segments = group.world.segments().await - begun_segments;
    let at = |waited: &[Duration]| [50, 99, 100].map(|per_cent| percentile(waited, per_cent));
    let ([begun_50, begun_99, _], [settled_50, settled_99, _]) = (at(&begun), at(&settled));
    println!(
        "250 at 1 s, p50, p99, max: {:?}, {begun_segments} segments; then {:?}, {settled_segments} segments",
        at(&begun),
        at(&settled)
    );
    assert!(begun_50 < 2 * SECOND, "p50 {begun_50:?} at the beginning");
    assert!(begun_99 < 5 * SECOND, "p99 {begun_99:?} at the beginning");
    assert!(
        begun_segments < 1_500,
        "{begun_segments} segments at the beginning"
    );
    assert!(settled_50 < SECOND, "p50 {settled_50:?}");
    assert!(settled_99 < 2 * SECOND, "p99 {settled_99:?}");
    assert!(settled_segments < 40, "{settled_segments} segments");
}

/// Two producers. The second one has not met the first, which leads: it loses the race for its first commit.
async fn late_to_meet() -> Group {
    let group = Group::new(2, SECOND, Faults::default()).await;
    append(&group.producers[0], "leads").await.unwrap();
    group
}

#[tokio::test(start_paused = true)]
async fn a_group_that_lost_a_race_is_handed_over() {
    let group = late_to_meet().await;
    append(&group.producers[1], "handed over").await.unwrap();
    assert_eq!(group.network.asked(), 1);
    assert!(group.counts("millpond_producer_delegated_bytes_total") > 0.0);
    assert_eq!(group.world.log().await, ["leads", "handed over"]);
    assert_eq!(
        group.world.segments().await,
        2,
        "its segment is the one in the log"
    );
}

#[tokio::test(start_paused = true)]
async fn a_group_that_the_leader_does_not_take_is_committed_without_it() {
    for way in [Way::Closed, Way::NoAnswer, Way::Hangs, Way::Breaks, Way::Twice] {
        let group = late_to_meet().await;
        group.network.decide(move |_, _| way);
        append(&group.producers[1], "once").await.unwrap();
        assert_eq!(group.network.asked(), 1, "{way:?}");
        sleep(60 * SECOND).await;
        assert_eq!(group.world.log().await, ["leads", "once"], "{way:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_group_with_numbered_requests_is_handed_over() {
    let group = late_to_meet().await;
    assert!(!send_first(&group.producers[1], 7, "numbered").await.is_repeated);
    assert_eq!(group.network.asked(), 1);
    assert_eq!(group.world.log().await, ["leads", "numbered"]);
    assert_eq!(group.world.manifest().await.state.clients[0].last, 1);
    assert!(send_first(&group.producers[0], 7, "numbered").await.is_repeated);
}

#[tokio::test(start_paused = true)]
async fn a_group_with_offsets_of_a_source_is_not_handed_over() {
    let group = late_to_meet().await;
    sources::place(&group.world, 0).await;
    let bridge = &group.producers[1];
    let sent = sources::send(bridge, "offsets", 0, 3).await;
    assert!(sent.is_ok(), "{sent:?}");
    // From here on the bridge knows the position and the leader, but not the manifest in force.
    append(&group.producers[0], "leads again").await.unwrap();
    let sent = sources::send(bridge, "more", 3, 5).await;
    assert_eq!(group.network.asked(), 0, "offsets of a source were handed over");
    assert!(sent.is_ok(), "{sent:?}");
    let log = ["leads", "offsets", "leads again", "more"];
    assert_eq!(group.world.log().await, log);
}

/// The store refuses the second copy of a swap of which the first landed. Another producer takes the lead in between.
#[tokio::test(start_paused = true)]
async fn a_group_that_may_have_landed_is_not_handed_over() {
    let mut group = Group::new(1, SECOND, Faults::default()).await;
    let follower = group.start(1, SECOND, false).await;
    group.controls[1].once(On::Update, "manifest", Fault::Repeated(3 * SECOND));
    let leads = async {
        sleep(2 * SECOND).await;
        append(&group.producers[0], "leads").await.unwrap();
    };
    let (landed, ()) = tokio::join!(append(&follower, "landed"), leads);
    assert_eq!(landed.unwrap().sequence, 0);
    assert_eq!(group.controls[1].injected().repeated, 1);
    assert_eq!(group.network.asked(), 0, "an unresolved group was handed over");
    assert_eq!(group.world.log().await, ["landed", "leads"]);
}

#[tokio::test(start_paused = true)]
async fn a_producer_is_ready_when_the_leader_has_committed_its_group() {
    let group = late_to_meet().await;
    // After the lost race, the store fails once to answer.
    group.controls[1].once(On::Get, "manifest", Fault::Lost);
    append(&group.producers[1], "handed over").await.unwrap();
    assert_eq!((group.network.asked(), group.controls[1].unused()), (1, 0));
    // The committer goes on as soon as the callers have their answer.
    sleep(SECOND / 100).await;
    let waits = group.producers[1].readiness().waiting_for();
    assert!(waits.is_empty(), "it still waits: {waits:?}");
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_loses_races_does_not_refuse_its_followers() {
    let group = late_to_meet().await;
    let follower = &group.producers[1];
    append(follower, "meets the leader").await.unwrap();
    // The leader's next swap gets no answer, and others are faster than each of the following.
    group.controls[0].once(On::Update, "manifest", Fault::Lost);
    let asked = group.network.asked();
    let races = async {
        for _ in 0..10 {
            let mut swap = group.controls[0].hold(On::Update, "manifest");
            swap.arrived().await;
            sleep(SECOND * 7 / 10).await;
            group.world.change_manifest(|_| {}).await;
            swap.release();
        }
    };
    let start = Instant::now();
    let both = async { tokio::join!(append(follower, "patient"), races).0 };
    // A follower that was refused commits, and the leader has nothing left to lose races with.
    let committed = timeout(60 * SECOND, both).await.expect("the leader refused");
    committed.unwrap();
    assert!(start.elapsed() > 7 * SECOND, "{:?}", start.elapsed());
    assert_eq!(
        group.counts("millpond_producer_fallbacks_total"),
        0.0,
        "the leader refused"
    );
    assert_eq!(group.network.asked(), asked + 1);
}

#[tokio::test(start_paused = true)]
async fn a_leader_leaves_nobody_a_turn() {
    let mut group = Group::new(0, SECOND, slow_store()).await;
    let (leader, store) = group.start_behind(100, SECOND).await;
    // They do not reach it, and commit for themselves.
    group.network.decide(|_, _| Way::Closed);
    for number in 0..30 {
        let racer = group.start(number, SECOND, false).await;
        group.producers.push(racer);
    }
    let lead = async {
        for number in 0..30 {
            append(&leader, &format!("leader {number}")).await.unwrap();
        }
    };
    tokio::join!(lead, load(&group, 60));
    let waits = store.waits();
    assert!(waits.len() > 20, "{} lost races", waits.len());
    let longest = waits.iter().max().unwrap();
    assert!(
        *longest < Duration::from_millis(5),
        "{longest:?} before the next swap"
    );
}

/// Another producer commits, and the leader's store goes on showing the manifest from before.
#[tokio::test(start_paused = true)]
async fn a_leader_whose_store_stays_behind_pauses_and_refuses_its_followers() {
    a_leader_stays_behind(1).await;
}

/// The store has two old states, and shows them in turns.
#[tokio::test(start_paused = true)]
async fn a_leader_whose_store_shows_old_states_in_turns_pauses_as_well() {
    a_leader_stays_behind(2).await;
}

/// Appends a message while the test goes on.
fn append_aside(producer: &Producer, text: &'static str) -> JoinHandle<Result<Committed, AppendError>> {
    let producer = producer.clone();
    tokio::spawn(async move { append(&producer, text).await })
}

/// Checks that the producer shows a wait for one of these reasons.
fn assert_waits(producer: &Producer, reasons: &[&str]) {
    let waits = producer.readiness().waiting_for();
    let is_one = |wait: &String| reasons.iter().any(|reason| wait.contains(reason));
    assert!(waits.iter().any(is_one), "{waits:?}");
}

async fn a_leader_stays_behind(states: usize) {
    let mut group = Group::new(0, SECOND, slow_store()).await;
    let (leader, behind) = group.start_behind(7, SECOND).await;
    append(&leader, "leads").await.unwrap();
    let follower = group.start(1, SECOND, false).await;
    append(&follower, "meets the leader").await.unwrap();
    for _ in 0..states {
        behind.stay_behind().await;
        group.world.change_manifest(|_| {}).await;
    }
    let swaps_before = behind.swaps();
    let own = append_aside(&leader, "waits");
    let start = Instant::now();
    append(&follower, "not through the leader").await.unwrap();
    assert!(start.elapsed() < 8 * SECOND, "{:?}", start.elapsed());
    sleep(60 * SECOND - start.elapsed()).await;
    assert!(!own.is_finished());
    assert_waits(&leader, &["refused to replace", "earlier version"]);
    let swaps = behind.swaps() - swaps_before;
    assert!(swaps < 60, "{swaps} swaps without a pause");
    behind.catch_up();
    own.await.unwrap().unwrap();
    assert!(leader.readiness().waiting_for().is_empty());
}

/// Somebody restores a manifest whose number is smaller for good. The producer waits for a later one, and then goes on with it.
#[tokio::test(start_paused = true)]
async fn a_producer_goes_on_with_a_restored_manifest_of_a_smaller_number() {
    let mut group = Group::new(0, SECOND, Faults::default()).await;
    let producer = group.start(1, SECOND, false).await;
    append(&producer, "before").await.unwrap();
    for _ in 0..20 {
        group.world.change_manifest(|_| {}).await;
    }
    append(&producer, "known").await.unwrap();
    group
        .world
        .change_manifest(|manifest| manifest.stamp.version = 0)
        .await;
    let own = append_aside(&producer, "waits");
    sleep(10 * SECOND).await;
    assert_waits(&producer, &["earlier version"]);
    let ended = timeout(60 * SECOND, own).await;
    ended.unwrap().unwrap().unwrap();
    append(&producer, "after").await.unwrap();
    assert_eq!(group.world.log().await, ["before", "known", "waits", "after"]);
    sleep(SECOND / 100).await;
    assert!(producer.readiness().waiting_for().is_empty());
}

/// Somebody deleted the buffer and created another one in its place. A producer of the old one must not begin a manifest: the
/// new one's producers would refuse it for ever.
#[tokio::test(start_paused = true)]
async fn a_producer_begins_no_manifest_in_another_buffer() {
    let mut group = Group::new(0, SECOND, Faults::default()).await;
    let producer = group.start(1, SECOND, false).await;
    append(&producer, "before").await.unwrap();
    let store = group.world.honest.clone();
    let old = cas::read::<Buffer>(&store, layout::BUFFER)
        .await
        .unwrap()
        .unwrap()
        .state;
    store.delete(layout::BUFFER).await.unwrap();
    store.delete(&layout::manifest(0)).await.unwrap();
    let new = Buffer::new(Uuid::from_u128(7), 1);
    cas::create_once(&store, layout::BUFFER, new).await.unwrap();
    let lost = append(&producer, "lost with the log").await;
    assert!(matches!(lost, Err(AppendError::OutcomeUnknown(_))), "{lost:?}");
    let waits = append_aside(&producer, "waits");
    sleep(120 * SECOND).await;
    let begun = store.get(&layout::manifest(0)).await.unwrap();
    assert!(begun.is_none(), "it began a manifest");
    assert_waits(&producer, &["has taken the place of"]);
    // The old buffer returns.
    store.delete(layout::BUFFER).await.unwrap();
    cas::create_once(&store, layout::BUFFER, old).await.unwrap();
    waits.await.unwrap().unwrap();
    assert_eq!(group.world.log().await, ["waits"]);
}

/// A read of an earlier state says nothing about the hours before it.
#[tokio::test(start_paused = true)]
async fn earlier_states_count_only_while_the_store_goes_on_showing_them() {
    for commits in [true, false] {
        let mut group = Group::new(0, SECOND, Faults::default()).await;
        let (producer, behind) = group.start_behind(7, SECOND).await;
        append(&producer, "before").await.unwrap();
        behind.stay_behind().await;
        append(&producer, "known").await.unwrap();
        for _ in 0..10 {
            producer.look_for(ProducerId([9; 16]));
            match commits {
                // Without a read: the producer knows the manifest.
                true => _ = append(&producer, "known").await.unwrap(),
                false => sleep(3_600 * SECOND).await,
            }
            sleep(4 * SECOND).await;
        }
        behind.catch_up();
        append(&producer, "after").await.unwrap();
        let manifest = group.world.manifest().await.state;
        assert_eq!(manifest.producers.len(), 1, "it went on under another id");
    }
}

/// A cache says that there is no manifest. The producer neither makes another one nor asks without a pause.
#[tokio::test(start_paused = true)]
async fn a_producer_whose_store_shows_no_manifest_waits() {
    let mut group = Group::new(0, SECOND, slow_store()).await;
    let (producer, behind) = group.start_behind(7, SECOND).await;
    append(&producer, "before").await.unwrap();
    group.world.change_manifest(|_| {}).await;
    behind.show_nothing();
    let swaps_before = behind.swaps();
    let own = append_aside(&producer, "waits");
    sleep(20 * SECOND).await;
    assert_waits(&producer, &["earlier version"]);
    let swaps = behind.swaps() - swaps_before;
    assert!(swaps <= 1, "{swaps} swaps");
    behind.catch_up();
    own.await.unwrap().unwrap();
    assert_eq!(group.world.log().await, ["before", "waits"]);
}

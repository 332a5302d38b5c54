//! Numbered requests that another producer commits, in virtual time.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::clients::{counted, send};
use crate::leader::{delegated, request};
use crate::support::group::{Group, SECOND, Way, address, append_all, config, percentile, slow_store};
use crate::support::{append, send_first};
use futures::future::join_all;
use millpond_manifest::{
    ClientClaim, ClientId, ClientRefusal, Fingerprint, Manifest, Numbers, ProducerId, SourcePartition,
};
use millpond_producer::{AppendError, Numbered, PeerRefusal, PeerRequest, Peering, Producer};
use millpond_storage::unreliable::{Fault, Faults, On, Outage};
use tokio::time::{Instant, sleep};
use ulid::Ulid;

/// A leader, and followers that know it and its rhythm.
async fn settled(followers: u64) -> Group {
    let group = Group::new(1 + followers, SECOND / 5, Faults::default()).await;
    append(&group.producers[0], "first").await.unwrap();
    for round in 0..3 {
        let text = format!("round {round}");
        let all = group.producers.iter().map(|producer| append(producer, &text));
        join_all(all).await.into_iter().for_each(|it| _ = it.unwrap());
    }
    assert_eq!(group.leader().await, Some(address(0)));
    group
}

impl Group {
    fn fallbacks(&self, reason: &str) -> f64 {
        self.counts(&format!(
            "millpond_producer_fallbacks_total{{reason=\"{reason}\"}}"
        ))
    }
}

async fn send_counted(producer: &Producer, client: u8, number: u64, text: &str) -> u64 {
    let sent = send(producer, text, counted(client, number, text)).await.unwrap();
    assert!(!sent.is_repeated);
    sent.sequence
}

#[tokio::test(start_paused = true)]
async fn numbered_requests_of_all_producers_are_in_one_segment() {
    let group = settled(2).await;
    for number in 1..4 {
        let text = format!("number {number}");
        let sent = (0..).zip(&group.producers);
        let sent = sent.map(|(client, producer)| send_counted(producer, client, number, &text));
        let sequences = join_all(sent).await;
        assert!(sequences.iter().all(|it| *it == sequences[0]), "{sequences:?}");
        // A copy to any other producer gets the place of the first.
        let copies = (0..).zip(group.producers.iter().cycle().skip(1)).take(3);
        let copies = copies.map(|(client, producer)| send(producer, &text, counted(client, number, &text)));
        for copy in join_all(copies).await {
            let copy = copy.unwrap();
            assert_eq!((copy.is_repeated, copy.sequence), (true, sequences[0]));
        }
    }
    let state = group.world.manifest().await.state;
    assert!(state.clients.len() == 3 && state.clients.iter().all(|row| row.last == 3));
    assert!(group.network.numbered.load(Relaxed) > 6);
    let log = group.world.log().await;
    assert_eq!(
        log.iter().filter(|it| it.starts_with("number")).count(),
        9,
        "{log:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_refused_request_leaves_with_its_answer_and_the_rest_goes_on() {
    let group = settled(1).await;
    let (leader, follower) = (&group.producers[0], &group.producers[1]);
    let one = send_counted(leader, 7, 1, "one").await;
    for (client, large) in [(8, false), (9, true)] {
        let filler = if large {
            noise(600_000)
        } else {
            "filler".to_owned()
        };
        let asked = group.network.asked();
        let (again, gap, other, plain) = tokio::join!(
            send(follower, "one", counted(7, 1, "one")),
            send(follower, "nine", counted(7, 9, "nine")),
            send_counted(follower, client, 1, "other"),
            append(follower, &filler),
        );
        let again = again.unwrap();
        assert_eq!((again.is_repeated, again.sequence), (true, one));
        assert_eq!(gap, Err(AppendError::Client(ClientRefusal::Gap { last: 1 })));
        assert_eq!(plain.unwrap().sequence, other);
        assert_eq!(
            group.network.asked(),
            asked + 1,
            "the group was handed over again"
        );
        // The next one finds the leader as before.
        append(follower, "next").await.unwrap();
        assert_eq!(group.network.asked(), asked + 2, "the leader is avoided");
    }
    assert_eq!(group.fallbacks("client"), 2.0);
    assert_eq!(group.counts("millpond_producer_fallbacks_total"), 2.0);
    assert_eq!(group.counts("millpond_producer_numbers_spent_total"), 2.0);
    assert_eq!(group.leader().await, Some(address(0)));
    let log = group.world.log().await;
    let times = |text: &str| log.iter().filter(|it| *it == text).count();
    assert_eq!((times("one"), times("nine"), times("other")), (1, 0, 2));
}

/// The leader refuses a copy, and then the store does not answer it. The follower's manifest does not show the leader's copy.
#[tokio::test(start_paused = true)]
async fn a_refused_group_is_not_handed_over_after_a_lost_race() {
    let group = settled(1).await;
    let (leader, follower) = (&group.producers[0], &group.producers[1]);
    let asked = group.network.asked();
    group.controls[0].once(On::Update, "manifest", Fault::Lost);
    let mut swap = group.controls[1].hold(On::Update, "manifest");
    let races = async {
        while group.fallbacks("client") < 1.0 {
            sleep(Duration::from_millis(1)).await;
        }
        group.controls[0].set_outage(Some(Outage::Fails));
        swap.arrived().await;
        group.world.change_manifest(|_| {}).await;
        swap.release();
    };
    let copy = send(follower, "one", counted(7, 1, "one"));
    let follows = async {
        let (copy, ()) = tokio::join!(copy, races);
        assert_eq!(
            group.network.asked(),
            asked + 1,
            "the group was handed over again"
        );
        group.controls[0].heal();
        copy.unwrap()
    };
    let (own, copy) = tokio::join!(send(leader, "one", counted(7, 1, "one")), follows);
    let own = own.unwrap();
    assert_eq!((own.is_repeated, copy.is_repeated), (true, false));
    assert_eq!(own.sequence, copy.sequence);
    assert_eq!(group.counts("millpond_producer_numbers_spent_total"), 0.0);
}

fn kafka(epoch: u16, first: u32, count: u32) -> Numbered {
    Numbered {
        client: ClientId([9; 16]),
        numbers: Numbers::Sequence { epoch, first, count },
        checksum: 0,
        source: None,
    }
}

/// The manifest that a lost race leads to refuses a request that nobody was asked to commit: it leaves, and the leader gets the rest.
#[tokio::test(start_paused = true)]
async fn a_group_is_handed_over_without_what_the_manifest_refuses() {
    let group = Group::new(2, SECOND, Faults::default()).await;
    let (leader, late) = (&group.producers[0], &group.producers[1]);
    let first = send(leader, "one", kafka(0, 0, 5)).await.unwrap();
    let (again, other) = tokio::join!(send(late, "one", kafka(0, 0, 5)), append(late, "other"));
    let again = again.unwrap();
    assert_eq!((again.is_repeated, again.sequence), (true, first.sequence));
    other.unwrap();
    assert_eq!(group.counts("millpond_producer_fallbacks_total"), 0.0);
    assert_eq!(group.network.asked(), 1);
    assert_eq!(group.world.log().await, ["one", "other"]);
}

fn noise(length: u32) -> String {
    let mut state = 1_u32;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        char::from(b' ' + state.to_le_bytes()[1] % 90)
    };
    (0..length).map(next).collect()
}

/// If one commit has two copies, the leader's lands. The follower would race with the leader for the answer, so it hears of its
/// refusal after the leader's swap.
#[tokio::test(start_paused = true)]
async fn a_follower_hears_of_a_refused_client_after_the_leaders_swap() {
    let group = settled(1).await;
    let (leader, follower) = (&group.producers[0], &group.producers[1]);
    let mut swap = group.controls[0].hold(On::Update, "manifest");
    let swaps = async {
        swap.arrived().await;
        // The leader is about to commit without the follower, which waits.
        sleep(2 * SECOND).await;
        assert_eq!(group.fallbacks("client"), 0.0, "the follower was told too early");
        swap.release();
    };
    let own = send(leader, "one", counted(7, 1, "one"));
    let copy = send(follower, "one", counted(7, 1, "one"));
    let (own, copy, ()) = tokio::join!(own, copy, swaps);
    let (own, copy) = (own.unwrap(), copy.unwrap());
    assert_eq!((own.is_repeated, copy.is_repeated), (false, true));
    assert_eq!(own.sequence, copy.sequence);
    assert_eq!(group.fallbacks("client"), 1.0);
    assert_eq!(
        group.world.log().await.iter().filter(|it| *it == "one").count(),
        1
    );
}

#[tokio::test(start_paused = true)]
async fn a_request_that_the_log_refuses_for_good_is_not_sent() {
    let group = settled(1).await;
    let follower = &group.producers[1];
    // The follower commits for itself, and knows the manifest then.
    group.network.decide(|_, _| Way::Closed);
    send_counted(follower, 7, 1, "one").await;
    group.network.decide(|_, _| Way::Open);
    sleep(2 * SECOND).await;
    let asked = group.network.asked();
    assert!(
        send(follower, "one", counted(7, 1, "one"))
            .await
            .unwrap()
            .is_repeated
    );
    assert_eq!(
        group.network.asked(),
        asked,
        "a repetition was sent to the leader"
    );
    send_counted(follower, 7, 2, "two").await;
    assert_eq!(group.network.asked(), asked + 1);
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_does_not_know_clients_is_asked_for_other_records_only() {
    let mut group = settled(1).await;
    let peering = Peering {
        peers: group.network.clone(),
        certificate: Fingerprint([2; 32]),
        // It cannot lead in its place.
        address: None,
        forward_below: Peering::FORWARD_BELOW,
    };
    let follower = &group.join(2, config(SECOND / 5), peering).await;
    append(follower, "meets the leader").await.unwrap();
    group.network.decide(|_, _| Way::Unnumbered);
    for number in 1..5 {
        send_counted(follower, 7, number, "numbered").await;
    }
    assert_eq!(group.network.numbered.load(Relaxed), 1, "it was asked again");
    assert_eq!(group.fallbacks("unnumbered"), 1.0);
    let asked = group.network.asked();
    append(follower, "plain").await.unwrap();
    assert_eq!(
        group.network.asked(),
        asked + 1,
        "it is asked for nothing any more"
    );
    assert_eq!(group.leader().await, Some(address(0)));
    // Another leader may know them.
    group.network.decide(|_, _| Way::Open);
    assert_eq!(group.producers[0].drain(10 * SECOND).await, Ok(()));
    append(&group.producers[1], "leads").await.unwrap();
    assert_eq!(group.leader().await, Some(address(1)));
    append(follower, "meets the other leader").await.unwrap();
    send_counted(follower, 7, 5, "numbered").await;
    assert_eq!(group.network.numbered.load(Relaxed), 2);
    let log = group.world.log().await;
    assert_eq!(log.iter().filter(|it| *it == "numbered").count(), 5);
}

/// Gateways with numbered requests would race with it for each commit.
#[tokio::test(start_paused = true)]
async fn a_leader_that_does_not_know_clients_is_replaced_by_a_producer_that_has_some() {
    let group = settled(1).await;
    group.network.decide(|_, _| Way::Unnumbered);
    send_counted(&group.producers[1], 7, 1, "numbered").await;
    assert_eq!(group.leader().await, Some(address(1)), "it goes on leading");
}

/// A producer that is not in this process, which the leader knows.
async fn member(group: &Group) -> ProducerId {
    let member = ProducerId([9; 16]);
    let register = |state: &mut Manifest| *state = state.register(member, 1);
    group.world.change_manifest(register).await;
    append(&group.producers[0], "meets the member").await.unwrap();
    member
}

/// A guest begins the next epoch of a Kafka producer, and leaves for another client. The log has the epoch before.
#[tokio::test(start_paused = true)]
async fn a_request_is_not_refused_for_one_of_another_producer_that_leaves() {
    let group = settled(0).await;
    let leader = &group.producers[0];
    let member = member(&group).await;
    send(leader, "known", kafka(0, 0, 5)).await.unwrap();
    send_counted(leader, 7, 1, "one").await;
    let fences = ClientClaim {
        client: ClientId([9; 16]),
        numbers: kafka(1, 0, 1).numbers,
        ..claim(0)
    };
    let guest = PeerRequest {
        clients: vec![fences, claim(0)],
        ..request(member, 1, "stream")
    };
    // The guest is in the first of two segments.
    let mut upload = group.controls[0].hold(On::Create, "");
    let guest = leader.commit_for(guest, leader.budget().nothing());
    let first = async { tokio::join!(append(leader, "first"), guest) };
    let second = async {
        upload.arrived().await;
        let release = async {
            sleep(2 * SECOND).await;
            upload.release();
        };
        tokio::join!(send(leader, "second", kafka(0, 5, 1)), release).0
    };
    let ((first, guest), second) = tokio::join!(first, second);
    assert_eq!(second.map(|it| it.is_repeated), Ok(false));
    assert_eq!(guest, Err(PeerRefusal::Client));
    first.unwrap();
}

fn claim(segment: usize) -> ClientClaim {
    ClientClaim {
        client: ClientId([7; 16]),
        numbers: Numbers::Counted { number: 1 },
        checksum: 1,
        segment,
        source: None,
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_checks_the_clients_of_a_request() {
    let group = settled(0).await;
    let leader = &group.producers[0];
    let member = member(&group).await;
    let source = SourcePartition {
        source: "cluster".into(),
        topic: "topic".into(),
        partition: 0,
        stream: "stream".into(),
    };
    let offsets = Numbers::Offsets {
        incarnation: 1,
        from: 0,
        to: 1,
    };
    let blocks = |clients| PeerRequest {
        clients,
        ..request(member, 1, "stream")
    };
    let segments = |clients| PeerRequest {
        clients,
        ..delegated(member, &[Ulid::from_parts(1, 1), Ulid::from_parts(1, 2)])
    };
    let of_source = |source, numbers| ClientClaim {
        source,
        numbers,
        ..claim(0)
    };
    for (wrong, reason) in [
        (blocks(vec![claim(1)]), "in none of its segments"),
        (segments(vec![claim(0), claim(2)]), "in none of its segments"),
        (blocks(vec![claim(0); 4_097]), "too many numbered requests"),
        (blocks(vec![of_source(None, offsets)]), "offsets"),
        (
            blocks(vec![of_source(Some(source.into()), claim(0).numbers)]),
            "offsets",
        ),
    ] {
        let refused = leader.commit_for(wrong, leader.budget().nothing()).await;
        let Err(PeerRefusal::Invalid(why)) = refused else {
            panic!("{reason}: {refused:?}");
        };
        assert!(why.contains(reason), "{why}");
    }
    let whole = blocks(vec![claim(0)]);
    leader.commit_for(whole, leader.budget().nothing()).await.unwrap();
    assert_eq!(group.world.manifest().await.state.clients[0].last, 1);
}

/// The rows of clients name the segments that hold their requests.
#[tokio::test(start_paused = true)]
async fn a_row_names_the_segment_that_another_producer_uploaded() {
    let group = settled(0).await;
    let leader = &group.producers[0];
    let member = member(&group).await;
    let other = PeerRequest {
        clients: vec![claim(1)],
        ..delegated(member, &[Ulid::from_parts(1, 1), Ulid::from_parts(1, 2)])
    };
    let mut swap = group.controls[0].hold(On::Update, "manifest");
    let joins = async {
        swap.arrived().await;
        swap.release();
    };
    let other = leader.commit_for(other, leader.budget().nothing());
    let (own, other, ()) = tokio::join!(append(leader, "own"), other, joins);
    own.unwrap();
    let row = group.world.manifest().await.state.clients[0].clone();
    assert_eq!(row.sequence, other.unwrap().first_sequence + 1);
}

/// Each producer has clients that count their requests, five a second. Returns how long each request waited, ascending.
async fn numbered_load(group: &Group, first: u64, seconds: u64) -> Vec<Duration> {
    let loads = (0_u8..)
        .zip(&group.producers)
        .map(|(client, producer)| async move {
            let mut waited = Vec::new();
            sleep(Duration::from_millis(17) * u32::from(client)).await;
            for number in first..first + seconds * 5 {
                let due = Instant::now() + SECOND / 5;
                let start = Instant::now();
                send_counted(producer, client, number, "numbered").await;
                waited.push(start.elapsed());
                tokio::time::sleep_until(due).await;
            }
            waited
        });
    let mut waited: Vec<Duration> = join_all(loads).await.concat();
    waited.sort();
    waited
}

#[tokio::test(start_paused = true)]
async fn many_numbered_producers_wait_and_cost_little_more_than_one() {
    let group = Group::new(48, SECOND, slow_store()).await;
    numbered_load(&group, 1, 1).await;
    let (segments, began) = (group.world.segments().await, Instant::now());
    let waited = numbered_load(&group, 6, 6).await;
    let segments = group.world.segments().await - segments;
    let (p50, p99) = (percentile(&waited, 50), percentile(&waited, 99));
    println!(
        "48 numbered at 1 s: p50 {p50:?}, p99 {p99:?}, max {:?}, {segments} segments in {:?}",
        percentile(&waited, 100),
        began.elapsed()
    );
    assert!(p50 < Duration::from_millis(1_100), "{p50:?}");
    assert!(p99 < 2 * SECOND, "{p99:?}");
    assert!(segments < 60, "{segments}");
}

/// Clients repeat requests to all producers. The others in the same segments wait for two commits more at most.
#[tokio::test(start_paused = true)]
async fn repetitions_at_followers_do_not_starve_the_leader() {
    let group = Group::new(4, SECOND / 5, slow_store()).await;
    append_all(&group, 3).await;
    let first = send_first(&group.producers[0], 200, "again").await;
    let all = (0_u8..)
        .zip(&group.producers)
        .map(|(client, producer)| async move {
            for number in 1..40 {
                let start = Instant::now();
                let (again, _) = tokio::join!(
                    send_first(producer, 200, "again"),
                    send_counted(producer, client, number, "new")
                );
                assert!(again.is_repeated && again.sequence == first.sequence);
                assert!(start.elapsed() < 10 * SECOND, "{:?}", start.elapsed());
            }
        });
    join_all(all).await;
    let log = group.world.log().await;
    let times = |text: &str| log.iter().filter(|it| *it == text).count();
    assert_eq!((times("again"), times("new")), (1, 4 * 39));
    println!(
        "{} spent, {:?} fallbacks",
        group.counts("millpond_producer_numbers_spent_total"),
        group.fallbacks("client")
    );
}

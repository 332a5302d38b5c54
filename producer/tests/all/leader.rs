//! Several producers in one process that commit for each other, in virtual time: latency, cost, and no record twice or lost
//! whatever happens between them.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::Duration;

use crate::support::group::{Group, SECOND, Way, address, append_all, config, load, percentile, slow_store};
use crate::support::{START_MS, STREAM, append, not_once};
use futures::future::join_all;
use millpond_manifest::manifest::Stream;
use millpond_manifest::{Fingerprint, Manifest, NewPart, NewSegment, ProducerId};
use millpond_producer::{
    AppendError, Config, PeerRefusal, PeerRequest, Peering, Producer, Records, StreamBlock,
};
use millpond_segment::{BlockBuilder, Compressor, Encoding};
use millpond_storage::unreliable::{Controls, Faults, On, Outage, S3Latency, WriteFaults};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::time::{Instant, sleep};
use ulid::Ulid;

#[tokio::test(start_paused = true)]
async fn the_first_to_commit_leads_and_the_others_append_to_its_segments() {
    let group = Group::new(3, SECOND, Faults::default()).await;
    append(&group.producers[1], "first").await.unwrap();
    assert_eq!(group.leader().await, Some(address(1)));
    // The others have to meet the leader in the manifest, and then its rhythm.
    for round in 0..4 {
        let text = format!("round {round}");
        let all = group.producers.iter().map(|producer| append(producer, &text));
        let committed = join_all(all).await;
        let sequences: BTreeSet<u64> = committed.into_iter().map(|it| it.unwrap().sequence).collect();
        if round == 3 {
            assert_eq!(
                sequences.len(),
                1,
                "one segment has the records of all: {sequences:?}"
            );
        }
    }
    let state = group.world.manifest().await.state;
    assert!(state.leader.unwrap().shared >= 2);
    assert!(group.counts("millpond_producer_appended_bytes_total") > 0.0);
    assert_eq!(group.counts("millpond_producer_leads"), 1.0);
    assert_eq!(group.counts("millpond_producer_records_total"), 13.0);
    assert_eq!(group.world.log().await.len(), 13);
}

#[tokio::test(start_paused = true)]
async fn a_producer_without_an_address_follows_and_never_leads() {
    let mut group = Group::new(0, SECOND, Faults::default()).await;
    let silent = group.start(0, SECOND, false).await;
    append(&silent, "alone").await.unwrap();
    assert_eq!(group.leader().await, None);
    let leader = group.start(1, SECOND, true).await;
    append(&leader, "leads").await.unwrap();
    assert_eq!(group.leader().await, Some(address(1)));
    append(&silent, "meets it").await.unwrap();
    let asked = group.network.asked();
    append(&silent, "follows").await.unwrap();
    assert_eq!(group.network.asked(), asked + 1);
    assert_eq!(group.world.log().await.len(), 4);
}

#[tokio::test(start_paused = true)]
async fn many_producers_wait_and_cost_little_more_than_one() {
    let group = Group::new(48, SECOND, slow_store()).await;
    load(&group, 5).await;
    let segments = group.world.segments().await;
    let waited = load(&group, 30).await;
    let segments = group.world.segments().await - segments;
    let (p50, p99) = (percentile(&waited, 50), percentile(&waited, 99));
    println!(
        "48 at 1 s: p50 {p50:?}, p99 {p99:?}, max {:?}, {segments} segments",
        percentile(&waited, 100)
    );
    assert!(p50 < Duration::from_millis(1_000), "{p50:?}");
    assert!(p99 < Duration::from_secs(2), "{p99:?}");
    // One segment a second, whatever the number of producers. 48 alone upload 1,440.
    assert!(segments < 45, "{segments}");
}

#[tokio::test(start_paused = true)]
async fn a_short_linger_stays_short() {
    let group = Group::new(16, SECOND / 4, slow_store()).await;
    load(&group, 5).await;
    let waited = load(&group, 30).await;
    let (p50, p99) = (percentile(&waited, 50), percentile(&waited, 99));
    println!(
        "16 at 250 ms: p50 {p50:?}, p99 {p99:?}, max {:?}",
        percentile(&waited, 100)
    );
    assert!(p50 < Duration::from_millis(500), "{p50:?}");
    assert!(p99 < Duration::from_millis(1_200), "{p99:?}");
}

#[tokio::test(start_paused = true)]
async fn the_full_segments_of_a_follower_share_requests() {
    let mut group = Group::new(1, SECOND, slow_store()).await;
    let small = Config {
        segment_bytes: 16 << 10,
        segment_raw_bytes: 1 << 20,
        block_bytes: 4 << 10,
        ..config(SECOND)
    };
    let peering = Peering {
        peers: group.network.clone(),
        certificate: Fingerprint([1; 32]),
        address: None,
        // It uploads all of its segments.
        forward_below: 0,
    };
    let follower = group.join(1, small, peering).await;
    append(&group.producers[0], "leads").await.unwrap();
    append(&follower, "meets it").await.unwrap();

    let (asked, segments) = (group.network.asked(), group.world.segments().await);
    let mut random = StdRng::seed_from_u64(1);
    // It does not compress.
    let mut text = || {
        (0..4 << 10)
            .map(|_| random.random_range('!'..='~'))
            .collect::<String>()
    };
    let appends: Vec<String> = (0..500).map(|_| text()).collect();
    let appends = appends.iter().zip(0_u32..).map(|(text, number)| {
        let follower = &follower;
        async move {
            sleep(Duration::from_millis(20) * number).await;
            append(follower, text).await.unwrap();
        }
    });
    join_all(appends).await;
    let asked = group.network.asked() - asked;
    let segments = group.world.segments().await - segments;
    assert!(segments > 80, "{segments} segments");
    assert!(
        (9..20).contains(&asked),
        "{asked} requests for {segments} segments"
    );
}

#[tokio::test(start_paused = true)]
async fn no_record_is_lost_or_twice_whatever_happens_to_requests() {
    let mut asked = 0;
    for seed in 0..60 {
        let faults = Faults {
            seed,
            write: WriteFaults::each(if seed % 2 == 0 { 0.0 } else { 0.07 }),
            latency: Some(S3Latency::default()),
            ..Faults::default()
        };
        let group = Group::new(4, SECOND / 5, faults).await;
        let random = Mutex::new(StdRng::seed_from_u64(seed));
        group
            .network
            .decide(move |_, _| match random.lock().unwrap().random_range(0..10) {
                0 => Way::Closed,
                1 => Way::NoAnswer,
                2 => Way::Hangs,
                3 | 4 => Way::Twice,
                5 | 6 => Way::Breaks,
                _ => Way::Open,
            });
        let expected = append_all(&group, 40).await;
        let log = group.world.log().await;
        assert_eq!(not_once(&log, &expected), [].into(), "seed {seed}");
        asked += group.network.asked();
    }
    assert!(asked > 400, "{asked} requests");
}

/// Appends to any of the producers, and to another one if that stops. Returns the text, and whether its outcome is known.
async fn append_somewhere(producers: &Mutex<Vec<Producer>>, place: usize, text: String) -> (String, bool) {
    for place in place.. {
        let producer = {
            let producers = producers.lock().unwrap();
            producers[place % producers.len()].clone()
        };
        match append(&producer, &text).await {
            Ok(_) => return (text, true),
            Err(AppendError::OutcomeUnknown(_)) => return (text, false),
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
    }
    unreachable!("the places do not end");
}

/// Disturbs the group: an outage, a producer that stops or joins, an old program, or a table that forgets the leader.
async fn disturb(group: &mut Group, producers: &Mutex<Vec<Producer>>, random: &mut StdRng) {
    let place = random.random_range(0..group.controls.len());
    match random.random_range(0..6) {
        0 => group.controls[place].set_outage(Some(Outage::Hangs)),
        1 => group.controls[place].set_outage(Some(Outage::Fails)),
        2 => {
            let number = group.controls.len();
            let new = group.start(number as u64, SECOND / 5, true).await;
            let place = place % producers.lock().unwrap().len();
            let stopping = std::mem::replace(&mut producers.lock().unwrap()[place], new);
            group.controls.iter().for_each(Controls::heal);
            assert_eq!(stopping.drain(120 * SECOND).await, Ok(()));
        }
        3 => {
            let drop_office = |state: &mut Manifest| {
                state.leader = None;
                state.producers.iter_mut().for_each(|row| row.certificate = None);
            };
            group.world.change_manifest(drop_office).await;
        }
        4 => {
            let forget_leader = |state: &mut Manifest| {
                let leader = state.leader.as_ref().map(|leader| leader.producer);
                state.producers.retain(|row| Some(row.id) != leader);
            };
            group.world.change_manifest(forget_leader).await;
        }
        _ => group.controls.iter().for_each(Controls::heal),
    }
}

#[tokio::test(start_paused = true)]
async fn no_record_is_lost_or_twice_while_leaders_come_and_go() {
    let (mut known, mut unknown, mut terms) = (0, 0, BTreeSet::new());
    for seed in 0..40 {
        let faults = Faults {
            seed,
            write: WriteFaults::each(if seed % 2 == 0 { 0.0 } else { 0.05 }),
            latency: Some(S3Latency::default()),
            ..Faults::default()
        };
        let mut group = Group::new(4, SECOND / 5, faults).await;
        let ways = Mutex::new(StdRng::seed_from_u64(seed));
        group
            .network
            .decide(move |_, _| match ways.lock().unwrap().random_range(0..12) {
                0 => Way::Closed,
                1 => Way::NoAnswer,
                2 | 3 => Way::Twice,
                4 => Way::Breaks,
                _ => Way::Open,
            });
        let producers = Mutex::new(std::mem::take(&mut group.producers));
        let appends = (0..240_u32).map(|number| {
            let producers = &producers;
            async move {
                sleep(Duration::from_millis(50) * number).await;
                append_somewhere(producers, number as usize, number.to_string()).await
            }
        });
        let mut random = StdRng::seed_from_u64(seed);
        let disturbed = async {
            for _ in 0..12 {
                sleep(SECOND).await;
                disturb(&mut group, &producers, &mut random).await;
                terms.extend(
                    group
                        .world
                        .manifest()
                        .await
                        .state
                        .leader
                        .map(|it| (seed, it.term)),
                );
            }
            group.controls.iter().for_each(Controls::heal);
        };
        let (outcomes, ()) = tokio::join!(join_all(appends), disturbed);
        let log = group.world.log().await;
        let (certain, doubtful): (Vec<_>, Vec<_>) = outcomes.into_iter().partition(|it| it.1);
        let expected: Vec<String> = certain.into_iter().map(|it| it.0).collect();
        let mut wrong = not_once(&log, &expected);
        for (text, _) in &doubtful {
            if wrong.get(text.as_str()).is_none_or(|times| *times <= 1) {
                wrong.remove(text.as_str());
            }
        }
        assert_eq!(wrong, [].into(), "seed {seed}");
        known += expected.len();
        unknown += doubtful.len();
    }
    println!("{known} known, {unknown} unknown, {} terms", terms.len());
    assert!(terms.len() > 100, "{} terms", terms.len());
    assert!(unknown < known / 20, "{unknown} of {known}");
}

#[tokio::test(start_paused = true)]
async fn producers_commit_without_a_dead_leader_and_replace_it() {
    let group = Group::new(4, SECOND, slow_store()).await;
    load(&group, 5).await;
    let leader = group.leader().await.unwrap();
    // Its peers lose it, and nobody appends to it.
    let dead = leader.clone();
    group.network.decide(move |to, _| match to.address == dead {
        true => Way::Closed,
        false => Way::Open,
    });
    let start = Instant::now();
    let place = (0..4).find(|place| address(*place) == leader).unwrap();
    let others = (0..4).filter(|number| *number != place).map(|number| {
        let producer = &group.producers[usize::try_from(number).unwrap()];
        async move {
            for at in 0..20 {
                let asked = Instant::now();
                append(producer, &format!("{number}/{at}")).await.unwrap();
                assert!(asked.elapsed() < 3 * SECOND, "{:?}", asked.elapsed());
            }
        }
    });
    join_all(others).await;
    let after = group.leader().await.unwrap();
    assert_ne!(after, leader, "after {:?}", start.elapsed());
    // The one that was replaced learns of it with its next commit.
    let asked = group.network.asked();
    for text in ["finds out", "follows"] {
        append(&group.producers[usize::try_from(place).unwrap()], text)
            .await
            .unwrap();
    }
    assert!(group.network.asked() > asked);
    assert_eq!(group.counts("millpond_producer_leads"), 1.0);
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_stops_leaves_the_lead_to_others_at_once() {
    let group = Group::new(3, SECOND / 5, Faults::default()).await;
    append_all(&group, 10).await;
    let leader = group.leader().await.unwrap();
    let place = (0..3).find(|place| address(*place) == leader).unwrap();
    let stopping = group.producers[usize::try_from(place).unwrap()].clone();
    let others: Vec<&Producer> = group
        .producers
        .iter()
        .zip(0..)
        .filter(|(_, at)| *at != place)
        .map(|(it, _)| it)
        .collect();
    let waiting = others.iter().map(|producer| append(producer, "before"));
    let (waiting, drained) = tokio::join!(join_all(waiting), async {
        sleep(SECOND / 10).await;
        stopping.drain(10 * SECOND).await
    });
    assert_eq!(drained, Ok(()));
    assert!(waiting.iter().all(Result::is_ok), "{waiting:?}");
    assert_ne!(group.leader().await, Some(leader.clone()));
    for producer in &others {
        append(producer, "after").await.unwrap();
        append(producer, "after").await.unwrap();
    }
    let leader = group.leader().await.unwrap();
    assert_ne!(leader, address(place));
    assert_eq!(
        group.world.log().await.iter().filter(|it| *it == "after").count(),
        4
    );
}

#[tokio::test(start_paused = true)]
async fn a_large_segment_is_uploaded_and_the_leader_commits_it() {
    let group = Group::new(2, SECOND / 5, Faults::default()).await;
    append_all(&group, 3).await;
    let leader = group.leader().await.unwrap();
    let follower = group
        .producers
        .iter()
        .zip(0..)
        .find(|(_, at)| address(*at) != leader)
        .unwrap()
        .0;
    let mut random = StdRng::seed_from_u64(7);
    let text: String = (0..600_000)
        .map(|_| char::from(random.random_range(b' '..b'~')))
        .collect();
    let before = group.counts("millpond_producer_commit_attempts_total");
    append(follower, &text).await.unwrap();
    append(follower, &text).await.unwrap();
    assert!(group.counts("millpond_producer_delegated_bytes_total") > 600_000.0);
    assert!(group.counts("millpond_producer_commit_attempts_total") >= before + 2.0);
    assert_eq!(
        group.world.log().await.iter().filter(|it| **it == text).count(),
        2
    );
}

#[tokio::test(start_paused = true)]
async fn a_follower_hears_of_a_commit_and_not_earlier() {
    let group = Group::new(2, SECOND / 5, Faults::default()).await;
    append_all(&group, 3).await;
    let leader = group.leader().await.unwrap();
    let mut numbered = group.producers.iter().zip(0..);
    let follower = numbered.find(|(_, at)| address(*at) != leader).unwrap().0.clone();
    let leading = (0..2).find(|at| address(*at) == leader).unwrap();
    let leading = &group.controls[usize::try_from(leading).unwrap()];
    let mut swap = leading.hold(On::Update, "manifest");
    let mut waiting = tokio::spawn(async move { append(&follower, "waits").await });
    tokio::select! {
        () = swap.arrived() => {}
        answer = &mut waiting => panic!("answered before the commit: {answer:?}"),
    }
    sleep(SECOND).await;
    assert!(!waiting.is_finished(), "answered before the commit");
    swap.release();
    waiting.await.unwrap().unwrap();
    assert!(group.world.log().await.contains(&"waits".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn followers_do_not_wait_for_a_leader_that_the_store_holds_up() {
    for outage in [Outage::Fails, Outage::Hangs] {
        let group = Group::new(3, SECOND / 5, Faults::default()).await;
        append_all(&group, 3).await;
        let leader = group.leader().await.unwrap();
        let place = (0..3).find(|at| address(*at) == leader).unwrap();
        let place = usize::try_from(place).unwrap();
        group.controls[place].set_outage(Some(outage));
        let others = group.producers.iter().enumerate().filter(|(at, _)| *at != place);
        let appends = others.map(|(at, producer)| async move {
            for number in 0..40 {
                let start = Instant::now();
                append(producer, &format!("{at} {number}")).await.unwrap();
                assert!(start.elapsed() < 5 * SECOND, "{outage:?}: {:?}", start.elapsed());
            }
        });
        join_all(appends).await;
        assert_ne!(group.leader().await, Some(leader), "{outage:?}");
        group.controls[place].heal();
        append(&group.producers[place], "is back").await.unwrap();
        let log = group.world.log().await;
        let all: BTreeSet<&String> = log.iter().collect();
        assert_eq!(log.len(), all.len(), "{outage:?}: nothing is there twice");
        assert_eq!(log.len(), 9 + 80 + 1, "{outage:?}");
    }
}

/// A request of a producer that is not in this process, with one message in a stream.
pub(crate) fn request(producer: ProducerId, number: u64, stream: &str) -> PeerRequest {
    let mut block = BlockBuilder::new(1);
    block.push(1, b"{}").unwrap();
    let block = Compressor::new(1).unwrap().compress(&block, 1).unwrap();
    PeerRequest {
        producer,
        number,
        records: Records::Blocks(vec![StreamBlock {
            stream: stream.into(),
            encoding: Encoding::Otlp,
            block,
        }]),
        clients: Vec::new(),
    }
}

#[tokio::test(start_paused = true)]
async fn a_guest_that_spoils_a_segment_does_not_change_the_order_of_the_others() {
    let group = Group::new(1, SECOND, Faults::default()).await;
    let leader = &group.producers[0];
    append(leader, "leads").await.unwrap();
    let stranger = ProducerId([9; 16]);
    group
        .world
        .change_manifest(|state| *state = state.register(stranger, 1))
        .await;
    append(leader, "meets the other").await.unwrap();

    // The first segment has a guest, and its upload takes longer than that of the second.
    let mut upload = group.controls[0].hold(On::Create, "");
    let guest = leader.commit_for(request(stranger, 1, "spoilt"), leader.budget().nothing());
    let first = async { tokio::join!(append(leader, "first"), guest) };
    let second = async {
        upload.arrived().await;
        let second = append(leader, "second");
        let release = async {
            sleep(2 * SECOND).await;
            // Meanwhile another producer has registered the guest's stream for something else.
            group
                .world
                .change_manifest(|state| {
                    state.streams.push(Stream {
                        name: "spoilt".into(),
                        encoding: Encoding::Ndjson,
                    });
                })
                .await;
            upload.release();
        };
        tokio::join!(second, release).0
    };
    let ((first, guest), second) = tokio::join!(first, second);
    let refusal = guest.unwrap_err();
    assert!(matches!(refusal, PeerRefusal::Invalid(_)), "{refusal}");
    let (first, second) = (first.unwrap().sequence, second.unwrap().sequence);
    assert!(first < second, "{first} is after {second}");
}

#[tokio::test(start_paused = true)]
async fn a_refused_request_leaves_no_stream_behind() {
    let group = Group::new(1, SECOND, Faults::default()).await;
    let producer = &group.producers[0];
    let early = producer.commit_for(
        request(ProducerId([9; 16]), 1, STREAM),
        producer.budget().nothing(),
    );
    assert_eq!(early.await, Err(PeerRefusal::NotLeading));
    // The stream's messages have another encoding than those of the request.
    append(producer, "first").await.unwrap();
}

/// A request to commit these segments.
pub(crate) fn delegated(producer: ProducerId, names: &[Ulid]) -> PeerRequest {
    let part = NewPart {
        stream: "delegated".into(),
        encoding: Encoding::Otlp,
        offset: 0,
        length: 1,
        raw_len: 1,
        messages: 1,
        records: 1,
        first_received_at_us: 1,
        last_received_at_us: 1,
    };
    let segments = names.iter().map(|&segment| NewSegment {
        segment,
        size: 1,
        parts: vec![part.clone()],
    });
    PeerRequest {
        producer,
        number: 1,
        records: Records::Segments(segments.collect()),
        clients: Vec::new(),
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_whose_segments_are_below_the_floor_takes_no_other_with_it() {
    let group = Group::new(1, SECOND, Faults::default()).await;
    let leader = &group.producers[0];
    append(leader, "leads").await.unwrap();
    let (late, timely) = (ProducerId([8; 16]), ProducerId([9; 16]));
    group
        .world
        .change_manifest(|state| {
            *state = state.register(late, 1).register(timely, 1);
            state.orphan_floor_ms = START_MS;
        })
        .await;
    let name = |ms, random| Ulid::from_parts(ms, random);
    // The leader's next commit meets the new floor together with both requests.
    let mut swap = group.controls[0].hold(On::Update, "manifest");
    let commit_for = |request| leader.commit_for(request, leader.budget().nothing());
    let requests = async {
        swap.arrived().await;
        let late = commit_for(delegated(late, &[name(1, 1), name(1, 2)]));
        let timely = commit_for(delegated(timely, &[name(START_MS, 3)]));
        let release = async {
            sleep(SECOND / 10).await;
            swap.release();
        };
        let (late, timely, ()) = tokio::join!(late, timely, release);
        (late, timely)
    };
    let (first, (late, timely)) = tokio::join!(append(leader, "first"), requests);
    first.unwrap();
    assert!(matches!(late, Err(PeerRefusal::NotCommitted(_))), "{late:?}");
    assert!(timely.is_ok(), "{timely:?}");
}

#[tokio::test(start_paused = true)]
async fn raw_bytes_of_guests_fill_a_segment() {
    let mut group = Group::new(0, 10 * SECOND, Faults::default()).await;
    let small = Config {
        segment_raw_bytes: 64 << 10,
        ..config(10 * SECOND)
    };
    let peering = Peering {
        peers: group.network.clone(),
        certificate: Fingerprint([1; 32]),
        address: Some(address(1).into()),
        forward_below: Peering::FORWARD_BELOW,
    };
    let leader = group.join(1, small, peering).await;
    append(&leader, "leads").await.unwrap();
    let guest = ProducerId([9; 16]);
    group
        .world
        .change_manifest(|state| *state = state.register(guest, 1))
        .await;
    append(&leader, "meets the other").await.unwrap();
    let mut request = request(guest, 1, "guests");
    let Records::Blocks(blocks) = &mut request.records else {
        unreachable!("the request has blocks");
    };
    let mut block = BlockBuilder::new(1);
    block.push(1, &vec![b' '; 100 << 10]).unwrap();
    blocks[0].block = Compressor::new(1).unwrap().compress(&block, 1).unwrap();
    let start = Instant::now();
    leader
        .commit_for(request, leader.budget().nothing())
        .await
        .unwrap();
    assert!(start.elapsed() < SECOND, "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_leader_with_a_longer_linger_does_not_slow_its_followers_down() {
    let mut group = Group::new(1, 15 * SECOND, Faults::default()).await;
    let follower = group.start(1, SECOND, false).await;
    append(&group.producers[0], "leads").await.unwrap();
    // It meets the leader, and then the leader's rhythm.
    append(&follower, "meets it").await.unwrap();
    append(&follower, "meets its rhythm").await.unwrap();
    let asked = group.network.asked();
    for number in 0..20 {
        let start = Instant::now();
        append(&follower, &format!("{number}")).await.unwrap();
        assert!(start.elapsed() < 2 * SECOND, "{number}: {:?}", start.elapsed());
    }
    assert_eq!(
        group.network.asked(),
        asked + 20,
        "the leader commits all the same"
    );
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_the_table_has_forgotten_is_replaced() {
    let group = Group::new(2, SECOND / 5, Faults::default()).await;
    append_all(&group, 3).await;
    let forgotten = ProducerId([9; 16]);
    group
        .world
        .change_manifest(|state| state.take_lead(forgotten, "10.0.0.9:4319"))
        .await;
    append_all(&group, 3).await;
    let leader = group.leader().await.unwrap();
    assert!([address(0), address(1)].contains(&leader), "{leader}");
    let asked = group.network.asked();
    append_all(&group, 3).await;
    assert!(group.network.asked() > asked, "nobody shares commits");
}

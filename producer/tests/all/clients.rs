//! Clients that number their requests, and repeat them to any producer of the shard until they have an answer.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::group::{Network, Way};
use crate::support::{START_MS, STREAM, Seeded, World, append, config, segments};
use futures::future::join_all;
use millpond_manifest::Fingerprint;
use millpond_producer::{
    Append, AppendError, ClientId, ClientRefusal, Committed, Config, Numbered, Numbers, Peering, Producer,
};
use millpond_segment::Encoding;
use millpond_storage::unreliable::{Controls, Fault, Faults, On, Outage, S3Latency};
use prometheus_client::registry::Registry;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::time::{Instant, sleep, timeout};

const DRAIN: Duration = Duration::from_secs(600);

fn message(payload: &str, records: u64) -> impl Fn(&Producer) -> Append {
    move |producer| Append {
        stream: STREAM.into(),
        encoding: Encoding::Ndjson,
        payload: payload.to_owned().into(),
        records,
        received_at_us: 1,
        reservation: producer.budget().nothing(),
    }
}

pub(crate) fn counted(client: u8, number: u64, payload: &str) -> Numbered {
    Numbered {
        client: ClientId([client; 16]),
        numbers: Numbers::Counted { number },
        checksum: crc32c::crc32c(payload.as_bytes()).max(1),
        source: None,
    }
}

pub(crate) async fn send(
    producer: &Producer,
    payload: &str,
    numbered: Numbered,
) -> Result<Committed, AppendError> {
    let append = message(payload, 1)(producer);
    producer
        .submit_numbered(append, numbered)
        .await?
        .committed()
        .await
}

/// A config whose segments take all that comes within the linger.
fn together() -> Config {
    Config {
        segment_raw_bytes: 1 << 20,
        ..config()
    }
}

#[tokio::test(start_paused = true)]
async fn a_repetition_to_another_producer_learns_the_outcome_of_the_first_request() {
    let world = World::new();
    let (first, second) = (
        world.producer(config(), 1).await,
        world.producer(config(), 2).await,
    );
    let one = send(&first, "one", counted(7, 1, "one")).await.unwrap();
    assert!(!one.is_repeated);
    let again = send(&second, "one", counted(7, 1, "one")).await.unwrap();
    assert_eq!((again.sequence, again.is_repeated), (one.sequence, true));
    let two = send(&second, "two", counted(7, 2, "two")).await.unwrap();
    assert!(!two.is_repeated);
    let three = send(&first, "three", counted(7, 3, "three")).await.unwrap();
    assert!(!three.is_repeated);
    for (number, payload, expected) in [
        (5, "five", ClientRefusal::Gap { last: 3 }),
        (3, "something else", ClientRefusal::Reused),
    ] {
        let refused = send(&second, payload, counted(7, number, payload)).await;
        assert_eq!(refused, Err(AppendError::Client(expected)));
    }
    assert_eq!(
        send(&second, "x", counted(8, 2, "x")).await,
        Err(AppendError::Client(ClientRefusal::Unknown))
    );
    assert_eq!(world.log().await, ["one", "two", "three"]);
}

#[tokio::test(start_paused = true)]
async fn what_an_old_manifest_lacks_is_no_answer() {
    let world = World::new();
    let first = world.producer(config(), 1).await;
    send(&first, "one", counted(7, 1, "one")).await.unwrap();
    // The first producer has met nobody, and takes the manifest of its commit for the one in force.
    let second = world.producer(config(), 2).await;
    send(&second, "two", counted(7, 2, "two")).await.unwrap();
    let three = send(&first, "three", counted(7, 3, "three")).await;
    assert!(three.is_ok_and(|it| !it.is_repeated));
}

/// Kafka's sequence numbers begin again after 2³¹ records.
#[tokio::test(start_paused = true)]
async fn a_row_that_is_far_behind_takes_no_new_sequence_number_for_an_old_one() {
    let world = World::new();
    let sequence = |first, count| Numbered {
        client: ClientId([7; 16]),
        numbers: Numbers::Sequence {
            epoch: 0,
            first,
            count,
        },
        checksum: 0,
        source: None,
    };
    let first = world.producer(config(), 1).await;
    send(&first, "one", sequence(0, 100)).await.unwrap();
    // The first producer takes the manifest of its commit for the one in force.
    let second = world.producer(config(), 2).await;
    let half = (1 << 30) - 1;
    send(&second, "two", sequence(100, half)).await.unwrap();
    send(&second, "three", sequence(100 + half, half)).await.unwrap();
    let four = send(&first, "four", sequence(98, 1)).await.unwrap();
    assert!(!four.is_repeated, "a new record passes for a repetition");
    let again = send(&first, "four", sequence(98, 1)).await.unwrap();
    assert_eq!((again.sequence, again.is_repeated), (four.sequence, true));
    assert_eq!(world.log().await, ["one", "two", "three", "four"]);
}

#[tokio::test(start_paused = true)]
async fn copies_that_one_producer_holds_at_a_time_are_one() {
    let world = World::new();
    let producer = world.producer(together(), 1).await;
    let copy = || send(&producer, "one", counted(7, 1, "one"));
    let (a, b, other) = tokio::join!(copy(), copy(), send(&producer, "other", counted(7, 1, "other")));
    let (a, b) = (a.unwrap(), b.unwrap());
    assert_eq!(
        (a.sequence, a.is_repeated, b.is_repeated),
        (b.sequence, false, true)
    );
    assert_eq!(other, Err(AppendError::Client(ClientRefusal::Reused)));
    assert_eq!(world.log().await, ["one"]);
}

#[tokio::test(start_paused = true)]
async fn only_the_repeated_records_leave_a_segment_that_others_share() {
    let world = World::new();
    let (first, second) = (
        world.producer(together(), 1).await,
        world.producer(together(), 2).await,
    );
    send(&first, "one", counted(7, 1, "one")).await.unwrap();
    let (plain, again, next, other) = tokio::join!(
        append(&second, "plain"),
        send(&second, "one", counted(7, 1, "one")),
        send(&second, "two", counted(7, 2, "two")),
        send(&second, "other", counted(9, 1, "other")),
    );
    assert!(again.unwrap().is_repeated);
    let new: Vec<Committed> = [plain, next, other].map(Result::unwrap).into();
    assert!(
        new.iter()
            .all(|it| !it.is_repeated && it.sequence == new[0].sequence),
        "{new:?}"
    );
    let log = world.log().await;
    assert_eq!(log, ["one", "plain", "two", "other"]);
    let entry = world.manifest().await.state.tail.pop().unwrap();
    assert_eq!((entry.parts[0].messages, entry.parts[0].records), (3, 3));
}

#[tokio::test(start_paused = true)]
async fn repetitions_that_keep_coming_do_not_keep_others_out_of_the_log() {
    const REPEATED: u64 = 200;
    let world = World::new();
    let first = world.producer(together(), 1).await;
    let text = |number| format!("of-client-{number}");
    let sent = (1..=REPEATED).map(|number| send(&first, "x", counted(7, number, "x")));
    assert!(join_all(sent).await.iter().all(Result::is_ok));
    // Every segment of the second producer has a repetition, and has to be uploaded anew for it.
    let (store, _controls) = world.honest.behind(Faults {
        latency: Some(S3Latency::default()),
        ..Faults::default()
    });
    let config = Config {
        linger: Duration::from_millis(1),
        ..together()
    };
    let environment = Seeded::running(Instant::now(), 2);
    let second = Producer::start_in(environment, store, config, &mut Registry::default()).await;
    let (second, start) = (second.unwrap(), Instant::now());
    let answered = Mutex::new(0);
    let (second, text, answered) = (&second, &text, &answered);
    let each = (1..=REPEATED).map(|number| async move {
        sleep(Duration::from_millis(5 * number)).await;
        let (other, again) = (text(number), counted(7, number, "x"));
        let repeated = async {
            let again = send(second, "x", again).await;
            assert!(again.unwrap().is_repeated);
            *answered.lock().unwrap() += 1;
        };
        let (other, ()) = tokio::join!(append(second, &other), repeated);
        other.unwrap();
        *answered.lock().unwrap()
    });
    let answered_before = join_all(each).await;
    assert!(
        answered_before[0] < REPEATED / 2,
        "{answered_before:?} {:?}",
        start.elapsed()
    );
    assert_eq!(world.log().await.len() as u64, 2 * REPEATED);
}

#[tokio::test(start_paused = true)]
async fn requests_that_overtook_each_other_are_in_order_within_a_segment() {
    let world = World::new();
    let producer = world.producer(together(), 1).await;
    let (two, one) = tokio::join!(
        send(&producer, "two", counted(7, 2, "two")),
        send(&producer, "one", counted(7, 1, "one"))
    );
    assert!(one.is_ok() && two.is_ok(), "{one:?} {two:?}");
    let row = world.manifest().await.state.clients.pop().unwrap();
    assert_eq!(row.last, 2);
}

#[tokio::test(start_paused = true)]
async fn an_unreported_commit_is_found_and_not_taken_for_a_repetition_of_others() {
    let world = World::new();
    let producer = world.producer(config(), 1).await;
    world
        .controls
        .once(On::Update, "manifest", Fault::LandsUnreported);
    let one = send(&producer, "one", counted(7, 1, "one")).await.unwrap();
    assert!(!one.is_repeated);
    assert_eq!(world.controls.unused(), 0);
    world
        .controls
        .once(On::Update, "manifest", Fault::Repeated(Duration::from_millis(1)));
    let two = send(&producer, "two", counted(7, 2, "two")).await.unwrap();
    assert!(!two.is_repeated);
    assert_eq!(world.log().await, ["one", "two"]);
}

/// The duration of the faults.
const DURATION: Duration = Duration::from_secs(30);
const PLACES: usize = 3;
const LATE_BY_MAX: Duration = Duration::from_secs(3);

/// The producers that clients can reach.
struct Alive(Mutex<Vec<Option<Producer>>>);

impl Alive {
    fn any(&self, rng: &mut StdRng) -> Option<Producer> {
        let all = self.0.lock().unwrap();
        all[rng.random_range(0..all.len())].clone()
    }
}

#[derive(Default, Debug)]
struct Seen {
    acknowledged: usize,
    repeated: usize,
    gaps: usize,
}

/// The clients' knowledge: the messages that were sent, and those that were acknowledged with their sequences.
#[derive(Default)]
struct Story {
    acknowledged: HashMap<String, Option<u64>>,
    seen: Seen,
}

/// Sends a request to one producer, or to two at the same time, until one of them has it.
async fn until_acknowledged(
    alive: &Alive,
    start: Instant,
    rng: &mut StdRng,
    payload: &str,
    numbered: Numbered,
    story: &Mutex<Story>,
) -> bool {
    while start.elapsed() < DURATION * 2 {
        let copies = rng.random_range(1..=2);
        let producers: Vec<Producer> = (0..copies).filter_map(|_| alive.any(rng)).collect();
        let sends = producers
            .iter()
            .map(|producer| send(producer, payload, numbered.clone()));
        let patience = Duration::from_millis(rng.random_range(1..4_000));
        let answers = timeout(patience, join_all(sends)).await.unwrap_or_default();
        let mut done = false;
        for answer in answers {
            match answer {
                Ok(committed) => {
                    let mut story = story.lock().unwrap();
                    story.seen.acknowledged += 1;
                    story.seen.repeated += usize::from(committed.is_repeated);
                    let before = story
                        .acknowledged
                        .insert(payload.to_owned(), Some(committed.sequence));
                    if let Some(Some(before)) = before {
                        assert_eq!(before, committed.sequence, "{payload} has two places");
                    }
                    done = true;
                }
                Err(AppendError::Client(refusal)) => panic!("{payload}: {refusal:?}"),
                Err(_) => {}
            }
        }
        if done {
            return true;
        }
        sleep(Duration::from_millis(rng.random_range(1..300))).await;
    }
    false
}

/// Counts its requests, and sends each until it is acknowledged.
async fn counting(alive: &Alive, start: Instant, mut rng: StdRng, client: u8, story: &Mutex<Story>) {
    for number in 1.. {
        if start.elapsed() > DURATION {
            return;
        }
        let payload = format!("counting{client} {number:05}");
        let numbered = counted(client, number, &payload);
        until_acknowledged(alive, start, &mut rng, &payload, numbered, story).await;
    }
}

/// Gives each request a key.
async fn with_keys(alive: &Alive, start: Instant, mut rng: StdRng, client: u8, story: &Mutex<Story>) {
    for number in 1_u64.. {
        if start.elapsed() > DURATION {
            return;
        }
        let payload = format!("key{client} {number:05}");
        let mut id = [client; 16];
        id[..8].copy_from_slice(&number.to_be_bytes());
        let numbered = Numbered {
            client: ClientId(id),
            numbers: Numbers::Once,
            checksum: 1,
            source: None,
        };
        until_acknowledged(alive, start, &mut rng, &payload, numbered, story).await;
    }
}

/// A Kafka producer: several batches in flight, in order, and all of them again when one is not acknowledged.
async fn pipelined(alive: &Alive, start: Instant, mut rng: StdRng, client: u8, story: &Mutex<Story>) {
    let (mut waiting, mut next, mut number) = (VecDeque::new(), 0_u32, 0);
    while start.elapsed() < DURATION * 2 {
        while waiting.len() < 4 && start.elapsed() < DURATION {
            let count = rng.random_range(1..5_u32);
            number += 1;
            waiting.push_back((next, count, format!("pipelined{client} {number:05}")));
            next += count;
        }
        if waiting.is_empty() {
            return;
        }
        let Some(producer) = alive.any(&mut rng) else {
            sleep(Duration::from_millis(100)).await;
            continue;
        };
        let mut submitted = Vec::new();
        for (first, count, payload) in &waiting {
            let numbered = Numbered {
                client: ClientId([client; 16]),
                numbers: Numbers::Sequence {
                    epoch: 2,
                    first: *first,
                    count: *count,
                },
                checksum: 0,
                source: None,
            };
            if rng.random_range(0..20) == 0 {
                // The network loses this one.
                submitted.push(Err(AppendError::Closed));
                continue;
            }
            let append = message(payload, u64::from(*count))(&producer);
            submitted.push(producer.submit_numbered(append, numbered).await);
        }
        let patience = Duration::from_millis(rng.random_range(1..4_000));
        let give_up = Instant::now() + patience;
        let mut failed = false;
        for submitted in submitted {
            let answer = match submitted {
                Ok(submitted) => tokio::time::timeout_at(give_up, submitted.committed()).await,
                Err(error) => Ok(Err(error)),
            };
            match answer {
                // Those before it are in the log, too, from an earlier round. The next round finds them.
                Ok(Ok(_)) if failed => {}
                Ok(Ok(committed)) => {
                    let (_, _, payload) = waiting.pop_front().unwrap();
                    let mut story = story.lock().unwrap();
                    story.seen.acknowledged += 1;
                    story.seen.repeated += usize::from(committed.is_repeated);
                    // The place of the last batch: later ones may be in the log already.
                    let sequence = (!committed.is_repeated).then_some(committed.sequence);
                    story.acknowledged.insert(payload, sequence);
                }
                // An earlier batch failed: the client sends all of them again.
                Ok(Err(AppendError::Client(ClientRefusal::Gap { .. } | ClientRefusal::Unknown))) => {
                    assert!(failed, "{client}: a batch that follows the last one is a gap");
                    story.lock().unwrap().seen.gaps += 1;
                }
                Ok(Err(AppendError::Client(refusal))) => panic!("{client}: {refusal:?}"),
                Ok(Err(AppendError::OutcomeUnknown(_))) | Err(_) => break,
                Ok(Err(_)) => failed = true,
            }
        }
    }
}

/// Runs one producer after another. Each drains, dies, or stands still and returns when others have its clients.
async fn place(
    world: &World,
    number: usize,
    start: Instant,
    mut rng: StdRng,
    alive: &Alive,
    network: Option<&Arc<Network>>,
) -> Vec<(Producer, Controls)> {
    let mut stalled = Vec::new();
    for generation in 0.. {
        if start.elapsed() > DURATION {
            break;
        }
        let (store, controls, config) = world.faulty(&mut rng, LATE_BY_MAX);
        let environment = Seeded::running(start, rng.random());
        let address = format!("10.0.{number}.{generation}:4319");
        let peering = network.map(|network| Peering {
            peers: network.clone(),
            certificate: Fingerprint(rng.random()),
            address: Some(address.as_str().into()),
            // Some upload all of their segments.
            forward_below: if rng.random() { Peering::FORWARD_BELOW } else { 0 },
        });
        let started =
            Producer::start_with(environment, store, config, peering, &mut Registry::default()).await;
        let Ok(producer) = started else { continue };
        if let Some(network) = network {
            network
                .producers
                .lock()
                .unwrap()
                .insert(address, producer.clone());
        }
        alive.0.lock().unwrap()[number] = Some(producer.clone());
        sleep(Duration::from_millis(rng.random_range(0..6_000))).await;
        match rng.random_range(0..3) {
            0 => {
                alive.0.lock().unwrap()[number] = None;
                producer.drain(DRAIN).await.unwrap();
            }
            1 => controls.set_outage(Some(Outage::Hangs)),
            _ => {
                controls.set_outage(Some(Outage::Hangs));
                stalled.push((producer, controls));
            }
        }
        if let Some((_, controls)) = stalled.iter().find(|_| rng.random()) {
            controls.set_outage(None);
        }
    }
    // The last ones serve the clients that still wait.
    let last = world.producer(config(), rng.random()).await;
    alive.0.lock().unwrap()[number] = Some(last);
    stalled
}

/// Raises the orphan floor and forgets producers.
async fn gc(world: &World, start: Instant, mut rng: StdRng) {
    while start.elapsed() < DURATION {
        sleep(Duration::from_millis(rng.random_range(100..2_000))).await;
        let elapsed_ms = u64::try_from(start.elapsed().as_millis()).unwrap();
        let floor_ms = START_MS + elapsed_ms.saturating_sub(rng.random_range(0..1_000));
        let forgotten: usize = rng.random_range(0..4 * PLACES);
        world
            .change_manifest(|manifest| {
                manifest.orphan_floor_ms = manifest.orphan_floor_ms.max(floor_ms);
                if forgotten < manifest.producers.len() {
                    manifest.producers.remove(forgotten);
                }
            })
            .await;
    }
}

/// Connects the producers by a network that loses and repeats requests, and loses answers.
fn lossy(seed: u64) -> Arc<Network> {
    let network = Arc::new(Network::default());
    let ways = Mutex::new(StdRng::seed_from_u64(seed));
    network.decide(move |_, _| match ways.lock().unwrap().random_range(0..14) {
        0 => Way::Closed,
        1 => Way::NoAnswer,
        2 | 3 => Way::Twice,
        4 => Way::Breaks,
        5 => Way::Unnumbered,
        _ => Way::Open,
    });
    network
}

async fn run(seed: u64, network: Option<&Arc<Network>>) -> Seen {
    let world = World::new();
    let first = world.producer(config(), seed).await;
    first.drain(DRAIN).await.unwrap();
    let start = Instant::now();
    let mut rng = StdRng::seed_from_u64(seed);
    let alive = Alive(Mutex::new(vec![None; PLACES]));
    let story = Mutex::new(Story::default());
    let gc = gc(&world, start, StdRng::seed_from_u64(rng.random()));
    let places = (0..PLACES).map(|number| {
        let rng = StdRng::seed_from_u64(rng.random());
        place(&world, number, start, rng, &alive, network)
    });
    let places = join_all(places);
    let mut new = || StdRng::seed_from_u64(rng.random());
    let counting = join_all((1..4).map(|client| counting(&alive, start, new(), client, &story)));
    let with_keys = join_all((4..6).map(|client| with_keys(&alive, start, new(), client, &story)));
    let pipelined = join_all((6..9).map(|client| pipelined(&alive, start, new(), client, &story)));
    let (stalled, ..) = tokio::join!(places, counting, with_keys, pipelined, gc);
    for (producer, controls) in stalled.into_iter().flatten() {
        controls.heal();
        producer.drain(DRAIN).await.unwrap();
    }
    sleep(LATE_BY_MAX * 2).await;
    let story = story.into_inner().unwrap();
    check(seed, segments(&world.honest).await, &story);
    story.seen
}

fn check(seed: u64, log: Vec<Vec<String>>, story: &Story) {
    let mut found: HashMap<String, u64> = HashMap::new();
    let mut last_of: HashMap<String, String> = HashMap::new();
    for (sequence, messages) in (0..).zip(log) {
        for message in messages {
            let twice = found.insert(message.clone(), sequence);
            assert_eq!(twice, None, "seed {seed}: {message:?} is in the log twice");
            let (client, _) = message.split_once(' ').unwrap();
            let last = last_of.entry(client.to_owned()).or_default();
            assert!(*last < message, "seed {seed}: {message:?} comes after {last:?}");
            *last = message;
        }
    }
    for (message, sequence) in &story.acknowledged {
        let place = found.get(message);
        assert!(
            place.is_some(),
            "seed {seed}: {message:?} was acknowledged and is not in the log"
        );
        if let Some(sequence) = sequence {
            assert_eq!(place, Some(sequence), "seed {seed}: {message:?} is elsewhere");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_numbered_request_is_in_the_log_once_whoever_gets_it_and_whoever_dies() {
    let mut all = Seen::default();
    for seed in 0..6 {
        let Seen {
            acknowledged,
            repeated,
            gaps,
        } = run(seed, None).await;
        all.acknowledged += acknowledged;
        all.repeated += repeated;
        all.gaps += gaps;
    }
    println!("{all:?}");
    assert!(
        all.acknowledged > 1_000 && all.repeated > 50 && all.gaps > 3,
        "{all:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_numbered_request_is_in_the_log_once_whoever_commits_it_for_whom() {
    let (mut acknowledged, mut repeated, mut committed, mut refused) = (0, 0, 0, 0);
    for seed in 0..16 {
        let network = lossy(seed);
        let seen = run(seed, Some(&network)).await;
        acknowledged += seen.acknowledged;
        repeated += seen.repeated;
        committed += network.numbered_committed.load(Relaxed);
        refused += network.clients_refused.load(Relaxed);
    }
    println!(
        "{acknowledged} acknowledged, {repeated} repeated; leaders committed {committed}, refused {refused}"
    );
    assert!(acknowledged > 3_000 && repeated > 300);
    assert!(
        committed > 300 && refused > 30,
        "leaders committed {committed}, refused {refused}"
    );
}

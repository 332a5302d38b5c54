//! A consumer whose shard has a leader that tells of commits, in virtual time: whatever the leader sends, the rows are exact, none waits
//! for long, and the store is polled less.

use crate::support::{Log, Machine, OTHER, Running, STREAM, Table, acknowledged, config, metric_sum, put};
use async_trait::async_trait;
use bytes::Bytes;
use millpond_consumer::{
    Config, ConsumeError, Consumer, LeaderConnection, Leaders, WatchError, WatchedLeader, Watching,
};
use millpond_manifest::cas::Object;
use millpond_manifest::{Fingerprint, Manifest, ProducerId, UniqueSetting, layout};
use millpond_storage::Store;
use millpond_storage::unreliable::{Controls, Faults, On};
use prometheus_client::registry::Registry;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

const SECOND: Duration = Duration::from_secs(1);
/// A consumer without a leader polls four times a second.
const POLL: Duration = Duration::from_millis(250);
/// A row that a poll finds is in the table within this time.
const SOON: Duration = Duration::from_millis(300);
/// The transport notices a leader that stands still within this time.
const PINGS: Duration = Duration::from_millis(1_500);
/// The producer that [`Log`] commits as.
const PRODUCER: ProducerId = ProducerId([7; 16]);
const CERTIFICATE: Fingerprint = Fingerprint([5; 32]);

/// The fate of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// It arrives.
    Honest,
    /// It is lost with the connection.
    Lost,
    /// It comes this many milliseconds later.
    Late(u64),
    /// The leader stands still, and the pings notice.
    Frozen,
    /// The leader shows signs of life and never answers.
    Hangs,
    /// The previous answer comes again.
    Repeated,
    /// A byte of it is wrong.
    Corrupt,
    /// It is cut off.
    Cut,
    /// It has the same version with another nonce.
    OtherNonce,
    /// It is of another shard.
    OtherShard,
    /// It is of another buffer.
    OtherBuffer,
    /// Its last segment is another one.
    OtherLog,
    /// The leader refuses.
    Refused,
    /// The leader leads no more.
    NotLeading,
}

const WRONG: [Way; 13] = [
    Way::Lost,
    Way::Late(700),
    Way::Frozen,
    Way::Hangs,
    Way::Repeated,
    Way::Corrupt,
    Way::Cut,
    Way::OtherNonce,
    Way::OtherShard,
    Way::OtherBuffer,
    Way::OtherLog,
    Way::Refused,
    Way::NotLeading,
];

/// The leader of a shard.
#[derive(Clone)]
struct Leader(Arc<Shared>);

struct Shared {
    /// The manifest that it knows.
    known: watch::Sender<Option<Manifest>>,
    ways: Mutex<VecDeque<Way>>,
    /// Whom consumers connected to, and whether that succeeds.
    connected: Mutex<Vec<WatchedLeader>>,
    reachable: Mutex<bool>,
    last: Mutex<Bytes>,
}

impl Leader {
    fn new() -> Leader {
        Leader(Arc::new(Shared {
            known: watch::Sender::new(None),
            ways: Mutex::default(),
            connected: Mutex::default(),
            reachable: Mutex::new(true),
            last: Mutex::default(),
        }))
    }

    fn tell(&self, manifest: Manifest) {
        self.0.known.send_replace(Some(manifest));
    }

    /// The next answers take these ways, and later ones arrive.
    fn ways(&self, ways: &[Way]) {
        self.0.ways.lock().unwrap().extend(ways);
    }

    fn set_reachable(&self, reachable: bool) {
        *self.0.reachable.lock().unwrap() = reachable;
    }

    fn connections(&self) -> usize {
        self.0.connected.lock().unwrap().len()
    }

    fn connected_to(&self) -> String {
        self.0.connected.lock().unwrap().last().unwrap().address.clone()
    }

    async fn newer(&self, than: u64) -> Manifest {
        let mut known = self.0.known.subscribe();
        let is_newer = |known: &Option<Manifest>| known.as_ref().is_some_and(|it| it.stamp.version > than);
        known.wait_for(is_newer).await.unwrap().clone().unwrap()
    }
}

#[async_trait]
impl Leaders for Leader {
    async fn connect(&self, leader: &WatchedLeader) -> Result<Box<dyn LeaderConnection>, String> {
        assert_eq!(leader.certificate, CERTIFICATE);
        self.0.connected.lock().unwrap().push(leader.clone());
        let is_reachable = *self.0.reachable.lock().unwrap();
        match is_reachable {
            true => Ok(Box::new(self.clone())),
            false => {
                sleep(SECOND).await;
                Err("no connection within 1 s".to_owned())
            }
        }
    }
}

#[async_trait]
impl LeaderConnection for Leader {
    async fn watch(&mut self, consumer: &str, newer_than: u64) -> Result<Bytes, WatchError> {
        assert_eq!(consumer, "default");
        let manifest = self.newer(newer_than).await;
        let way = self.0.ways.lock().unwrap().pop_front().unwrap_or(Way::Honest);
        let failed = |reason: &str| Err(WatchError::Failed(reason.to_owned()));
        let mut sent = manifest.clone();
        match way {
            Way::Honest => {}
            Way::Late(ms) => sleep(Duration::from_millis(ms)).await,
            Way::Lost => return failed("connection reset"),
            Way::Frozen => {
                sleep(PINGS).await;
                return failed("keep-alive timed out");
            }
            Way::Hangs => std::future::pending().await,
            Way::Repeated => return Ok(self.0.last.lock().unwrap().clone()),
            Way::Corrupt => {
                let mut bytes = manifest.encode().to_vec();
                let middle = bytes.len() / 2;
                bytes[middle] ^= 1;
                return Ok(bytes.into());
            }
            Way::Cut => return Ok(manifest.encode().slice(..20)),
            Way::OtherNonce => {
                // The consumer has this version from the store by now.
                sleep(6 * SECOND).await;
                sent.stamp.nonce ^= 1;
            }
            Way::OtherShard => sent.shard = 1,
            Way::OtherBuffer => sent.buffer_id = uuid::Uuid::from_u128(43),
            Way::OtherLog => {
                let last = sent.tail.len() - 2;
                sent.tail[last].segment = ulid::Ulid::from_parts(9, 9);
            }
            Way::Refused => return Err(WatchError::Refused("403".to_owned())),
            Way::NotLeading => return Err(WatchError::NotLeading),
        }
        let bytes = sent.encode();
        *self.0.last.lock().unwrap() = bytes.clone();
        Ok(bytes)
    }
}

/// A log with a leader, a consumer that watches it, and the consumer's network to the store.
struct Site {
    log: Log,
    leader: Leader,
    table: Arc<Table>,
    store: Store,
    network: Controls,
    registry: Registry,
    consumer: Running,
}

fn settings() -> Config {
    Config {
        poll_interval: POLL,
        ..config("a")
    }
}

/// The manifest names a leader.
async fn elect(log: &Log, address: &str) {
    log.change(|manifest| {
        let mut next = manifest.clone();
        next.certify(PRODUCER, Some(CERTIFICATE));
        next.take_lead(PRODUCER, address);
        next
    })
    .await;
}

impl Site {
    /// With a consumer that has heard from the leader.
    async fn new() -> Site {
        Site::with(settings()).await
    }

    async fn with(config: Config) -> Site {
        let mut log = Log::new(Store::memory()).await;
        log.commit(&[2]).await;
        elect(&log, "10.0.0.1:4319").await;
        let leader = Leader::new();
        leader.tell(log.manifest().await.state);
        let table = Table::open("table");
        let (store, network) = log.store.behind(Faults::default());
        let mut registry = Registry::default();
        let consumer = run(&store, config, &table, &leader, &mut registry);
        let mut site = Site {
            log,
            leader,
            table,
            store,
            network,
            registry,
            consumer,
        };
        site.commit_and_tell(2).await;
        site.arrive(SECOND).await;
        assert_eq!(site.count("millpond_consumer_watched_shards"), 1);
        site
    }

    async fn commit_and_tell(&mut self, rows: u64) {
        self.log.commit(&[rows]).await;
        self.leader.tell(self.log.manifest().await.state);
    }

    /// All rows reach the table within this time.
    async fn arrive(&self, within: Duration) {
        let rows = self.log.rows().len() as u64;
        let arrived = timeout(within, self.table.has(rows)).await;
        assert!(arrived.is_ok(), "{rows} rows are not there after {within:?}");
    }

    /// The sum of a metric over its labels.
    fn count(&self, metric: &str) -> u64 {
        metric_sum(&self.registry, metric)
    }

    fn fallbacks(&self, reason: &str) -> u64 {
        self.count(&format!(
            "millpond_consumer_watch_fallbacks_total{{reason=\"{reason}\"}}"
        ))
    }

    /// Ends with every row once.
    async fn end(self) {
        acknowledged(&self.log, self.log.manifest().await.state.next_sequence).await;
        assert_eq!(self.table.rows(), self.log.rows());
        self.consumer.stop().await.unwrap();
        let cursor = self.log.cursor("default").await.unwrap();
        assert_eq!(cursor.certificate, None, "a released cursor vouches for nobody");
    }
}

fn run(
    store: &Store,
    config: Config,
    table: &Arc<Table>,
    leader: &Leader,
    registry: &mut Registry,
) -> Running {
    let watching = Watching {
        leaders: Arc::new(leader.clone()),
        certificate: Fingerprint([9; 32]),
    };
    let consumer = Consumer::new(store.clone(), config, table.clone(), registry)
        .unwrap()
        .with_environment(Arc::new(Machine::with_one_thread()))
        .with_watching(watching);
    let (shutdown, readiness) = (CancellationToken::new(), consumer.readiness());
    let task = tokio::spawn(consumer.run(shutdown.clone()));
    Running {
        shutdown,
        readiness,
        task,
    }
}

#[tokio::test(start_paused = true)]
async fn commits_come_from_the_leader_at_once_and_the_store_is_hardly_asked() {
    let mut site = Site::new().await;
    let cursor = site.log.cursor("default").await.unwrap();
    assert_eq!(cursor.certificate, Some(Fingerprint([9; 32])));
    let before = site.store.requests().get;
    sleep(60 * SECOND).await;
    let gets = site.store.requests().get - before;
    // Twelve polls, and one look for new shards. Without a leader there are 240 polls.
    assert!((12..=14).contains(&gets), "{gets}");
    for _ in 0..20 {
        site.commit_and_tell(3).await;
        // The store is not asked in this time.
        site.arrive(SECOND).await;
        sleep(Duration::from_millis(700)).await;
    }
    assert_eq!(site.leader.connections(), 1);
    assert_eq!(site.count("millpond_consumer_watch_fallbacks"), 0);
    assert!(site.count("millpond_consumer_watch_states_total") >= 20);
    site.end().await;
}

#[tokio::test(start_paused = true)]
async fn whatever_an_answer_is_the_rows_are_exact_and_come_soon() {
    for way in WRONG {
        println!("{way:?}");
        let mut site = Site::new().await;
        site.leader.ways(&[way]);
        site.commit_and_tell(3).await;
        // The pings and a poll, or the poll beside the watch.
        let within = match way {
            Way::Frozen => PINGS + SOON,
            Way::Late(_) => SECOND,
            Way::Hangs | Way::OtherNonce => 5 * SECOND + SOON,
            _ => SOON,
        };
        site.arrive(within).await;
        sleep(10 * SECOND).await;
        // As without a leader, or at once if it has answered late.
        site.commit_and_tell(3).await;
        site.arrive(SOON).await;
        let fallbacks = site.count("millpond_consumer_watch_fallbacks");
        assert_eq!(fallbacks, u64::from(!matches!(way, Way::Late(_))), "{way:?}");
        // A poll may find the commit before the connection ends.
        let reasons: &[&str] = match way {
            Way::Lost => &["failed"],
            Way::Frozen => &["failed", "missed"],
            Way::Hangs => &["missed"],
            Way::OtherNonce => &["contradicted", "missed"],
            Way::OtherLog => &["contradicted"],
            Way::Refused => &["refused"],
            Way::NotLeading => &["not_leading"],
            _ => &["invalid"],
        };
        let expected: u64 = reasons.iter().map(|reason| site.fallbacks(reason)).sum();
        assert_eq!(expected, fallbacks, "{way:?}");
        // The leader is asked again.
        sleep(60 * SECOND).await;
        assert_eq!(site.count("millpond_consumer_watched_shards"), 1, "{way:?}");
        site.commit_and_tell(3).await;
        site.arrive(SECOND).await;
        site.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_commit_that_the_leader_does_not_tell_of_ends_the_watch() {
    let mut site = Site::new().await;
    // Another producer commits for itself.
    site.log.commit(&[3]).await;
    site.arrive(5 * SECOND + SOON).await;
    sleep(2 * SECOND).await;
    assert_eq!(site.fallbacks("missed"), 1);
    for _ in 0..20 {
        site.log.commit(&[1]).await;
        site.arrive(SOON).await;
        sleep(SECOND).await;
    }
    site.leader.tell(site.log.manifest().await.state);
    sleep(60 * SECOND).await;
    site.commit_and_tell(3).await;
    site.arrive(SECOND).await;
    assert_eq!(site.fallbacks("missed"), 1);
    site.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_poll_that_is_faster_than_the_leader_is_no_reason_to_leave_it() {
    let mut site = Site::new().await;
    for _ in 0..30 {
        site.log.commit(&[1]).await;
        // The leader waits for the answer to its swap.
        sleep(Duration::from_millis(600)).await;
        site.leader.tell(site.log.manifest().await.state);
        sleep(Duration::from_millis(430)).await;
    }
    assert_eq!(site.count("millpond_consumer_watch_fallbacks"), 0);
    // Neither is a change without segments, of the garbage collector.
    site.log.change(Manifest::clone).await;
    sleep(20 * SECOND).await;
    assert_eq!(site.count("millpond_consumer_watch_fallbacks"), 0);
    site.end().await;
}

#[tokio::test(start_paused = true)]
async fn another_leader_is_asked_at_once_and_none_is_when_nobody_leads() {
    let mut site = Site::new().await;
    site.leader.set_reachable(false);
    elect(&site.log, "10.0.0.2:4319").await;
    site.leader.set_reachable(true);
    site.commit_and_tell(1).await;
    site.arrive(SECOND).await;
    sleep(SECOND).await;
    assert_eq!(site.leader.connected_to(), "10.0.0.2:4319");
    assert_eq!(site.count("millpond_consumer_watch_fallbacks"), 0);
    site.log
        .change(|manifest| {
            let mut next = manifest.clone();
            next.leave_lead(PRODUCER);
            next
        })
        .await;
    site.leader.tell(site.log.manifest().await.state);
    sleep(SECOND).await;
    assert_eq!(site.count("millpond_consumer_watched_shards"), 0);
    for _ in 0..5 {
        site.commit_and_tell(1).await;
        site.arrive(SOON).await;
    }
    assert_eq!(site.leader.connections(), 2);
    site.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_cannot_be_reached_is_tried_once_a_minute_and_delays_nothing() {
    let mut site = Site::new().await;
    site.leader.set_reachable(false);
    site.leader.ways(&[Way::Lost]);
    site.commit_and_tell(1).await;
    site.arrive(SOON).await;
    sleep(SECOND).await;
    let connections = site.leader.connections();
    for _ in 0..300 {
        site.commit_and_tell(1).await;
        site.arrive(SOON).await;
        sleep(SECOND).await;
    }
    let tried = site.leader.connections() - connections;
    assert!((4..=5).contains(&tried), "{tried}");
    site.end().await;
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_older_than_a_poll_is_ignored() {
    let mut site = Site::new().await;
    for _ in 0..30 {
        site.leader.ways(&[Way::Late(450)]);
        site.commit_and_tell(1).await;
        // A poll may find this one while the answer is under way.
        site.log.commit(&[1]).await;
        sleep(Duration::from_millis(930)).await;
        site.leader.tell(site.log.manifest().await.state);
        sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(site.count("millpond_consumer_watch_fallbacks"), 0);
    site.end().await;
}

/// A store that answers with older states than the leader has shown.
#[tokio::test(start_paused = true)]
async fn a_store_that_is_behind_takes_the_consumer_nowhere_back() {
    let mut site = Site::new().await;
    let before = site.log.manifest().await;
    // The leader tells of the next commit before a poll finds it.
    sleep(SECOND).await;
    site.commit_and_tell(4).await;
    site.arrive(SECOND).await;
    let newer = site.log.manifest().await.state;
    // The store forgets the last state, as a stale copy does.
    put(&site.log, &before.state).await;
    sleep(10 * SECOND).await;
    assert_eq!(site.fallbacks("store_behind"), 1);
    let waits = site.consumer.readiness.waiting_for();
    assert!(
        waits
            .iter()
            .any(|wait| wait.contains("the leader showed version")),
        "{waits:?}"
    );
    put(&site.log, &newer).await;
    site.commit_and_tell(2).await;
    site.arrive(SOON).await;
    sleep(SECOND).await;
    assert!(site.consumer.readiness.waiting_for().is_empty());
    site.end().await;
}

/// A store that has neither the manifest nor the segments that the leader has shown, for a while.
#[tokio::test(start_paused = true)]
async fn what_the_store_does_not_have_yet_is_not_lost() {
    let mut site = Site::new().await;
    let before = site.log.manifest().await.state;
    site.log.commit(&[4]).await;
    let newer = site.log.manifest().await.state;
    let key = layout::segment(0, newer.tail.last().unwrap().segment);
    let segment = site.log.store.get(&key).await.unwrap().unwrap().bytes;
    site.log.store.delete(&key).await.unwrap();
    put(&site.log, &before).await;
    site.leader.tell(newer.clone());
    sleep(20 * SECOND).await;
    let waits = site.consumer.readiness.waiting_for();
    assert!(
        waits.iter().any(|wait| wait.contains("does not have it yet")),
        "{waits:?}"
    );
    site.log.store.put_if_absent(&key, vec![segment]).await.unwrap();
    put(&site.log, &newer).await;
    site.arrive(10 * SECOND).await;
    site.end().await;
}

/// The keys of a silent stream are put together while the store lacks a part of the log that the leader has shown.
#[tokio::test(start_paused = true)]
async fn keys_are_put_together_once_the_store_has_the_log() {
    let mut site = Site::new().await;
    site.table.repeat_after(1_000);
    let setting = UniqueSetting {
        key: vec!["id".into()],
        window_ms: 3_600_000,
    };
    let unique = Config {
        unique: [(STREAM.to_owned(), setting)].into(),
        // The third owner finds a snapshot, so it stores no other one before the next segment.
        snapshot_keys: 1,
        ..settings()
    };
    // It needs the keys of what the second one wrote under the setting.
    for sizes in [&[1][..], &[]] {
        let before = site.log.manifest().await.state;
        acknowledged(&site.log, before.next_sequence).await;
        site.consumer.stop().await.unwrap();
        let mut registry = Registry::default();
        site.consumer = run(
            &site.store,
            unique.clone(),
            &site.table,
            &site.leader,
            &mut registry,
        );
        site.log.commit(sizes).await;
    }
    sleep(SECOND).await;
    let before = site.log.manifest().await.state;
    site.log.commit_to(OTHER, &[1]).await;
    site.log.commit(&[4]).await;
    let newer = site.log.manifest().await.state;
    put(&site.log, &before).await;
    site.leader.tell(newer.clone());
    sleep(20 * SECOND).await;
    let waits = site.consumer.readiness.waiting_for();
    assert!(
        waits.iter().any(|wait| wait.contains("does not have it yet")),
        "{waits:?}"
    );
    put(&site.log, &newer).await;
    site.arrive(10 * SECOND).await;
    site.end().await;
}

/// Somebody restored the bucket.
#[tokio::test(start_paused = true)]
async fn a_store_that_stays_behind_ends_the_consumer_after_a_minute() {
    let mut site = Site::new().await;
    let before = site.log.manifest().await.state;
    // The leader tells of the next commit before a poll finds it.
    sleep(SECOND).await;
    site.commit_and_tell(4).await;
    site.arrive(SECOND).await;
    put(&site.log, &before).await;
    sleep(50 * SECOND).await;
    assert!(!site.consumer.task.is_finished());
    let ended = timeout(60 * SECOND, site.consumer.task).await.unwrap().unwrap();
    assert!(matches!(ended, Err(ConsumeError::Behind { .. })), "{ended:?}");
}

/// It stays away: somebody restored the bucket.
#[tokio::test(start_paused = true)]
async fn what_the_store_never_gets_ends_the_consumer_after_a_minute() {
    let mut site = Site::new().await;
    let before = site.log.manifest().await.state;
    site.log.commit(&[4]).await;
    let newer = site.log.manifest().await.state;
    let key = layout::segment(0, newer.tail.last().unwrap().segment);
    site.log.store.delete(&key).await.unwrap();
    put(&site.log, &before).await;
    site.leader.tell(newer);
    sleep(30 * SECOND).await;
    assert!(!site.consumer.task.is_finished());
    let ended = timeout(60 * SECOND, site.consumer.task).await.unwrap().unwrap();
    let is_either = matches!(
        ended,
        Err(ConsumeError::Lost { .. } | ConsumeError::Behind { .. })
    );
    assert!(is_either, "{ended:?}");
}

/// A read that began before the leader's news returns after them.
#[tokio::test(start_paused = true)]
async fn an_old_answer_of_the_store_does_not_replace_the_leaders_news() {
    let mut site = Site::new().await;
    site.log.change(Manifest::clone).await;
    let mut held = site.network.hold(On::Get, "manifest");
    held.arrived().await;
    site.commit_and_tell(4).await;
    site.arrive(SECOND).await;
    held.release();
    sleep(20 * SECOND).await;
    assert_eq!(site.count("millpond_consumer_watch_fallbacks"), 0);
    site.end().await;
}

#[tokio::test(start_paused = true)]
async fn without_the_store_the_leaders_news_go_on() {
    let mut site = Site::new().await;
    let held = site.network.hold(On::Get, "manifest");
    for _ in 0..10 {
        sleep(SECOND).await;
        site.commit_and_tell(1).await;
        site.arrive(SECOND).await;
    }
    held.release();
    site.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_crashed_owner_and_its_successor_write_every_row_once() {
    let mut site = Site::new().await;
    for round in 0..5 {
        site.commit_and_tell(4).await;
        sleep(Duration::from_millis(round)).await;
        let next = Config {
            take_over: true,
            ..settings()
        };
        let mut registry = Registry::default();
        let after = run(&site.store, next, &site.table, &site.leader, &mut registry);
        std::mem::replace(&mut site.consumer, after).crash().await;
        site.registry = registry;
        site.commit_and_tell(1).await;
        site.arrive(SECOND).await;
    }
    site.end().await;
}

/// Commits of the leader and of others, and answers of every kind, at random.
#[tokio::test(start_paused = true)]
async fn the_rows_are_exact_whatever_the_network_does() {
    for seed in 0..40 {
        println!("seed {seed}");
        let mut rng = StdRng::seed_from_u64(seed);
        let mut site = Site::new().await;
        for _ in 0..60 {
            let way = match rng.random_range(0..4) {
                0 => WRONG[rng.random_range(0..WRONG.len())],
                1 => Way::Late(rng.random_range(0..9_000)),
                _ => Way::Honest,
            };
            site.leader.ways(&[way]);
            site.leader.set_reachable(rng.random_bool(0.9));
            site.log.commit(&[rng.random_range(1..7)]).await;
            if rng.random_bool(0.8) {
                site.leader.tell(site.log.manifest().await.state);
            }
            if rng.random_bool(0.1) {
                elect(&site.log, &format!("10.0.0.{}:4319", rng.random_range(1..9))).await;
            }
            sleep(Duration::from_millis(rng.random_range(0..8_000))).await;
        }
        site.arrive(15 * SECOND).await;
        site.end().await;
    }
}

/// A leader that breaks its own rule, once: the consumer notices as soon as the store goes on without that state. Rows of it may be in
/// the table, so it does not go on by itself.
#[tokio::test(start_paused = true)]
async fn a_state_that_the_store_never_had_is_noticed() {
    let mut site = Site::new().await;
    let before = site.log.manifest().await.state;
    site.log.commit(&[2]).await;
    let phantom = site.log.manifest().await.state;
    put(&site.log, &before).await;
    site.leader.tell(phantom);
    sleep(Duration::from_millis(100)).await;
    for _ in 0..3 {
        site.log.commit(&[2]).await;
    }
    let ended = timeout(60 * SECOND, async {
        while !site.consumer.task.is_finished() {
            sleep(SECOND).await;
        }
    });
    ended.await.expect("it never ends");
    assert_eq!(site.fallbacks("contradicted"), 1);
    let error = site.consumer.stop().await.unwrap_err();
    assert!(matches!(error, ConsumeError::OtherLog { .. }), "{error}");
}

/// Somebody restores the manifest while the leader has shown more than a poll has found. The new segments have the sequences of rows that
/// were sent on the leader's word, so neither this owner nor the next one goes on.
#[tokio::test(start_paused = true)]
async fn a_restored_log_that_contradicts_the_leader_is_not_taken() {
    for killed in [false, true] {
        let mut site = Site::new().await;
        sleep(20 * SECOND).await;
        let earlier = site.log.manifest().await.state;
        site.commit_and_tell(2).await;
        // Before the next poll.
        acknowledged(&site.log, 3).await;
        let cursor = site.log.cursor("default").await.unwrap();
        assert_eq!(cursor.seen.unwrap().sequence, 2);
        put(&site.log, &earlier).await;
        site.log.commit(&[1; 8]).await;
        if killed {
            let next = Config {
                take_over: true,
                ..settings()
            };
            let mut registry = Registry::default();
            let after = run(&site.store, next, &site.table, &site.leader, &mut registry);
            std::mem::replace(&mut site.consumer, after).crash().await;
        }
        let ended = timeout(60 * SECOND, site.consumer.task)
            .await
            .expect("it never ends");
        let error = ended.unwrap().unwrap_err();
        assert!(
            matches!(error, ConsumeError::OtherLog { sequence: 2, .. }),
            "{error}"
        );
        assert_eq!(site.table.rows().len(), 6);
    }
}

/// The owner finds out before it has written down what it sent.
#[tokio::test(start_paused = true)]
async fn an_owner_that_ends_leaves_what_it_has_seen_to_the_next_one() {
    let mut site = Site::with(Config {
        ack_interval: 600 * SECOND,
        lease: 600 * SECOND,
        ..settings()
    })
    .await;
    // The first one makes it plan ahead, so it sends the second one without a swap.
    site.commit_and_tell(2).await;
    site.arrive(SOON).await;
    let earlier = site.log.manifest().await.state;
    site.commit_and_tell(2).await;
    site.arrive(SOON).await;
    let cursor = site.log.cursor("default").await.unwrap();
    assert_eq!(cursor.seen.unwrap().sequence, 2, "a swap came before");
    put(&site.log, &earlier).await;
    site.log.commit(&[1; 8]).await;
    for _ in 0..2 {
        let next = Config {
            take_over: true,
            ..settings()
        };
        let ended = timeout(60 * SECOND, &mut site.consumer.task)
            .await
            .expect("it never ends");
        let error = ended.unwrap().unwrap_err();
        assert!(
            matches!(error, ConsumeError::OtherLog { sequence: 3, .. }),
            "{error}"
        );
        let mut registry = Registry::default();
        site.consumer = run(&site.store, next, &site.table, &site.leader, &mut registry);
    }
}

/// The state that the leader sends does not show what the consumer knows.
#[tokio::test(start_paused = true)]
async fn a_tail_that_was_sealed_is_taken_from_the_store() {
    let mut site = Site::new().await;
    for _ in 0..5 {
        site.log.commit(&[1; 3]).await;
        site.log.seal(1).await;
        site.commit_and_tell(1).await;
        site.arrive(SECOND).await;
        sleep(SECOND).await;
    }
    assert_eq!(site.count("millpond_consumer_watch_fallbacks"), 0);
    site.end().await;
}

/// A new owner waits for the log that it knows, and the leader shows another one.
#[tokio::test(start_paused = true)]
async fn a_leader_of_another_log_costs_no_requests() {
    let mut site = Site::new().await;
    let earlier = site.log.manifest().await.state;
    site.commit_and_tell(2).await;
    acknowledged(&site.log, 3).await;
    site.consumer.stop().await.unwrap();
    put(&site.log, &earlier).await;
    let mut registry = Registry::default();
    site.consumer = run(&site.store, settings(), &site.table, &site.leader, &mut registry);
    sleep(SECOND).await;
    site.log.commit(&[1; 8]).await;
    let other = site.log.manifest().await.state;
    put(&site.log, &earlier).await;
    site.leader.tell(other);
    let before = site.store.requests().get;
    sleep(30 * SECOND).await;
    let gets = site.store.requests().get - before;
    assert!(gets <= 130, "{gets}");
    assert_eq!(site.table.rows().len(), 6);
    site.consumer.crash().await;
}

//! Numbered requests at processes in different shards: whichever of them gets a repetition, the row of its client decides.

use std::sync::Arc;
use std::time::Duration;

use millpond_manifest::{Buffer, layout};
use millpond_producer::{AppendError, ClientId, ClientRefusal, Committed, Config, Numbered, Numbers};
use millpond_runtime::Environment as _;
use millpond_storage::unreliable::{On, Outage};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::growth::{Process, grow, grow_by, log};
use crate::support::{Seeded, World, config, until};

/// A client whose home is this shard, of three.
fn client_of(home: u8) -> ClientId {
    let mut id = [0; 16];
    id[15] = home;
    let client = ClientId(id);
    let buffer = Buffer::new(Seeded::standing(1).uuid(), 3);
    assert_eq!(buffer.home_of(client), u32::from(home));
    client
}

impl Process {
    async fn send(&self, client: ClientId, number: u64) -> Result<Committed, AppendError> {
        let numbered = Numbered {
            client,
            numbers: Numbers::Counted { number },
            checksum: 1,
            source: None,
        };
        let text = format!("{client:?} {number}");
        let submitted = self.producers.submit_numbered(self.message(&text), numbered);
        submitted.await?.committed().await
    }

    /// The number of producers that are open.
    fn open(&self) -> String {
        self.metric("millpond_producer_open")
    }
}

fn in_shard(shard: u32) -> Config {
    Config {
        shard: Some(shard),
        shards_when_created: 3,
        ..config()
    }
}

fn texts(client: ClientId, numbers: impl IntoIterator<Item = u64>) -> Vec<String> {
    let numbers = numbers.into_iter();
    numbers.map(|number| format!("{client:?} {number}")).collect()
}

#[tokio::test(start_paused = true)]
async fn a_repetition_at_a_process_in_another_shard_is_recognised() {
    let world = World::new();
    let processes = [
        Process::start(&world, in_shard(0), 1).await,
        Process::start(&world, in_shard(1), 2).await,
    ];
    let client = client_of(2);
    for number in 1..=4 {
        for (turn, process) in (0..).zip(&processes) {
            let committed = process.send(client, number).await.unwrap();
            assert_eq!(committed.is_repeated, turn == 1, "{number}");
        }
    }
    let gap = processes[1].send(client, 6).await.unwrap_err();
    assert_eq!(gap, AppendError::Client(ClientRefusal::Gap { last: 4 }));
    assert_eq!(log(&world.honest, 2).await, texts(client, 1..=4));
    for (shard, process) in (0..).zip(&processes) {
        process.append("no number").await.unwrap();
        assert_eq!(log(&world.honest, shard).await, ["no number"]);
        process.producers.drain(Duration::from_secs(60)).await.unwrap();
    }
}

/// The usual case: no further producer, and no further request to the store.
#[tokio::test(start_paused = true)]
async fn the_own_shard_needs_no_further_producer() {
    let world = World::new();
    let process = Process::start(&world, config(), 1).await;
    for number in 1..=3 {
        process.send(client_of(2), number).await.unwrap();
    }
    assert_eq!(process.open(), "1");
}

#[tokio::test(start_paused = true)]
async fn growth_moves_no_client_and_a_moved_process_still_knows_it() {
    let world = World::new();
    let stays = Process::start(
        &world,
        Config {
            shard: Some(0),
            ..config()
        },
        1,
    )
    .await;
    let moves = Process::start(&world, config(), 2).await;
    let clients = [0, 1, 2].map(client_of);
    for client in clients {
        moves.send(client, 1).await.unwrap();
    }
    grow(&world.honest, 1_000).await;
    until(async || moves.producers.shard() != 0 && stays.producers.shards() == 1_000).await;
    let late = Process::start(&world, config(), 3).await;
    assert_ne!(late.producers.shard(), 0);
    for client in clients {
        for process in [&moves, &late, &stays] {
            let repeated = process.send(client, 1).await.unwrap();
            assert!(repeated.is_repeated, "the home of a client has moved");
        }
        assert!(!late.send(client, 2).await.unwrap().is_repeated);
        assert!(moves.send(client, 2).await.unwrap().is_repeated);
    }
    let mut stored = log(&world.honest, 0).await;
    stored.sort();
    let mut expected: Vec<_> = clients
        .into_iter()
        .flat_map(|client| texts(client, 1..=2))
        .collect();
    expected.sort();
    assert_eq!(stored, expected);
    assert_eq!(moves.open(), "2", "its own, and the home");
}

/// Its growth erases the number of homes.
#[tokio::test(start_paused = true)]
async fn a_running_process_keeps_its_homes_when_an_older_program_grows_the_buffer() {
    let world = World::new();
    let process = Process::start(&world, config(), 5).await;
    let client = client_of(2);
    process.send(client, 1).await.unwrap();
    let older = |grown| Buffer {
        home_shards: None,
        ..grown
    };
    grow_by(&world.honest, 1_000, older).await;
    until(async || process.producers.shard() != 0).await;
    assert!(process.send(client, 1).await.unwrap().is_repeated);
    assert_eq!(log(&world.honest, 0).await, texts(client, [1]));
}

/// The second request arrives while the first one waits for its commit, and the process moves in between. It must not overtake.
#[tokio::test(start_paused = true)]
async fn a_move_keeps_the_order_of_a_client() {
    let world = World::new();
    let process = Arc::new(Process::start(&world, config(), 4).await);
    let client = client_of(1);
    process.send(client, 1).await.unwrap();
    let mut commit = world.controls.hold(On::Put, "shards/0000/manifest");
    let send = |number| {
        let process = Arc::clone(&process);
        tokio::spawn(async move { process.send(client, number).await })
    };
    let second = send(2);
    commit.arrived().await;
    grow(&world.honest, 1_000).await;
    until(async || process.producers.shard() != 0).await;
    let third = send(3);
    sleep(Duration::from_secs(1)).await;
    assert!(!second.is_finished());
    commit.release();
    assert!(!second.await.unwrap().unwrap().is_repeated);
    let third = third.await.unwrap();
    assert!(!third.expect("it followed the second").is_repeated);
    assert_eq!(log(&world.honest, 0).await, texts(client, 1..=3));
}

#[tokio::test(start_paused = true)]
async fn a_home_that_cannot_be_used_fails_its_own_requests_alone() {
    let world = World::new();
    let process = Process::start(&world, in_shard(0), 1).await;
    let damaged = vec![bytes::Bytes::from_static(b"damaged")];
    let key = layout::manifest(2);
    world.honest.put_if_absent(&key, damaged).await.unwrap();
    let refused = process.send(client_of(2), 1).await.unwrap_err();
    assert!(
        refused.is_retryable() && refused.has_no_side_effects(),
        "{refused}"
    );
    let said = refused.to_string();
    assert!(
        said.contains("shard 2, ") && said.contains("it was cut off"),
        "{said}"
    );
    assert_eq!(process.producers.readiness().waiting_for(), Vec::<String>::new());
    process.append("no number").await.unwrap();
    process.send(client_of(0), 1).await.unwrap();
    process.send(client_of(1), 1).await.unwrap();
    world.honest.delete(&key).await.unwrap();
    until(async || process.send(client_of(2), 1).await.is_ok()).await;
    assert_eq!(log(&world.honest, 2).await, texts(client_of(2), [1]));
}

/// Kafka's batches come one after another, and none of the others may wait for each of them.
#[tokio::test(start_paused = true)]
async fn requests_wait_for_a_home_that_does_not_open_only_once() {
    let world = World::new();
    let process = Process::start(&world, in_shard(0), 1).await;
    let damaged = vec![bytes::Bytes::from_static(b"damaged")];
    world
        .honest
        .put_if_absent(&layout::manifest(2), damaged)
        .await
        .unwrap();
    let began = Instant::now();
    for number in 1..=100 {
        assert!(
            process
                .send(client_of(2), number)
                .await
                .unwrap_err()
                .is_retryable()
        );
    }
    let waited = began.elapsed();
    assert!(
        waited <= Duration::from_secs(11),
        "one after another they waited {waited:?}"
    );
    assert_eq!(process.metric("millpond_producer_home_refused_total"), "100");
    // The opening has failed meanwhile, and the next one begins.
    for _ in 0..10 {
        sleep(Duration::from_secs(20)).await;
        let began = Instant::now();
        assert!(process.send(client_of(2), 1).await.unwrap_err().is_retryable());
        assert_eq!(began.elapsed(), Duration::ZERO);
    }
}

/// One shard's manifest is damaged while its home is open. Its requests neither fill the memory nor make the process unready.
#[tokio::test(start_paused = true)]
async fn a_home_that_cannot_commit_harms_nobody_else() {
    let world = World::new();
    let process = Arc::new(Process::start(&world, in_shard(0), 1).await);
    process.send(client_of(2), 1).await.unwrap();
    let key = layout::manifest(2);
    let good = world.honest.get(&key).await.unwrap().unwrap();
    let replace = async |bytes| {
        world.honest.delete(&key).await.unwrap();
        world.honest.put_if_absent(&key, vec![bytes]).await.unwrap();
    };
    replace(bytes::Bytes::from_static(b"damaged")).await;
    let mut waiting = Vec::new();
    let mut refused = 0;
    for second in 0..60 {
        let sender = Arc::clone(&process);
        // Each second another client.
        let client = ClientId([1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0, 0, 3 * second + 2]);
        waiting.push(tokio::spawn(async move { sender.send(client, 1).await }));
        sleep(Duration::from_secs(1)).await;
        refused += usize::from(waiting.last().is_some_and(JoinHandle::is_finished));
        assert_eq!(process.producers.readiness().waiting_for(), Vec::<String>::new());
    }
    assert!(
        (40..60).contains(&refused),
        "{refused} of 60 were refused at once"
    );
    process.append("no number").await.unwrap();
    process.send(client_of(1), 1).await.unwrap();
    replace(good.bytes).await;
    for request in waiting {
        let answer = request.await.unwrap();
        assert!(answer.is_ok() || answer.is_err_and(|error| error.is_retryable()));
    }
    assert!(!process.send(client_of(2), 2).await.unwrap().is_repeated);
}

#[tokio::test(start_paused = true)]
async fn an_idle_home_closes_and_opens_again() {
    let world = World::new();
    let process = Process::start(&world, in_shard(0), 1).await;
    let client = client_of(1);
    process.send(client, 1).await.unwrap();
    assert_eq!(process.open(), "2");
    while process.open() != "1" {
        sleep(Duration::from_secs(10)).await;
    }
    assert!(process.send(client, 1).await.unwrap().is_repeated);
    process.send(client, 2).await.unwrap();
    assert_eq!(process.open(), "2");
    assert_eq!(log(&world.honest, 1).await, texts(client, 1..=2));
}

#[tokio::test(start_paused = true)]
async fn a_drain_ends_all_producers_and_waits_for_all() {
    let world = World::new();
    let process = Arc::new(Process::start(&world, in_shard(0), 1).await);
    process.send(client_of(1), 1).await.unwrap();
    let mut commit = world.controls.hold(On::Put, "shards/0001/manifest");
    let last = {
        let process = Arc::clone(&process);
        tokio::spawn(async move { process.send(client_of(1), 2).await })
    };
    commit.arrived().await;
    let error = process.producers.drain(Duration::from_secs(1)).await;
    assert!(error.is_err());
    let late = process.send(client_of(2), 1).await.unwrap_err();
    assert_eq!(late, AppendError::Closed);
    commit.release();
    process.producers.drain(Duration::from_secs(60)).await.unwrap();
    last.await.unwrap().unwrap();
    assert_eq!(process.open(), "0");
}

/// All producers wait for the same memory, and none leaks it.
#[tokio::test(start_paused = true)]
async fn homes_share_the_memory_of_the_process() {
    let world = World::new();
    let process = Process::start(&world, in_shard(0), 1).await;
    process.send(client_of(1), 1).await.unwrap();
    let budget = process.producers.budget();
    let all = budget.reserve(budget.limit()).await.unwrap();
    let refused = process.send(client_of(1), 2).await.unwrap_err();
    assert!(matches!(refused, AppendError::OverBudget(_)), "{refused}");
    drop(all);
    process.send(client_of(1), 2).await.unwrap();
    world.controls.set_outage(Some(Outage::Fails));
    let refused = process.send(client_of(2), 1).await.unwrap_err();
    assert!(refused.is_retryable(), "{refused}");
    // The home that is open waits, and the process is ready without it.
    let waiting = tokio::time::timeout(Duration::from_secs(1), process.send(client_of(1), 3)).await;
    assert!(waiting.is_err());
    assert_eq!(process.producers.readiness().waiting_for(), Vec::<String>::new());
    world.controls.heal();
    process.send(client_of(1), 3).await.unwrap();
    until(async || budget.held() == 0).await;
}

//! Many producers on one shard, over a store with S3's latency, in virtual time: each gets its turn to commit.

use std::time::Duration;

use crate::support::{Seeded, World, append};
use futures::future::join_all;
use millpond_producer::{Config, Producer};
use millpond_storage::unreliable::{Faults, S3Latency};
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use tokio::time::{Instant, sleep};

/// What the callers saw, and what it cost.
struct Run {
    /// How long each caller waited, ascending.
    waited: Vec<Duration>,
    /// Attempts to swap the manifest per commit.
    attempts: f64,
}

impl Run {
    fn of(&self, per_cent: usize) -> Duration {
        self.waited[(self.waited.len() - 1) * per_cent / 100]
    }
}

async fn run(producers: u32, linger: Duration, seconds: u32) -> Run {
    let world = World::new();
    world.controls.set_faults(Faults {
        seed: 1,
        latency: Some(S3Latency::default()),
        ..Faults::default()
    });
    let config = || Config {
        linger,
        memory_limit: 64 << 20,
        ..Config::default()
    };
    let mut registry = Registry::default();
    let mut all: Vec<Producer> = Vec::new();
    for seed in 0..producers {
        let environment = Seeded::standing(seed.into());
        let producer = Producer::start_in(environment, world.store.clone(), config(), &mut registry);
        all.push(producer.await.unwrap());
    }
    let before = attempts(&registry);
    let loads = all.iter().zip(0_u32..).map(|(producer, place)| async move {
        let appends = (0..seconds * 5).map(|number| async move {
            // The producers are out of step.
            sleep(Duration::from_millis(200) * number + Duration::from_millis(17) * place).await;
            let start = Instant::now();
            append(producer, "x").await.unwrap();
            start.elapsed()
        });
        join_all(appends).await
    });
    let mut waited: Vec<Duration> = join_all(loads).await.concat();
    waited.sort();
    let commits: u64 = world
        .manifest()
        .await
        .state
        .producers
        .iter()
        .map(|row| row.commit)
        .sum();
    let attempts = (attempts(&registry) - before) / commits as f64;
    Run { waited, attempts }
}

/// The attempts of all producers to swap the manifest so far.
fn attempts(registry: &Registry) -> f64 {
    let mut text = String::new();
    encode(&mut text, registry).unwrap();
    let counts = text
        .lines()
        .filter(|line| line.starts_with("millpond_producer_commit_attempts_total"));
    counts
        .map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap())
        .sum()
}

#[tokio::test(start_paused = true)]
async fn no_producer_of_many_loses_every_race() {
    // Without turns the slowest of these callers waits 31 s, and one in a hundred 21 s.
    let run = run(16, Duration::from_millis(250), 60).await;
    assert!(run.of(100) < Duration::from_secs(8), "{:?}", run.of(100));
    assert!(run.of(99) < Duration::from_secs(4), "{:?}", run.of(99));
    assert!(run.attempts < 3.0, "{}", run.attempts);
}

#[tokio::test(start_paused = true)]
async fn few_producers_hardly_wait_for_each_other() {
    let run = run(4, Duration::from_secs(1), 60).await;
    assert!(run.of(50) < Duration::from_millis(750), "{:?}", run.of(50));
    assert!(run.of(99) < Duration::from_millis(1_500), "{:?}", run.of(99));
    assert!(run.attempts < 1.3, "{}", run.attempts);
}

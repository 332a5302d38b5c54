//! Gateways in different shards of one buffer: a client's repetition may reach any of them, also after growth.

use crate::common::kafka::{Client, PRODUCE, PRODUCE_VERSION, batch, numbered, outcomes, produce, values};
use crate::common::log::rows_of;
use crate::common::{PATIENCE, Running, beside, producer_config, start};
use crate::numbering::{count, post, success, told};
use hyper::StatusCode;
use millpond_gateway::Config;
use millpond_manifest::cas::{self, Swap};
use millpond_manifest::{Buffer, layout};
use std::time::Duration;
use tokio::time::timeout;

const SHARDS: u32 = 3;

fn in_shard(shard: u32) -> millpond_producer::Config {
    millpond_producer::Config {
        shard: Some(shard),
        shards_when_created: SHARDS,
        growth_interval: Duration::from_millis(50),
        ..producer_config()
    }
}

async fn one_in_each_shard() -> Vec<Running> {
    let mut gateways = vec![start(in_shard(0), Config::default()).await];
    for shard in 1..SHARDS {
        let next = beside(&gateways[0], in_shard(shard)).await;
        gateways.push(next);
    }
    gateways
}

/// The rows of each shard, in the order of its log.
async fn stored(gateways: &[Running], stream: &str) -> Vec<Vec<String>> {
    let mut stored = Vec::new();
    for shard in 0..SHARDS {
        stored.push(rows_of(&gateways[0], shard, stream).await.0);
    }
    stored
}

fn sorted(stored: &[Vec<String>]) -> Vec<String> {
    let mut rows = stored.concat();
    rows.sort();
    rows
}

async fn grow(gateway: &Running, shards: u32) {
    let found = cas::read::<Buffer>(&gateway.store, layout::BUFFER).await;
    let found = found.expect("an answer").expect("a buffer");
    let grown = found
        .state
        .grow(shards, 7)
        .expect("it grows")
        .expect("it is larger");
    let swapped = cas::swap(&gateway.store, layout::BUFFER, Some(&found.version), grown).await;
    assert!(matches!(swapped, Swap::Committed(_)), "{swapped:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn any_gateway_knows_the_numbers_and_keys_of_all_clients() {
    let gateways = one_in_each_shard().await;
    let mut expected = Vec::new();
    for client in 0..8 {
        let name = format!("client-{client}");
        for number in 1..=2 {
            let row = format!("{{\"client\":{client},\"number\":{number}}}");
            for turn in 0..gateways.len() {
                let gateway = &gateways[(client + number + turn) % gateways.len()];
                let answer = count(gateway, &name, &number.to_string(), &row).await;
                assert_eq!(told(&answer), success(turn > 0), "{row} at gateway {turn}");
            }
            expected.push(row);
        }
        let row = format!("{{\"key\":{client}}}");
        for (turn, gateway) in gateways.iter().enumerate() {
            let answer = post(gateway, &[("idempotency-key", &name)], &row).await;
            assert_eq!(told(&answer), success(turn > 0), "{row}");
        }
        expected.push(row);
    }
    let stored = stored(&gateways, "events.signup").await;
    expected.sort();
    assert_eq!(sorted(&stored), expected);
    assert!(stored.iter().all(|rows| !rows.is_empty()), "{stored:?}");
    // Without a number, a row goes to the gateway's own shard.
    for (shard, gateway) in (0..).zip(&gateways) {
        assert_eq!(post(gateway, &[], "{\"own\":1}").await.status, StatusCode::OK);
        let rows = rows_of(gateway, shard, "events.signup").await.0;
        assert_eq!(rows.last().map(String::as_str), Some("{\"own\":1}"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kafka_producer_repeats_its_batches_at_any_gateway_also_after_growth() {
    let gateways = one_in_each_shard().await;
    let mut clients = Vec::new();
    for gateway in &gateways {
        clients.push(Client::connect(gateway.kafka_address).await);
    }
    let mut expected = Vec::new();
    for sequence in 0..4_i32 {
        if sequence == 2 {
            grow(&gateways[0], 8).await;
            for gateway in &gateways {
                let noticed = async {
                    while gateway.producers.shards() != 8 {
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                };
                timeout(PATIENCE, noticed).await.expect("it notices the growth");
            }
        }
        for producer in 70..76 {
            let row = format!("{{\"producer\":{producer},\"sequence\":{sequence}}}");
            let batch = numbered(batch(&values(&[&row])), producer, 0, sequence);
            for client in &mut clients {
                let outcome = client.produce("events.signup", &batch).await;
                assert_eq!(outcome.error, 0, "{outcome:?}");
            }
            expected.push(row);
        }
    }
    expected.sort();
    assert_eq!(sorted(&stored(&gateways, "events.signup").await), expected);
}

/// Another gateway has told the client of the new partitions.
#[tokio::test(flavor = "multi_thread")]
async fn a_partition_is_there_as_soon_as_the_buffer_has_it() {
    let late = millpond_producer::Config {
        growth_interval: Duration::from_secs(3_600),
        shards_when_created: 1,
        ..in_shard(0)
    };
    let gateway = start(late, Config::default()).await;
    let mut client = Client::connect(gateway.kafka_address).await;
    grow(&gateway, 3).await;
    let rows = batch(&values(&["{}"]));
    for (partition, error) in [(2, 0), (3, 3)] {
        let request = produce("events.signup", -1, &[(partition, &rows)]);
        let answer = client
            .ask(PRODUCE, PRODUCE_VERSION, &request)
            .await
            .expect("an answer");
        assert_eq!(outcomes(&answer)[0].error, error, "partition {partition}");
    }
}

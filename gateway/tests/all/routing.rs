//! Streams whose rows go to the shard of their key, whichever gateway gets them and however often.

use crate::common::http::JSON;
use crate::common::kafka::{Client, PRODUCE, PRODUCE_VERSION, batch, numbered, outcomes, produce, values};
use crate::common::log::rows_of;
use crate::common::{PATIENCE, Pieces, Running, beside, producer_config, start};
use crate::numbering::{count, post, told};
use bytes::Bytes;
use hyper::StatusCode;
use millpond_events::{KeyHasher, KeyPaths};
use millpond_gateway::Config;
use millpond_manifest::cas::{self, Swap};
use millpond_manifest::{Buffer, Route, layout};
use millpond_storage::unreliable::On;
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::timeout;

const SHARDS: u32 = 3;
const STREAM: &str = "events.signup";

fn in_shard(shard: u32) -> millpond_producer::Config {
    millpond_producer::Config {
        shard: Some(shard),
        shards_when_created: SHARDS,
        growth_interval: Duration::from_millis(50),
        ..producer_config()
    }
}

fn route(shards: u32) -> Route {
    let key = vec!["id".to_owned()];
    Route { key, shards }
}

/// The shard of a row, as a consumer finds it.
fn shard_of(row: &str) -> Option<u32> {
    let key = KeyPaths::new(&["id".to_owned()]).key(row, &mut KeyHasher::default());
    key.map(|key| route(SHARDS).shard_of(key))
}

/// A row whose key belongs to this shard. Different numbers give different rows and keys.
fn row_in(shard: u32, number: u64) -> String {
    let ids = (0..).map(|try_| format!("{{\"id\":\"{number}-{try_}\"}}"));
    ids.into_iter()
        .find(|row| shard_of(row) == Some(shard))
        .expect("some id")
}

/// Gateways in the first `gateways` shards, all of which know that the stream is routed.
async fn routing(gateways: u32) -> Vec<Running> {
    let mut all = vec![start(in_shard(0), Config::default()).await];
    for shard in 1..gateways {
        let next = beside(&all[0], in_shard(shard)).await;
        all.push(next);
    }
    change(&all[0], |buffer| {
        let routes = [(STREAM.into(), route(SHARDS).into())].into();
        buffer.route(&routes, 7).expect("a route").expect("a new one")
    })
    .await;
    for gateway in &all {
        let noticed = async {
            while gateway.producers.route(STREAM).is_none() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(PATIENCE, noticed).await.expect("it notices the route");
    }
    all
}

async fn change(gateway: &Running, change: impl FnOnce(&Buffer) -> Buffer) {
    let found = cas::read::<Buffer>(&gateway.store, layout::BUFFER).await;
    let found = found.expect("an answer").expect("a buffer");
    let next = change(&found.state);
    let swapped = cas::swap(&gateway.store, layout::BUFFER, Some(&found.version), next).await;
    assert!(matches!(swapped, Swap::Committed(_)), "{swapped:?}");
}

/// The rows of a shard. Rows of one message are on lines.
async fn stored_in(gateway: &Running, shard: u32) -> Vec<String> {
    let (messages, records) = rows_of(gateway, shard, STREAM).await;
    let rows: Vec<String> = messages
        .iter()
        .flat_map(|message| message.lines())
        .map(str::to_owned)
        .collect();
    assert_eq!(rows.len() as u64, records);
    rows
}

/// Checks that each row with a key is in its shard, and returns how often each of the others is in any.
async fn check_shards(gateway: &Running) -> (BTreeSet<String>, Vec<(u32, String)>) {
    let (mut keyed, mut others) = (BTreeSet::new(), Vec::new());
    for shard in 0..SHARDS {
        for row in stored_in(gateway, shard).await {
            match shard_of(&row) {
                Some(expected) => {
                    assert_eq!(expected, shard, "{row}");
                    keyed.insert(row);
                }
                None => others.push((shard, row)),
            }
        }
    }
    others.sort();
    (keyed, others)
}

fn mixed(number: u64) -> Vec<String> {
    let keyed = (0..SHARDS).map(|shard| row_in(shard, number));
    keyed.chain([format!("{{\"number\":{number}}}")]).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_are_in_the_shard_of_their_key_and_others_in_that_of_the_gateway() {
    let gateways = routing(SHARDS).await;
    let mut expected = BTreeSet::new();
    let mut others = Vec::new();
    for (number, (shard, gateway)) in (0..).zip((0..).zip(&gateways)) {
        let rows = mixed(number);
        // The others twice, as if the answer were lost: only the rows of the request without a key are there twice, where it went.
        for turn in 0..2_u32 {
            let answer = post(
                &gateways[((shard + turn) % SHARDS) as usize],
                &[],
                &rows.join("\n"),
            )
            .await;
            assert_eq!(told(&answer).0, 200, "{answer:?}");
            others.push(((shard + turn) % SHARDS, rows[3].clone()));
        }
        expected.extend(rows[..3].iter().cloned());
        gateway.assert_well().await;
    }
    others.sort();
    assert_eq!(check_shards(&gateways[0]).await, (expected, others));
    for (shard, gateway) in (0..).zip(&gateways) {
        let alone = row_in((shard + 1) % SHARDS, 100 + u64::from(shard));
        assert_eq!(post(gateway, &[], &alone).await.status, StatusCode::OK);
        let rows = stored_in(gateway, (shard + 1) % SHARDS).await;
        assert_eq!(rows.iter().filter(|row| **row == alone).count(), 1);
    }
    // Another stream is not divided.
    let other = "/v1/streams/events.other";
    let rows = Pieces::sized(mixed(1_000).join("\n"));
    assert_eq!(
        gateways[1].post(other, JSON, &[], rows).await.status,
        StatusCode::OK
    );
    assert_eq!(rows_of(&gateways[1], 1, "events.other").await.1, 4);
}

/// The client repeats each request at all gateways, as it does after a lost answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_number_repeats_only_rows_whose_key_is_in_the_log() {
    let gateways = routing(SHARDS).await;
    let (mut keyed, mut others) = (BTreeSet::new(), Vec::new());
    for client in 0..6_u64 {
        let name = format!("client-{client}");
        for number in 1..=3_usize {
            let mut rows = mixed(10 * client + number as u64);
            if number == 2 {
                // All rows have keys, and no row may belong to the shard of the number.
                rows.truncate(1);
            }
            for turn in 0..gateways.len() {
                let gateway = &gateways[(number + turn) % gateways.len()];
                let answer = count(gateway, &name, &number.to_string(), &rows.join("\n")).await;
                let accepted = format!("{{\"accepted\":{}}}", rows.len());
                assert_eq!(told(&answer), (200, turn > 0, accepted), "{name} {number}");
            }
            others.extend(rows.iter().filter(|row| shard_of(row).is_none()).cloned());
            keyed.extend(rows.into_iter().filter(|row| shard_of(row).is_some()));
        }
        let rows = mixed(1_000 + client);
        for (turn, gateway) in gateways.iter().enumerate() {
            let answer = post(gateway, &[("idempotency-key", &name)], &rows.join("\n")).await;
            assert_eq!(told(&answer).1, turn > 0, "{answer:?}");
        }
        others.push(rows[3].clone());
        keyed.extend(rows[..3].iter().cloned());
    }
    others.sort();
    let (found, rest) = check_shards(&gateways[0]).await;
    assert_eq!(found, keyed);
    let mut rest: Vec<String> = rest.into_iter().map(|(_, row)| row).collect();
    rest.sort();
    assert_eq!(rest, others, "each row without a key is there once");
    // The number stands for all rows, not only for those that are stored with it.
    let mut changed = mixed(1);
    changed[0] = row_in(0, 77);
    let wrong = count(&gateways[0], "client-0", "3", &changed.join("\n")).await;
    assert_eq!(wrong.status, StatusCode::UNPROCESSABLE_ENTITY);
}

/// Otherwise a request that fails in between would be taken for a repetition, and its other rows would be lost. A client without numbers
/// would store the rows without a key again.
#[tokio::test(flavor = "multi_thread")]
async fn the_number_and_the_rows_without_a_key_follow_the_others() {
    for headers in [&[][..], &[("idempotency-key", "a")]] {
        let gateways = routing(1).await;
        let gateway = &gateways[0];
        // All shards are open, and the number is in one of them.
        for number in 0..8 {
            let key = number.to_string();
            let answer = post(gateway, &[("idempotency-key", &key)], &mixed(number).join("\n")).await;
            assert_eq!(answer.status, StatusCode::OK);
        }
        let row = "{\"last\":true}";
        let rest_of = async || {
            let mut found = 0;
            for shard in 0..SHARDS {
                found += usize::from(stored_in(gateway, shard).await.contains(&row.to_owned()));
            }
            found
        };
        let mut held = Vec::new();
        for shard in 0..SHARDS {
            held.push(
                gateway
                    .controls
                    .hold(On::Put, &format!("shards/{shard:04}/manifest")),
            );
        }
        let mut rows = mixed(100);
        rows[3] = row.to_owned();
        let body = rows.join("\n");
        let answer = post(gateway, headers, &body);
        tokio::pin!(answer);
        let mut first_wait = Box::pin(tokio::time::sleep(Duration::from_millis(300)));
        tokio::select! {
            early = &mut answer => panic!("answered before the commit: {early:?}"),
            () = &mut first_wait => {}
        }
        // Release the shards one by one: the rest needs all others.
        let last = held.pop().expect("three");
        held.into_iter()
            .for_each(millpond_storage::unreliable::HeldRequest::release);
        tokio::select! {
            early = &mut answer => panic!("answered before the last commit: {early:?}"),
            () = tokio::time::sleep(Duration::from_millis(300)) => {}
        }
        assert_eq!(rest_of().await, 0, "the rest came before the rows with keys");
        last.release();
        let answer = timeout(PATIENCE, answer).await.expect("an answer");
        assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
        assert_eq!(rest_of().await, 1);
        gateway.assert_well().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_of_kafka_producers_are_divided_and_their_numbers_follow_one_another() {
    let gateways = routing(SHARDS).await;
    let (mut keyed, mut others) = (BTreeSet::new(), Vec::new());
    let mut clients = Vec::new();
    for gateway in &gateways {
        clients.push(Client::connect(gateway.kafka_address).await);
    }
    for producer in 70..73 {
        let mut sequence = 0;
        let mut requests = Vec::new();
        for number in 0..6_u64 {
            let mut rows = mixed(1_000 * producer + number);
            if number == 2 {
                rows.truncate(3);
            }
            let records: Vec<&str> = rows.iter().map(String::as_str).collect();
            let batch = numbered(batch(&values(&records)), producer.cast_signed(), 0, sequence);
            sequence += i32::try_from(rows.len()).expect("few");
            requests.push(produce(STREAM, -1, &[(0, &batch)]));
            others.extend(rows.iter().filter(|row| shard_of(row).is_none()).cloned());
            keyed.extend(rows.into_iter().filter(|row| shard_of(row).is_some()));
        }
        // All at once, and then again at the other gateways.
        for client in &mut clients {
            for request in &requests {
                client.send(PRODUCE, PRODUCE_VERSION, request).await;
            }
            for number in 0..requests.len() {
                let (_, answer) = client.answer().await.expect("an answer");
                let outcome = outcomes(&answer).remove(0);
                assert_eq!(
                    outcome.error, 0,
                    "producer {producer}, batch {number}: {outcome:?}"
                );
            }
        }
    }
    // Without numbers.
    let rows = mixed(9);
    let records: Vec<&str> = rows.iter().map(String::as_str).collect();
    assert_eq!(
        clients[1].produce(STREAM, &batch(&values(&records))).await.error,
        0
    );
    others.push(rows[3].clone());
    keyed.extend(rows[..3].iter().cloned());
    others.sort();
    let (found, rest) = check_shards(&gateways[0]).await;
    assert_eq!(found, keyed);
    let mut rest: Vec<String> = rest.into_iter().map(|(_, row)| row).collect();
    rest.sort();
    assert_eq!(rest, others);
    for gateway in &gateways {
        gateway.assert_well().await;
    }
}

/// Otherwise each repetition would append the rows with keys again.
#[tokio::test(flavor = "multi_thread")]
async fn no_row_is_stored_while_the_shard_of_the_number_cannot_be_used() {
    let gateways = routing(1).await;
    let gateway = &gateways[0];
    let damaged = vec![Bytes::from_static(b"damaged")];
    let damaged = gateway.store.put_if_absent(&layout::manifest(2), damaged).await;
    damaged.expect("an answer");
    let (mut stored, mut refused) = (BTreeSet::new(), 0);
    for client in 0..20 {
        let rows = [row_in(0, client), row_in(1, client)];
        let answer = count(gateway, &format!("client-{client}"), "1", &rows.join("\n")).await;
        match answer.status {
            StatusCode::OK => stored.extend(rows),
            StatusCode::SERVICE_UNAVAILABLE => refused += 1,
            _ => panic!("{answer:?}"),
        }
    }
    assert!(refused > 0 && !stored.is_empty(), "{refused} refused");
    let mut found = BTreeSet::new();
    for shard in 0..2 {
        found.extend(stored_in(gateway, shard).await);
    }
    assert_eq!(found, stored, "rows of refused requests are stored");
    gateway.assert_well().await;
}

/// A message that is divided is in memory twice for a while.
#[tokio::test(flavor = "multi_thread")]
async fn a_large_request_is_divided_within_the_memory_of_the_gateway() {
    let gateways = routing(1).await;
    let gateway = &gateways[0];
    let rows: Vec<String> = (0..30_000)
        .map(|number| format!("{{\"id\":{number},\"more\":\"{number:040}\"}}"))
        .collect();
    let body = rows.join("\n");
    let budget = gateway.producers.budget();
    let others = budget
        .reserve(budget.limit() - body.len() * 2)
        .await
        .expect("memory");
    let refused = post(gateway, &[], &body).await;
    assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS, "{refused:?}");
    drop(others);
    let answer = post(gateway, &[], &body).await;
    assert_eq!(told(&answer), (200, false, "{\"accepted\":30000}".to_owned()));
    let (keyed, rest) = check_shards(gateway).await;
    assert_eq!((keyed.len(), rest.len()), (30_000, 0));
    gateway.assert_well().await;
}

/// New shards get none of the rows, and a gateway in one of them still finds the others.
#[tokio::test(flavor = "multi_thread")]
async fn growth_changes_no_row_s_shard() {
    let gateways = routing(1).await;
    let rows = mixed(1);
    assert_eq!(
        post(&gateways[0], &[], &rows.join("\n")).await.status,
        StatusCode::OK
    );
    change(&gateways[0], |buffer| {
        buffer.grow(9, 7).expect("it grows").expect("larger")
    })
    .await;
    let late = beside(&gateways[0], in_shard(8)).await;
    assert_eq!(post(&late, &[], &rows.join("\n")).await.status, StatusCode::OK);
    for shard in 0..SHARDS {
        let keyed = stored_in(&late, shard).await;
        let times = keyed.iter().filter(|row| **row == rows[shard as usize]).count();
        assert_eq!(times, 2, "both are where a consumer compares them");
    }
    assert_eq!(stored_in(&late, 8).await, rows[3..]);
}

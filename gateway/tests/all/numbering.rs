//! Requests that clients number, over every protocol: a repetition is answered and appends nothing.

use crate::common::http::{Answer, JSON, LOGS, METRICS, PROTOBUF};
use crate::common::kafka::{Client, batch, numbered, values};
use crate::common::log::{messages, rows};
use crate::common::{PATIENCE, Pieces, Running, framed, logs, producer_config, start};
use hyper::StatusCode;
use millpond_gateway::Config;
use millpond_segment::Encoding;
use millpond_storage::unreliable::On;
use prost::Message as _;
use serde_json::{Value, json};
use tokio::time::timeout;

const SIGNUP: &str = "/v1/streams/events.signup";

pub(crate) async fn post(gateway: &Running, headers: &[(&str, &str)], row: &str) -> Answer {
    gateway
        .post(SIGNUP, JSON, headers, Pieces::sized(row.to_owned()))
        .await
}

pub(crate) async fn count(gateway: &Running, producer: &str, number: &str, row: &str) -> Answer {
    post(
        gateway,
        &[("millpond-producer", producer), ("millpond-number", number)],
        row,
    )
    .await
}

pub(crate) fn told(answer: &Answer) -> (u16, bool, String) {
    let is_repeated = answer.headers.contains_key("millpond-repeated");
    let content: Value = serde_json::from_slice(&answer.body).expect("JSON");
    let text = match &content["error"] {
        Value::String(error) => error.clone(),
        _ => content.to_string(),
    };
    (answer.status.as_u16(), is_repeated, text)
}

pub(crate) fn success(is_repeated: bool) -> (u16, bool, String) {
    (200, is_repeated, json!({"accepted": 1}).to_string())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_number_or_key_is_a_success_and_appends_nothing() {
    let gateway = start(producer_config(), Config::default()).await;
    assert_eq!(
        told(&count(&gateway, "a", "1", "{\"n\":1}").await),
        success(false)
    );
    assert_eq!(told(&count(&gateway, "a", "1", "{\"n\":1}").await), success(true));
    assert_eq!(
        told(&count(&gateway, "b", "1", "{\"n\":2}").await),
        success(false)
    );
    assert_eq!(
        told(&count(&gateway, "a", "2", "{\"n\":3}").await),
        success(false)
    );
    assert_eq!(told(&count(&gateway, "a", "1", "{\"n\":1}").await), success(true));
    let key = [("idempotency-key", "order-17")];
    assert_eq!(told(&post(&gateway, &key, "{\"n\":4}").await), success(false));
    assert_eq!(told(&post(&gateway, &key, "{\"n\":4}").await), success(true));
    let other = gateway
        .post(
            "/v1/streams/events.other",
            JSON,
            &key,
            Pieces::sized("{\"n\":5}".to_owned()),
        )
        .await;
    assert_eq!(told(&other), success(false), "keys belong to a stream");
    let expected = (1..=4).map(|n| format!("{{\"n\":{n}}}")).collect();
    assert_eq!(rows(&gateway, "events.signup").await, (expected, 4));
    let metrics = gateway.metrics();
    let repeated = "millpond_producer_client_requests_settled_total{outcome=\"repeated\"} 3\n";
    assert!(metrics.contains(repeated), "{metrics}");
    gateway.assert_well().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_number_that_cannot_be_is_refused_with_the_one_that_can() {
    let gateway = start(producer_config(), Config::default()).await;
    count(&gateway, "a", "1", "{\"n\":1}").await;
    let gap = count(&gateway, "a", "5", "{}").await;
    assert_eq!(
        (gap.status, gap.header("millpond-last-number")),
        (StatusCode::CONFLICT, "1")
    );
    assert!(told(&gap).2.ends_with("send 2"), "{gap:?}");
    let unknown = count(&gateway, "new", "2", "{}").await;
    assert_eq!(unknown.status, StatusCode::CONFLICT);
    assert!(
        told(&unknown).2.contains("begin again with 1 under a new name"),
        "{unknown:?}"
    );
    let reused = count(&gateway, "a", "1", "{\"other\":1}").await;
    assert_eq!(reused.status, StatusCode::UNPROCESSABLE_ENTITY);
    let half = post(&gateway, &[("millpond-producer", "a")], "{}").await;
    assert_eq!(
        told(&half),
        (400, false, "millpond-producer needs a millpond-number".to_owned())
    );
    // A rejected body uses no number.
    assert_eq!(
        count(&gateway, "a", "2", "{").await.status,
        StatusCode::BAD_REQUEST
    );
    // Nor does one without rows, which would be a success without a number.
    let empty = count(&gateway, "a", "2", "[]").await;
    assert_eq!(empty.status, StatusCode::BAD_REQUEST);
    assert!(
        told(&empty).2.contains("needs at least one JSON object"),
        "{empty:?}"
    );
    assert_eq!(post(&gateway, &[], "[]").await.status, StatusCode::OK);
    assert_eq!(
        told(&count(&gateway, "a", "2", "{\"n\":2}").await),
        success(false)
    );
    assert_eq!(rows(&gateway, "events.signup").await.1, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn otlp_requests_have_numbers_too_over_both_protocols_and_per_signal() {
    let gateway = start(producer_config(), Config::default()).await;
    let number = |number| [("millpond-producer", "agent"), ("millpond-number", number)];
    let post = async |path: &str, content_type: &str, number: &[(&str, &str)], body: Vec<u8>| {
        let answer = gateway
            .post(path, content_type, number, Pieces::sized(body))
            .await;
        (
            answer.status.as_u16(),
            answer.headers.contains_key("millpond-repeated"),
        )
    };
    assert_eq!(
        post("/v1/logs", JSON, &number("1"), LOGS.into()).await,
        (200, false)
    );
    assert_eq!(
        post("/v1/logs", JSON, &number("1"), LOGS.into()).await,
        (200, true)
    );
    assert_eq!(
        post("/v1/metrics", JSON, &number("1"), METRICS.into()).await,
        (200, false)
    );
    // A request without records has a number like any other.
    assert_eq!(
        post("/v1/logs", PROTOBUF, &number("2"), Vec::new()).await,
        (200, false)
    );
    let third = framed(false, &logs(4).encode_to_vec());
    for _ in 0..2 {
        let status = gateway.send(&number("3"), Pieces::sized(third.clone())).await;
        assert_eq!(status.code(), tonic::Code::Ok, "{status:?}");
    }
    let gap = gateway.send(&number("7"), Pieces::sized(third.clone())).await;
    assert_eq!(gap.code(), tonic::Code::FailedPrecondition, "{gap:?}");
    let (found, records) = messages(&gateway, Encoding::Otlp, "otlp.logs").await;
    assert_eq!((found.len(), records), (3, 5));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idempotent_kafka_producer_repeats_batches_without_a_duplicate() {
    let gateway = start(producer_config(), Config::default()).await;
    let mut client = Client::connect(gateway.kafka_address).await;
    let rows_of = |texts: &[&str]| batch(&values(texts));
    let first = numbered(rows_of(&["{\"n\":1}", "{\"n\":2}"]), 77, 0, 0);
    let second = numbered(rows_of(&["{\"n\":3}"]), 77, 0, 2);
    for (batch, error) in [
        (&first, 0),
        (&first, 0),
        (&second, 0),
        (&first, 0),
        (&second, 0),
        // Out of order: a number is missing, and a batch that is there in part.
        (&numbered(rows_of(&["{}"]), 77, 0, 9), 45),
        (&numbered(rows_of(&["{}", "{}"]), 77, 0, 2), 45),
        // The producer is not known.
        (&numbered(rows_of(&["{}"]), 78, 0, 5), 59),
        // A later epoch begins with 0 and ends the one before.
        (&numbered(rows_of(&["{\"n\":4}"]), 77, 1, 0), 0),
        (&numbered(rows_of(&["{}"]), 77, 0, 3), 47),
        // No epoch.
        (&numbered(rows_of(&["{}"]), 77, -1, 0), 87),
    ] {
        let outcome = client.produce("events.signup", batch).await;
        assert_eq!(outcome.error, error, "{outcome:?}");
    }
    // Each topic counts by itself.
    let elsewhere = client.produce("events.other", &first).await;
    assert_eq!(elsewhere.error, 0);
    let expected = ["{\"n\":1}\n{\"n\":2}", "{\"n\":3}", "{\"n\":4}"].map(str::to_owned);
    assert_eq!(rows(&gateway, "events.signup").await, (expected.into(), 4));
    gateway.assert_well().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_without_an_answer_learns_the_outcome_when_it_repeats_the_request() {
    let gateway = start(producer_config(), Config::default()).await;
    let row = || count(&gateway, "a", "1", "{\"n\":1}");
    let mut commit = gateway.controls.hold(On::Put, "manifest");
    // The first request gives up while its commit is on its way, and the second one waits with it.
    tokio::select! {
        answer = row() => panic!("{answer:?}"),
        () = commit.arrived() => {}
    }
    let release = async {
        let copies = || {
            gateway
                .metrics()
                .contains("settled_total{outcome=\"joined\"} 1\n")
        };
        while !copies() {
            tokio::task::yield_now().await;
        }
        commit.release();
    };
    let (again, ()) = timeout(PATIENCE, async { tokio::join!(row(), release) })
        .await
        .expect("an answer");
    assert_eq!(told(&again), success(true));
    assert_eq!(told(&row().await), success(true));
    assert_eq!(
        rows(&gateway, "events.signup").await,
        (vec!["{\"n\":1}".to_owned()], 1)
    );
}

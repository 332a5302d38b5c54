//! The load generator against a real gateway: its acknowledged records match the log.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use clap::Parser;
use millpond_load::{
    self as load, Compression, Credentials, Format, LoadArgs, LoadConfig, LoadError, Progress, Report,
};
use support::{PATIENCE, World, config};
use tokio_util::sync::CancellationToken;

const ID: &str = "millpond.load.id";

async fn run(config: LoadConfig) -> Report {
    let run = load::run(config, CancellationToken::new(), Progress::new());
    tokio::time::timeout(PATIENCE, run)
        .await
        .expect("an end")
        .expect("a report")
}

fn id(run: &str, number: u64) -> String {
    format!("{run}-{number:0width$}", width = load::ID_DIGITS)
}

fn ids(records: u64) -> Vec<String> {
    (0..records).map(|number| id("run", number)).collect()
}

/// The ids in the file of acknowledged ones.
fn acknowledged(file: &std::path::Path) -> BTreeSet<String> {
    let mut ids = BTreeSet::new();
    for line in std::fs::read_to_string(file).expect("the file").lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [run, first, count] = words[..] else {
            panic!("{line:?} is not a run and two numbers");
        };
        let first: u64 = first.parse().expect("a number");
        let count: u64 = count.parse().expect("a number");
        for number in first..first + count {
            assert!(ids.insert(id(run, number)), "{number} occurs twice");
        }
    }
    ids
}

#[tokio::test(flavor = "multi_thread")]
async fn several_endpoints_share_the_records() {
    let worlds = [World::start().await, World::start().await, World::start().await];
    let report = run(LoadConfig {
        records: Some(6_000),
        concurrency: 6,
        endpoints: worlds.iter().map(|world| world.address.to_string()).collect(),
        // The workers take turns, so that none is faster than another.
        rate: 60_000,
        ..config(worlds[0].address)
    })
    .await;
    assert_eq!((report.records_acknowledged, report.unacknowledged), (6_000, 0));
    let mut all = Vec::new();
    for world in &worlds {
        let here = world.log().await.ids(ID);
        assert!(!here.is_empty(), "{} got nothing", world.address);
        all.extend(here);
    }
    all.sort();
    assert_eq!(all, ids(6_000));
}

#[tokio::test(flavor = "multi_thread")]
async fn every_record_arrives_once_with_a_unique_id_from_any_worker() {
    let world = World::start().await;
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("acknowledged");
    let report = run(LoadConfig {
        records: Some(2_050),
        // Two connections.
        concurrency: 70,
        acknowledged_file: Some(file.clone()),
        ..config(world.address)
    })
    .await;
    assert_eq!((report.records_sent, report.records_acknowledged), (2_050, 2_050));
    assert_eq!(report.unacknowledged, 0);
    assert_eq!((report.requests, report.retries), (21, 0));
    assert!(report.errors.is_empty(), "{:?}", report.errors);
    let log = world.log().await;
    assert_eq!(log.ids(ID), ids(2_050));
    assert_eq!(report.raw_bytes, log.bytes);
    assert_eq!(acknowledged(&file), ids(2_050).into_iter().collect());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_that_is_retryable_is_retried_until_it_is_accepted() {
    let world = World::start().await;
    let all = world.hold_all_memory().await;
    let load = tokio::spawn(run(LoadConfig {
        records: Some(30),
        records_per_request: 10,
        ..config(world.address)
    }));
    world.refused(1).await;
    drop(all);
    let report = load.await.expect("no panic");
    assert_eq!((report.records_acknowledged, report.unacknowledged), (30, 0));
    assert!(report.retries >= 1, "{report:?}");
    assert!(report.errors["ResourceExhausted"] >= 1, "{report:?}");
    assert_eq!(world.log().await.ids(ID), ids(30));
}

#[tokio::test(flavor = "multi_thread")]
async fn abandoned_records_are_not_listed_as_acknowledged() {
    let world = World::start().await;
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("acknowledged");
    let all = world.hold_all_memory().await;
    let load = tokio::spawn(run(LoadConfig {
        records: Some(50),
        records_per_request: 10,
        concurrency: 1,
        retry_for: Duration::ZERO,
        acknowledged_file: Some(file.clone()),
        ..config(world.address)
    }));
    world.refused(1).await;
    drop(all);
    let report = load.await.expect("no panic");
    assert_eq!(report.retries, 0);
    assert!(report.unacknowledged >= 10, "{report:?}");
    assert_eq!(report.records_acknowledged + report.unacknowledged, 50);
    let acknowledged = acknowledged(&file);
    assert_eq!(acknowledged.len() as u64, report.records_acknowledged);
    let arrived = world.log().await.ids(ID);
    assert_eq!(acknowledged.into_iter().collect::<Vec<_>>(), arrived);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_that_is_not_retryable_is_not_retried() {
    let world = World::start().await;
    let report = run(LoadConfig {
        records: Some(2_000),
        // Longer than the gateway's limit.
        records_per_request: 1_000,
        ..config(world.address)
    })
    .await;
    assert_eq!((report.records_sent, report.records_acknowledged), (2_000, 0));
    assert_eq!((report.requests, report.retries), (2, 0));
    assert_eq!(report.errors, BTreeMap::from([("InvalidArgument".to_owned(), 2)]));
    assert!(world.log().await.records.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_not_there_is_an_error_in_the_report() {
    // Nobody listens at a port that is taken and no more than that.
    let taken = tokio::net::TcpSocket::new_v4().expect("a socket");
    taken.bind(([127, 0, 0, 1], 0).into()).expect("a free port");
    let address = taken.local_addr().expect("an address");
    let report = run(LoadConfig {
        records: Some(10),
        records_per_request: 10,
        retry_for: Duration::ZERO,
        ..config(address)
    })
    .await;
    assert_eq!((report.records_sent, report.unacknowledged), (10, 10));
    let errors: Vec<&String> = report.errors.keys().collect();
    assert!(
        matches!(&errors[..], [one] if one.starts_with("transport: ")),
        "{errors:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rate_and_a_duration_bound_what_is_sent() {
    let world = World::start().await;
    let report = run(LoadConfig {
        rate: 1_000,
        duration: Some(Duration::from_millis(500)),
        ..config(world.address)
    })
    .await;
    // Due at 0, 100, … 400 ms. A busy machine sends fewer, never more.
    assert!((1..=5).contains(&report.requests), "{report:?}");
    assert_eq!(report.records_acknowledged, report.records_sent);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_load_without_an_end_ends_when_it_is_cancelled() {
    let world = World::start().await;
    let (cancel, progress) = (CancellationToken::new(), Progress::new());
    let load = tokio::spawn(load::run(config(world.address), cancel.clone(), progress.clone()));
    let report = tokio::time::timeout(PATIENCE, async {
        while progress.acknowledged() == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        cancel.cancel();
        load.await.expect("no panic").expect("a report")
    });
    let report = report.await.expect("an end");
    assert_eq!(report.unacknowledged, 0, "{report:?}");
    assert_eq!(world.log().await.ids(ID), ids(report.records_acknowledged));
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_are_the_lines_of_a_folder_with_the_file_that_they_are_from() {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, text) in [
        ("a.log", "first INFO line\n\nsecond WARN line\n"),
        ("b.log", "ERROR third line, not ended"),
        ("README.md", "not a log\n"),
    ] {
        std::fs::write(folder.path().join(name), text).expect("a file");
    }
    let world = World::start().await;
    let report = run(LoadConfig {
        records: Some(200),
        bodies: Some(folder.path().to_owned()),
        ..config(world.address)
    })
    .await;
    assert!(report.bodies.starts_with("3 lines of 2 files in "), "{report:?}");
    let log = world.log().await;
    let seen: BTreeSet<(&str, &str, &str)> = log
        .records
        .iter()
        .map(|record| {
            let file = record.attribute("log.file.name");
            (file, record.body.as_str(), record.severity.as_str())
        })
        .collect();
    let expected = BTreeSet::from([
        ("a.log", "first INFO line", "INFO"),
        ("a.log", "second WARN line", "WARN"),
        ("b.log", "ERROR third line, not ended", "ERROR"),
    ]);
    assert_eq!(seen, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_seed_gives_the_same_bodies_again_and_another_seed_others() {
    let bodies = async |seed| {
        let world = World::start().await;
        run(LoadConfig {
            records: Some(100),
            seed,
            ..config(world.address)
        })
        .await;
        let mut records = world.log().await.records;
        records.sort_by_key(|record| record.attribute(ID).to_owned());
        records.into_iter().map(|record| record.body).collect::<Vec<_>>()
    };
    let one = bodies(1).await;
    assert_eq!(one, bodies(1).await);
    assert_ne!(one, bodies(2).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn compressed_requests_and_another_attribute_arrive_as_well() {
    for compression in [Compression::Gzip, Compression::Zstd] {
        let world = World::start().await;
        let report = run(LoadConfig {
            records: Some(200),
            unique_attribute: "test.id".to_owned(),
            compression,
            ..config(world.address)
        })
        .await;
        assert_eq!(report.records_acknowledged, 200, "{report:?}");
        let log = world.log().await;
        assert_eq!(log.ids("test.id"), ids(200));
        assert_eq!(report.raw_bytes, log.bytes, "raw is before compression");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_report_is_one_json_object_with_every_figure() {
    let world = World::start().await;
    let report = run(LoadConfig {
        records: Some(20),
        records_per_request: 10,
        ..config(world.address)
    })
    .await;
    let json = serde_json::to_value(&report).expect("json");
    assert_eq!(json["run"], "run");
    assert_eq!(json["records_sent"], 20);
    assert_eq!(json["records_acknowledged"], 20);
    assert_eq!(json["unacknowledged"], 0);
    assert_eq!(json["requests"], 2);
    assert_eq!(json["retries"], 0);
    assert_eq!(json["raw_bytes"], world.log().await.bytes);
    assert_eq!(json["errors"], serde_json::json!({}));
    for figure in ["p50", "p90", "p99", "p999", "max"] {
        let ms = json["latency_ms"][figure].as_f64();
        assert!(ms.is_some_and(|ms| ms > 0.0), "{json}");
    }
    let text = report.to_string();
    assert!(text.contains("20 sent, 20 acknowledged, 0 not"), "{text}");
}

#[tokio::test]
async fn a_folder_without_lines_is_an_error_that_names_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = LoadConfig {
        bodies: Some(folder.path().to_owned()),
        ..config("127.0.0.1:9".parse().expect("an address"))
    };
    let error = load::run(config, CancellationToken::new(), Progress::new())
        .await
        .expect_err("no lines");
    let name = folder.path().display().to_string();
    assert!(error.to_string().contains(&name), "{error}");
}

#[derive(Parser)]
struct Flags {
    #[command(flatten)]
    load: LoadArgs,
}

fn flags(flags: &[&str]) -> LoadArgs {
    let flags = Flags::try_parse_from([&["load"], flags].concat());
    flags.expect("flags that parse").load
}

#[test]
fn without_an_end_a_load_takes_ten_seconds() {
    let config = flags(&[]).config().expect("good flags");
    assert_eq!(config.duration, Some(Duration::from_secs(10)));
    let config = flags(&["--records", "5"]).config().expect("good flags");
    assert_eq!((config.duration, config.records), (None, Some(5)));
    let config = flags(&["--duration", "5m", "--retry-for", "0s"])
        .config()
        .expect("good flags");
    assert_eq!(config.duration, Some(Duration::from_secs(300)));
    assert_eq!(config.retry_for, Duration::ZERO);
}

#[test]
fn a_flag_that_makes_no_sense_is_named() {
    for (wrong, named) in [
        (["--concurrency", "0"], "concurrency"),
        (["--records-per-request", "0"], "records-per-request"),
        (["--unique-attribute", ""], "unique-attribute"),
        (["--run", "a b"], "run"),
        (["--endpoint", "https://there:4317"], "endpoint"),
        (["--endpoint", "here:4317,https://there:4317"], "endpoint"),
        (["--format", "json"], "format"),
        (["--stream", "events.x"], "stream"),
        (["--endpoint", &["here:4317"; 257].join(",")], "concurrency"),
    ] {
        match flags(&wrong).config() {
            Err(LoadError::Setting { setting, .. }) => assert_eq!(setting, named),
            other => panic!("{wrong:?} gave {other:?}"),
        }
    }
}

#[test]
fn a_format_has_an_address_and_an_id_for_itself() {
    let events = |format| flags(&["--stream", "events.x", "--format", format]).config();
    let otlp = flags(&[]).config().expect("good flags");
    assert_eq!(
        (&otlp.format, otlp.unique_attribute.as_str()),
        (&Format::Otlp, "millpond.load.id")
    );
    assert_eq!(otlp.endpoints, ["127.0.0.1:4317"]);
    let json = events("json").expect("good flags");
    let stream = "events.x".to_owned();
    assert_eq!(json.format, Format::Json { stream });
    assert_eq!(
        (json.endpoints, json.unique_attribute.as_str()),
        (vec!["127.0.0.1:4318".to_owned()], "event_id")
    );
}

#[tokio::test]
async fn credentials_that_cannot_be_used_are_named_and_the_token_is_never_shown() {
    let config = |credentials| LoadConfig {
        credentials,
        ..config("127.0.0.1:9".parse().expect("an address"))
    };
    let missing = config(Credentials {
        ca: Some("/nowhere/ca.pem".into()),
        ..Credentials::default()
    });
    let secret = config(Credentials {
        token: Some("secret\nsecret".to_owned()),
        ..Credentials::default()
    });
    assert!(!format!("{secret:?}").contains("secret\\n"));
    for (config, named) in [(missing, "/nowhere/ca.pem"), (secret, "token")] {
        let error = load::run(config, CancellationToken::new(), Progress::new())
            .await
            .expect_err("no load");
        let message = error.to_string();
        assert!(
            message.contains(named) && !message.contains("secret"),
            "{message}"
        );
    }
}

//! The official, unmodified `clickhouse` crate against the program, as in Millpond's sink.

use crate::support::Server;
use clickhouse::{Client, Compression, Row};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Row, Serialize, Deserialize)]
struct Event {
    id: u64,
    name: String,
    tags: Vec<(String, String)>,
    score: Option<f64>,
}

fn events(ids: std::ops::Range<u64>) -> Vec<Event> {
    ids.map(|id| Event {
        id,
        name: format!("event\n\n{id}\0"),
        tags: vec![("k".to_owned(), id.to_string())],
        score: (id % 2 == 0).then_some(f64::from(u32::try_from(id).unwrap()) / 4.0),
    })
    .collect()
}

async fn table(client: &Client) {
    client
        .query(
            "CREATE OR REPLACE TABLE events (id UInt64, name String, tags Map(LowCardinality(String), String),
             score Nullable(Float64)) ENGINE = MergeTree ORDER BY id
             SETTINGS non_replicated_deduplication_window = 100",
        )
        .execute()
        .await
        .unwrap();
}

fn clients(server: &Server) -> [Client; 2] {
    [
        server.client().with_compression(Compression::None),
        server.client().with_compression(Compression::Lz4),
    ]
}

/// A Native block of one UInt64 column `id`.
fn native(ids: std::ops::Range<u64>) -> Vec<u8> {
    let mut block = vec![1];
    let mut rows = ids.end - ids.start;
    while rows >= 0x80 {
        block.push(u8::try_from(rows & 0x7f).unwrap() | 0x80);
        rows >>= 7;
    }
    block.push(u8::try_from(rows).unwrap());
    block.extend_from_slice(b"\x02id\x06UInt64");
    block.extend(ids.flat_map(u64::to_le_bytes));
    block
}

/// The settings that Millpond's sink pins in every request.
const PINNED: [(&str, &str); 8] = [
    ("async_insert", "0"),
    ("max_insert_block_size", "100000"),
    ("min_insert_block_size_rows", "0"),
    ("min_insert_block_size_bytes", "0"),
    ("max_insert_threads", "1"),
    ("insert_deduplicate", "1"),
    ("deduplicate_blocks_in_dependent_materialized_views", "1"),
    ("wait_end_of_query", "1"),
];

#[tokio::test]
async fn typed_rows_go_in_and_come_out() {
    let data = tempfile::tempdir().unwrap();
    let server = Server::start(data.path(), &[]);
    for client in clients(&server) {
        table(&client).await;
        let written = events(0..5000);
        let mut insert = client.insert::<Event>("events").await.unwrap();
        for event in &written {
            insert.write(event).await.unwrap();
        }
        insert.end().await.unwrap();
        let sql = "SELECT ?fields FROM events WHERE id < ? ORDER BY id";
        let read = client.query(sql).bind(4000).fetch_all::<Event>().await.unwrap();
        assert_eq!(read, written[..4000]);
    }
}

#[tokio::test]
async fn parameters_of_a_query_arrive_as_a_form() {
    let data = tempfile::tempdir().unwrap();
    let server = Server::start(data.path(), &[]);
    let text = "it's \\ \t \"quoted\"; -- `?";
    let query = server
        .client()
        .query("SELECT {text: String} || toString({number: UInt8})");
    let read = query
        .param("text", text)
        .param("number", 7)
        .fetch_one::<String>()
        .await
        .unwrap();
    assert_eq!(read, format!("{text}7"));
}

#[tokio::test]
async fn a_native_block_becomes_one_part_and_its_token_counts() {
    let data = tempfile::tempdir().unwrap();
    let server = Server::start(data.path(), &[]);
    for client in clients(&server) {
        client
            .query(
                "CREATE OR REPLACE TABLE ids (id UInt64) ENGINE = MergeTree ORDER BY id
                 SETTINGS non_replicated_deduplication_window = 100",
            )
            .execute()
            .await
            .unwrap();
        for (token, ids) in [
            ("a", 0..150_000),
            ("a", 0..150_000),
            ("b", 150_000..150_010),
            ("a", 7..9),
        ] {
            let mut insert = client.insert_formatted_with("INSERT INTO ids FORMAT Native");
            for (name, value) in PINNED {
                insert = insert.with_setting(name, value);
            }
            let mut insert = insert.with_setting("insert_deduplication_token", token);
            insert.send(native(ids).into()).await.unwrap();
            insert.end().await.unwrap();
        }
        let parts = client
            .query("SELECT rows FROM system.parts WHERE table = 'ids' AND active ORDER BY min_block_number")
            .fetch_all::<u64>()
            .await
            .unwrap();
        assert_eq!(parts, [150_000, 10]);
        let exact = client
            .query("SELECT uniqExact(id) FROM ids")
            .fetch_one::<u64>()
            .await
            .unwrap();
        assert_eq!(exact, 150_010);
    }
}

#[tokio::test]
async fn every_block_of_an_insert_has_its_own_identity_with_the_pinned_settings() {
    let data = tempfile::tempdir().unwrap();
    let server = Server::start(data.path(), &[]);
    let client = server.client();
    table(&client).await;
    let statement = "CREATE TABLE ids (id UInt64) ENGINE = MergeTree ORDER BY id";
    client.query(statement).execute().await.unwrap();
    let mut insert = client.insert_formatted_with("INSERT INTO ids FORMAT Native");
    for (name, value) in PINNED {
        insert = insert.with_setting(name, value);
    }
    insert
        .send([native(0..10), native(10..30)].concat().into())
        .await
        .unwrap();
    insert.end().await.unwrap();
    let parts = client.query("SELECT rows FROM system.parts WHERE table = 'ids' AND level = 0 ORDER BY name");
    assert_eq!(parts.fetch_all::<u64>().await.unwrap(), [10, 20]);
}

#[tokio::test]
async fn a_large_result_streams_and_its_late_error_is_noticed() {
    let data = tempfile::tempdir().unwrap();
    let server = Server::start(data.path(), &[]);
    for client in clients(&server) {
        let mut rows = client
            .query("SELECT number FROM numbers(3000000)")
            .fetch::<u64>()
            .unwrap();
        let mut expected = 0;
        while let Some(number) = rows.next().await.unwrap() {
            assert_eq!(number, expected);
            expected += 1;
        }
        assert_eq!(expected, 3_000_000);

        let sql = "SELECT number + throwIf(number = 2000000, 'too far') FROM numbers(3000000)";
        let mut rows = client.query(sql).fetch::<u64>().unwrap();
        let error = loop {
            match rows.next().await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("a partial result counted as complete"),
                Err(error) => break error.to_string(),
            }
        };
        assert!(error.contains("too far"), "{error}");
    }
}

#[tokio::test]
async fn errors_name_their_cause() {
    let data = tempfile::tempdir().unwrap();
    let server = Server::start(data.path(), &[]);
    for client in clients(&server) {
        let missing = client
            .query("SELECT * FROM nowhere")
            .execute()
            .await
            .unwrap_err()
            .to_string();
        assert!(
            missing.contains("UNKNOWN_TABLE") && missing.contains("nowhere"),
            "{missing}"
        );
        let mut insert = client.insert_formatted_with("INSERT INTO nowhere FORMAT Native");
        let sent = insert.send(native(0..10).into()).await;
        let error = match sent {
            Ok(()) => insert.end().await.unwrap_err(),
            Err(error) => error,
        };
        assert!(error.to_string().contains("UNKNOWN_TABLE"), "{error}");
    }
}

#[tokio::test]
async fn inserts_and_queries_run_in_parallel() {
    let data = tempfile::tempdir().unwrap();
    let server = Server::start(data.path(), &[]);
    let client = server.client();
    table(&client).await;
    let tasks: Vec<_> = (0..12_u64)
        .map(|task| {
            let client = client.clone();
            tokio::spawn(async move {
                for round in 0..5 {
                    let start = (task * 5 + round) * 100;
                    let mut insert = client.insert::<Event>("events").await.unwrap();
                    for event in &events(start..start + 100) {
                        insert.write(event).await.unwrap();
                    }
                    insert.end().await.unwrap();
                    let sql = "SELECT count() FROM events WHERE id >= ? AND id < ?";
                    let mine = client
                        .query(sql)
                        .bind(start)
                        .bind(start + 100)
                        .fetch_one::<u64>()
                        .await
                        .unwrap();
                    assert_eq!(mine, 100);
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let all = client
        .query("SELECT count(), uniqExact(id) FROM events")
        .fetch_one::<(u64, u64)>()
        .await
        .unwrap();
    assert_eq!(all, (6000, 6000));
}

//! A chunk in doubt, when the table has forgotten its token.

use crate::support::{DAY, NEW_YEAR, Proxy, Server, at, batch, chunk, open, write, write_again};
use millpond_clickhouse::{ClickHouse, Columns, Config};
use millpond_consumer::{Found, SinkError};
use std::sync::Arc;

const BY_DAY: &str = "SELECT toDate(Timestamp), count(), uniqExact(Body) FROM otel.otel_logs \
                      WHERE _millpond_sequence = 1 GROUP BY 1 ORDER BY 1";

/// Three days, two rows each.
fn times() -> impl Iterator<Item = u64> {
    (0..6).map(|row| NEW_YEAR + row % 3 * DAY)
}

const WHOLE: &str = "2024-01-01\t2\t2\n2024-01-02\t2\t2\n2024-01-03\t2\t2";

/// A sink whose table has room for the tokens of one partition.
async fn forgetful(server: &Server) -> Arc<ClickHouse> {
    server.open().await;
    server
        .run("ALTER TABLE otel.otel_logs MODIFY SETTING non_replicated_deduplication_window = 1")
        .await;
    server.open().await
}

async fn forget(sink: &Arc<ClickHouse>) {
    for low in 100..105 {
        let other = batch(low, &[at(times())]);
        write(sink, &other.id, &chunk(sink, &other)).await.unwrap();
    }
}

#[tokio::test]
async fn a_chunk_that_is_there_is_not_sent_again() {
    let server = Server::start();
    let sink = forgetful(&server).await;
    let batch = batch(1, &[at(times())]);
    let chunk = chunk(&sink, &batch);
    write(&sink, &batch.id, &chunk).await.unwrap();
    forget(&sink).await;
    let found = write_again(&sink, &batch.id, &chunk).await.unwrap();
    assert_eq!((found, server.ask(BY_DAY).await.as_str()), (Found::All, WHOLE));
    // The table has really forgotten: with the token alone, the rows would be there twice.
    write(&sink, &batch.id, &chunk).await.unwrap();
    assert_ne!(server.ask(BY_DAY).await, WHOLE);
}

#[tokio::test]
async fn a_chunk_that_is_not_there_is_sent() {
    let server = Server::start();
    let sink = forgetful(&server).await;
    let batch = batch(1, &[at(times())]);
    let found = write_again(&sink, &batch.id, &chunk(&sink, &batch))
        .await
        .unwrap();
    assert_eq!(
        (found, server.ask(BY_DAY).await.as_str()),
        (Found::Nothing, WHOLE)
    );
}

#[tokio::test]
async fn only_the_partitions_that_the_table_lacks_are_sent() {
    let server = Server::start();
    let sink = forgetful(&server).await;
    let batch = batch(1, &[at(times())]);
    let chunk = chunk(&sink, &batch);
    write(&sink, &batch.id, &chunk).await.unwrap();
    forget(&sink).await;
    server
        .run("ALTER TABLE otel.otel_logs DROP PARTITION ID '20240102'")
        .await;
    let found = write_again(&sink, &batch.id, &chunk).await.unwrap();
    assert_eq!((found, server.ask(BY_DAY).await.as_str()), (Found::Some, WHOLE));
    // Those rows are unchanged in every column.
    let odd = "SELECT count() FROM otel.otel_logs WHERE _millpond_sequence = 1 AND (Body != LogAttributes['number'] \
               OR ServiceName != 'shop' OR ResourceAttributes != map('service.name', 'shop') \
               OR toString(_millpond_record) != Body OR toUnixTimestamp64Micro(_millpond_received_at) != 1700000000000000)";
    assert_eq!(server.ask(odd).await, "0");
}

/// The table cannot tell a deleted row from one that never arrived.
#[tokio::test]
async fn a_row_that_somebody_has_deleted_comes_back() {
    let server = Server::start();
    let sink = forgetful(&server).await;
    let batch = batch(1, &[at(times())]);
    let chunk = chunk(&sink, &batch);
    write(&sink, &batch.id, &chunk).await.unwrap();
    forget(&sink).await;
    server
        .run("ALTER TABLE otel.otel_logs DELETE WHERE _millpond_sequence = 1 AND Body = '4' SETTINGS mutations_sync = 2")
        .await;
    write_again(&sink, &batch.id, &chunk).await.unwrap();
    assert_eq!(server.ask(BY_DAY).await, WHOLE);
}

#[tokio::test]
async fn an_answer_that_is_lost_costs_nothing() {
    let server = Server::start();
    forgetful(&server).await;
    let proxy = Proxy::start(&server).await;
    let config = Config {
        urls: vec![proxy.url.clone()],
        ..server.config()
    };
    let sink = open(config).await;
    let batch = batch(1, &[at(times())]);
    let chunk = chunk(&sink, &batch);
    *proxy.cut.lock().unwrap() = true;
    let error = write(&sink, &batch.id, &chunk).await.unwrap_err();
    assert!(matches!(error, SinkError::Transient(_)), "{error}");
    *proxy.cut.lock().unwrap() = false;
    forget(&sink).await;
    write_again(&sink, &batch.id, &chunk).await.unwrap();
    assert_eq!(server.ask(BY_DAY).await, WHOLE);
}

#[tokio::test]
async fn without_our_columns_the_token_must_do() {
    let server = Server::start();
    let config = Config {
        columns: Columns::None,
        ..server.config()
    };
    let sink = open(config).await;
    let batch = batch(1, &[at(times())]);
    let chunk = chunk(&sink, &batch);
    write(&sink, &batch.id, &chunk).await.unwrap();
    write_again(&sink, &batch.id, &chunk).await.unwrap();
    assert_eq!(server.ask("SELECT count() FROM otel.otel_logs").await, "6");
}

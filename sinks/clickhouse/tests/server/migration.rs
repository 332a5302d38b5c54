//! A table of schema version 1.

use crate::support::{NEW_YEAR, Server, at, batch, chunk, open, write_again};
use millpond_clickhouse::{ClickHouse, Config, Signal, tables};
use millpond_consumer::{Found, Presence, Sink as _, SinkError};

#[tokio::test]
async fn an_old_table_fits_after_the_statements_of_its_fault() {
    let server = Server::start();
    server.open().await;
    let made = server.ask("SHOW CREATE TABLE otel.otel_logs").await;
    server.run("DROP TABLE otel.otel_logs").await;
    let old = made
        .replace("_millpond_sequence_range", "_millpond_batch_range")
        .replace("_millpond_sequence", "_millpond_batch")
        .replace("_millpond_record", "_millpond_chunk");
    server.run(&old).await;
    let config = Config {
        signals: vec![Signal::Logs],
        ..server.config()
    };
    let batch = batch(7, &[at([NEW_YEAR, NEW_YEAR])]);
    let source = batch.id.source();
    server
        .run(&format!(
            "INSERT INTO otel.otel_logs (Timestamp, Body, _millpond_source, _millpond_batch, _millpond_chunk) \
             SELECT toDateTime64('2024-01-01 00:00:00', 9, 'UTC'), 'old', '{source}', 7, number FROM numbers(2)"
        ))
        .await;
    let error = ClickHouse::open(config.clone()).await.unwrap_err();
    assert!(matches!(error, SinkError::Schema(_)), "{error}");
    assert!(
        error
            .to_string()
            .contains("table `otel`.`otel_logs` has the columns of an earlier version of Millpond"),
        "{error}"
    );
    let migrated = tables::migrate(config.clone(), false).await.unwrap();
    assert_eq!(migrated.left, []);

    let sink = open(config).await;
    assert!(
        sink.has_rows_without_identity(&source, "otlp.logs")
            .await
            .unwrap()
    );
    let chunk = chunk(&sink, &batch);
    let presence = sink.presence(&source, &chunk).await.unwrap();
    assert_eq!(
        presence,
        Presence::Lacks {
            rows: vec![0, 1],
            certain: true
        }
    );
    for expected in [Found::Nothing, Found::All] {
        assert_eq!(write_again(&sink, &batch.id, &chunk).await.unwrap(), expected);
    }
    server.run("OPTIMIZE TABLE otel.otel_logs FINAL").await;
    let rows =
        "SELECT _millpond_sequence, _millpond_record, count() FROM otel.otel_logs GROUP BY ALL ORDER BY ALL";
    assert_eq!(
        server.ask(rows).await,
        "7\t0\t1\n7\t1\t1\n18446744073709551615\t0\t2"
    );
}

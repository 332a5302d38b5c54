//! Parts of segments that the store does not return in time.

use crate::support::{Log, Table, config, start};
use millpond_storage::Store;
use millpond_storage::unreliable::{Fault, Faults, On};
use std::time::Duration;
use tokio::time::Instant;

/// The store's request timeout is 30 s.
#[tokio::test(start_paused = true)]
async fn a_get_without_an_answer_delays_its_rows_by_little() {
    let store = Store::memory();
    let mut log = Log::new(store.clone()).await;
    let (through, controls) = store.behind(Faults::default());
    let table = Table::open("table");
    let consumer = start(&through, config("a"), &table);
    for rows in 1..=40 {
        log.commit(&[1]).await;
        table.has(rows).await;
    }
    let next = ulid::Ulid::from_parts(log.now_ms, 41).to_string();
    controls.once(On::Get, &next, Fault::Hangs);
    log.commit(&[1]).await;
    let began = Instant::now();
    table.has(41).await;
    assert_eq!(controls.unused(), 0, "the GET was not lost");
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    consumer.stop().await.unwrap();
    assert_eq!(table.rows(), log.rows());
}

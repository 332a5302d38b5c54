//! A cursor has the programs of the sink of its newest owner, so that a repair with others is noticed (`repair.rs`,
//! `dead_letters.rs`).

use crate::support::{Log, OTHER, STREAM, Table, acknowledged, config, start};
use millpond_consumer::{ProgramHash, Programs};
use millpond_manifest::Cursor;
use millpond_storage::Store;
use std::sync::Arc;

/// Consumes one more segment and stops. Returns the programs in the cursor.
async fn consume(log: &mut Log, table: &Arc<Table>) -> Option<Programs> {
    log.commit(&[1]).await;
    let consumer = start(&log.store, config("a"), table);
    let end = log.manifest().await.state.next_sequence;
    acknowledged(log, end).await;
    consumer.stop().await.unwrap();
    log.cursor("default").await.unwrap().programs
}

fn programs<const N: usize>(of: [(&str, u8); N]) -> Option<Programs> {
    let of = of.map(|(stream, program)| (stream.to_owned(), ProgramHash([program; 32])));
    Some(Programs::from(of))
}

#[tokio::test]
async fn an_owner_enters_its_programs_at_its_opening() {
    let mut log = Log::new(Store::memory()).await;
    let table = Table::open("table");
    assert_eq!(consume(&mut log, &table).await, programs([]));
    table.program(STREAM, Some(1));
    table.program(OTHER, Some(1));
    assert_eq!(
        consume(&mut log, &table).await,
        programs([(STREAM, 1), (OTHER, 1)])
    );
    table.program(STREAM, Some(2));
    table.program(OTHER, None);
    assert_eq!(consume(&mut log, &table).await, programs([(STREAM, 2)]));
    table.program(STREAM, None);
    assert_eq!(consume(&mut log, &table).await, programs([]));
    // An older program erases them.
    log.change_cursor("default", |cursor| Cursor {
        programs: None,
        ..cursor.clone()
    })
    .await;
    assert_eq!(consume(&mut log, &table).await, programs([]));
    assert_eq!(table.rows(), log.rows());
}

//! The lists by which the processes of a consumer divide the shards.

use super::Report;
use millpond_manifest::cas::{self, ReadError};
use millpond_manifest::{Buffer, FormatError, Members, layout};
use millpond_storage::{ErrorKind, Store};

/// Finds lists that keep the processes of a consumer from dividing the shards.
pub(super) async fn look(
    store: &Store,
    buffer: &Buffer,
    only: Option<&str>,
    report: &mut Report,
) -> anyhow::Result<()> {
    if buffer.shards < 2 {
        return Ok(());
    }
    for found in store.list(&layout::consumers(0)).await? {
        let consumer = layout::consumer_of_members(&found.key);
        let Some(consumer) = consumer.filter(|name| only.is_none_or(|only| only == *name)) else {
            continue;
        };
        let key = &found.key;
        match cas::read::<Members>(store, key).await {
            Ok(Some(list)) if list.state.buffer_id != buffer.id => report.warning(
                format!("{key} belongs to another buffer, {}", list.state.buffer_id),
                "delete it: until then the consumer's processes do not divide the shards evenly",
            ),
            Ok(Some(list)) => report.ok(format!(
                "consumer {consumer}: processes that divide the shards, with those that died a moment ago: {}",
                list.state.beats.len()
            )),
            Ok(None) => {}
            // The role of a consumer may read its own list alone.
            Err(ReadError::Store(error)) if error.kind() == ErrorKind::Denied => {}
            Err(ReadError::Format {
                wrong: newer @ FormatError::Version { .. },
                ..
            }) => report.warning(
                format!("{key}: {newer}"),
                "if no process of a newer millpond runs, delete it: until then the older ones do not divide the shards evenly",
            ),
            Err(ReadError::Format { wrong, .. }) => report.warning(
                format!("{key}: {wrong}"),
                "the consumer's processes replace it within a lease; if none runs, delete it",
            ),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_list_that_divides_nothing_is_reported() {
        let store = Store::memory();
        let buffer = Buffer::new(uuid::Uuid::from_u128(42), 2);
        let good = cas::Object::encode(&Members::new(buffer.id).beat("one", []).beat("two", [])).to_vec();
        let mut newer = good.clone();
        newer[4] += 1;
        let foreign = cas::Object::encode(&Members::new(uuid::Uuid::nil())).to_vec();
        for (consumer, bytes) in [
            ("a-good", good),
            ("b-newer", newer),
            ("c-foreign", foreign),
            ("d-damaged", b"damaged".to_vec()),
        ] {
            let key = layout::members(consumer);
            store.put_if_absent(&key, vec![bytes.into()]).await.unwrap();
        }
        let mut report = Report::default();
        look(&store, &buffer, None, &mut report).await.unwrap();
        let found: Vec<(&str, bool)> = report
            .0
            .iter()
            .map(|finding| (&*finding.what, finding.todo.is_empty()))
            .collect();
        let [good, newer, foreign, damaged] = found[..] else {
            panic!("{found:?}")
        };
        assert!(good.0.ends_with("moment ago: 2") && good.1, "{good:?}");
        assert!(newer.0.contains("format version 2") && !newer.1, "{newer:?}");
        assert!(foreign.0.contains("another buffer") && !foreign.1, "{foreign:?}");
        assert!(damaged.0.contains("7 bytes long") && !damaged.1, "{damaged:?}");

        for (buffer, only) in [(Buffer::new(buffer.id, 1), None), (buffer, Some("e-unknown"))] {
            let mut report = Report::default();
            look(&store, &buffer, only, &mut report).await.unwrap();
            assert!(report.0.is_empty(), "{report:?}");
        }
    }
}

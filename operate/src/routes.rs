//! `millpond buffer route` and `unroute`: streams whose rows go to the shard of their key. They change the object `buffer` alone.

use anyhow::bail;
use millpond_manifest::cas::{self, Swap};
use millpond_manifest::{Buffer, Route, Routes, layout};
use millpond_runtime::{Environment as _, SystemEnvironment};
use millpond_storage::Store;
use std::sync::Arc;

use crate::growth::{SWAPS_MAX, backoff, read, unconfirmed};

/// A stream whose rows are routed.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct RoutedStream {
    /// The stream.
    pub stream: String,
    /// JSON paths.
    pub key: Vec<String>,
    /// Its rows go to this number of shards, from shard 0 on.
    pub shards: u32,
    /// It was not routed before.
    pub is_new: bool,
}

/// The streams that the buffer routes.
///
/// # Errors
/// There is no buffer, or the store fails.
pub async fn routes(store: &Store) -> anyhow::Result<Vec<RoutedStream>> {
    let routed = read(store).await?.state.routed.into_iter();
    let routed = routed.map(|(stream, route)| RoutedStream {
        stream: stream.to_string(),
        key: route.key.clone(),
        shards: route.shards,
        is_new: false,
    });
    Ok(routed.collect())
}

/// Routes streams by these keys. `shards`: over this number of shards instead of all. A stream that is routed already keeps its number.
///
/// # Errors
/// There is no buffer, a stream is routed in another way, or the store fails.
pub async fn route(
    store: &Store,
    keys: &[(String, Vec<String>)],
    shards: Option<u32>,
) -> anyhow::Result<Vec<RoutedStream>> {
    let mut before = None;
    let next = |buffer: &Buffer, nonce| {
        let before = before.get_or_insert_with(|| buffer.routed.clone());
        let wanted = wanted(buffer, keys, shards);
        let next = buffer.route(&wanted, nonce)?;
        let routed = wanted.iter().map(|(stream, route)| RoutedStream {
            stream: stream.to_string(),
            key: route.key.clone(),
            shards: route.shards,
            is_new: !before.contains_key(stream),
        });
        Ok((next, routed.collect()))
    };
    change(store, next).await
}

fn wanted(buffer: &Buffer, keys: &[(String, Vec<String>)], shards: Option<u32>) -> Routes {
    let keys = keys.iter();
    let routes = keys.map(|(stream, key)| {
        let is = buffer.routed.get(&**stream).map(|route| route.shards);
        let route = Route {
            key: key.clone(),
            shards: shards.or(is).unwrap_or(buffer.shards),
        };
        (Arc::from(&**stream), Arc::new(route))
    });
    routes.collect()
}

/// Ends the routes of streams. Returns those that had one.
///
/// # Errors
/// There is no buffer, or the store fails.
pub async fn unroute(store: &Store, streams: &[String]) -> anyhow::Result<Vec<String>> {
    let mut before = None;
    let next = |buffer: &Buffer, nonce| {
        let before = before.get_or_insert_with(|| buffer.routed.clone());
        let ended = streams.iter();
        let ended = ended.filter(|stream| before.contains_key(&***stream)).cloned();
        Ok((buffer.unroute(streams, nonce), ended.collect()))
    };
    change(store, next).await
}

/// Swaps the buffer until it is as wanted.
async fn change<T>(
    store: &Store,
    mut next: impl FnMut(&Buffer, u64) -> anyhow::Result<(Option<Buffer>, T)>,
) -> anyhow::Result<T> {
    let (mut unknown, mut backoff) = (None, backoff());
    for _ in 0..SWAPS_MAX {
        let found = read(store).await?;
        let (next, outcome) = next(&found.state, SystemEnvironment.random())?;
        let Some(next) = next else {
            return Ok(outcome);
        };
        match cas::swap(store, layout::BUFFER, Some(&found.version), next).await {
            Swap::Committed(_) => return Ok(outcome),
            Swap::Mismatch => {}
            // The next read shows it.
            Swap::Unknown(error) => {
                unknown = Some(error);
                backoff.pause(&SystemEnvironment).await;
            }
        }
    }
    bail!(unconfirmed(layout::BUFFER, unknown))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::growth::grow;
    use millpond_storage::unreliable::{Fault, Faults, On, Unreliable};
    use object_store::memory::InMemory;
    use std::time::Duration;
    use uuid::Uuid;

    fn order() -> Vec<(String, Vec<String>)> {
        vec![("events.order".to_owned(), vec!["event_id".to_owned()])]
    }

    fn routed(shards: u32, is_new: bool) -> Vec<RoutedStream> {
        vec![RoutedStream {
            stream: "events.order".to_owned(),
            key: vec!["event_id".to_owned()],
            shards,
            is_new,
        }]
    }

    async fn store(shards: u32) -> Store {
        let store = Store::memory();
        let buffer = Buffer::new(Uuid::from_u128(42), shards);
        cas::create_once(&store, layout::BUFFER, buffer).await.unwrap();
        store
    }

    #[tokio::test]
    async fn a_route_is_declared_once_and_stays_when_the_buffer_grows() {
        let store = store(2).await;
        assert_eq!(routes(&store).await.unwrap(), []);
        assert_eq!(route(&store, &order(), None).await.unwrap(), routed(2, true));
        assert_eq!(routes(&store).await.unwrap(), routed(2, false));
        let version = read(&store).await.unwrap().state.stamp;
        assert_eq!(route(&store, &order(), None).await.unwrap(), routed(2, false));
        assert_eq!(
            read(&store).await.unwrap().state.stamp,
            version,
            "nothing was written"
        );
        grow(&store, 5).await.unwrap();
        assert_eq!(route(&store, &order(), None).await.unwrap(), routed(2, false));
        let refused = route(&store, &order(), Some(5)).await.unwrap_err().to_string();
        assert!(
            refused.contains("millpond buffer unroute events.order"),
            "{refused}"
        );
        let streams = ["events.order".to_owned(), "events.other".to_owned()];
        assert_eq!(unroute(&store, &streams).await.unwrap(), ["events.order"]);
        assert_eq!(unroute(&store, &streams).await.unwrap(), [""; 0]);
        assert_eq!(route(&store, &order(), Some(4)).await.unwrap(), routed(4, true));
    }

    #[tokio::test(start_paused = true)]
    async fn each_outcome_of_the_write_ends_with_the_route() {
        let late = Duration::from_millis(10);
        for fault in [
            Fault::Lost,
            Fault::LandsUnreported,
            Fault::LandsLate(late),
            Fault::Repeated(late),
        ] {
            let unreliable = Unreliable::new(Arc::new(InMemory::new()), Faults::default());
            let controls = unreliable.controls();
            let store = Store::over(Arc::new(unreliable), "buffer");
            let buffer = Buffer::new(Uuid::from_u128(42), 3);
            cas::create_once(&store, layout::BUFFER, buffer).await.unwrap();
            controls.once(On::Put, layout::BUFFER, fault);
            let made = route(&store, &order(), None).await;
            assert_eq!(made.unwrap(), routed(3, true), "{fault:?}");
            assert_eq!(controls.unused(), 0, "{fault:?}");
            assert_eq!(read(&store).await.unwrap().state.routed.len(), 1, "{fault:?}");
        }
    }
}

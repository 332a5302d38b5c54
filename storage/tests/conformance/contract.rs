//! The contract of each method over an honest store.

use crate::{Ground, Kind, WRITERS, concurrent_appends, content};
use bytes::Bytes;
use millpond_storage::unreliable::Faults;
use millpond_storage::{Cas, Created, ErrorKind, Fetched, Store, Version};
use prometheus_client::registry::Registry;
use std::sync::Arc;

macro_rules! over_every_store {
    ($($test:ident),* $(,)?) => {
        mod memory { $(#[tokio::test(flavor = "multi_thread")] async fn $test() {
            let ground = super::Ground::new(super::Kind::Memory).await;
            super::$test(&ground).await;
            super::$test(&ground.anew().await.behind_a_quiet_network()).await;
        })* }
        mod file { $(#[tokio::test(flavor = "multi_thread")] async fn $test() {
            let ground = super::Ground::new(super::Kind::File).await;
            super::$test(&ground).await;
            super::$test(&ground.anew().await.behind_a_quiet_network()).await;
        })* }
        /// One server for the whole suite.
        #[tokio::test(flavor = "multi_thread")]
        async fn minio() {
            let ground = Ground::new(Kind::Minio).await;
            $(
                println!("minio: {}", stringify!($test));
                $test(&ground.anew().await).await;
                $test(&ground.anew().await.behind_a_quiet_network()).await;
            )*
        }
    };
}

over_every_store!(
    absent_objects_are_no_error,
    an_object_is_created_once,
    compare_and_set_replaces_the_expected_version_only,
    an_update_of_nothing_is_a_mismatch,
    an_unchanged_object_is_not_read_again,
    a_range_is_exact,
    a_listing_is_complete_and_in_order,
    a_listing_shows_the_version_of_each_object,
    a_listing_of_many_pages_is_complete,
    odd_keys_are_keys,
    impossible_keys_are_refused,
    a_big_body_arrives_whole,
    a_deleted_object_is_gone,
    one_of_concurrent_creations_wins,
    concurrent_writers_lose_nothing,
    every_request_is_counted,
    the_self_test_passes_and_cleans_up,
);

impl Ground {
    /// Another, empty buffer of the same kind, in the same server if there is one.
    async fn anew(&self) -> Self {
        match &self.minio {
            None => Self::new(self.kind).await,
            Some(minio) => {
                Self::over(
                    self.kind,
                    minio.url(),
                    minio.options(),
                    None,
                    Some(Arc::clone(minio)),
                )
                .await
            }
        }
    }

    /// The same buffer through the fault wrapper without faults, which must make no difference.
    fn behind_a_quiet_network(mut self) -> Self {
        self.store = self.store.behind(Faults::default()).0;
        self
    }
}

fn committed(cas: Cas) -> Version {
    match cas {
        Cas::Committed(version) => version,
        other => panic!("not committed: {other:?}"),
    }
}

async fn put(store: &Store, key: &str, body: &'static str) {
    let created = store.put_if_absent(key, vec![body.into()]).await;
    assert_eq!(created, Ok(Created::New), "{key}");
}

async fn keys(store: &Store, folder: &str) -> Vec<String> {
    let listed = store.list(folder).await.expect("list");
    listed.into_iter().map(|object| object.key).collect()
}

async fn absent_objects_are_no_error(ground: &Ground) {
    let store = &ground.store;
    assert_eq!(store.get("a/b").await, Ok(None));
    assert_eq!(store.get_range("a/b", 0..1).await, Ok(None));
    assert_eq!(store.head("a/b").await, Ok(None));
    assert_eq!(store.list("a").await, Ok(Vec::new()));
    assert_eq!(store.list("").await, Ok(Vec::new()));
    assert_eq!(store.delete("a/b").await, Ok(()));
    let version = committed(store.compare_and_set("x", None, "x".into()).await);
    assert_eq!(store.get_if_changed("a/b", &version).await, Ok(Fetched::Absent));
}

async fn an_object_is_created_once(ground: &Ground) {
    let store = &ground.store;
    let pieces = vec!["one ".into(), Bytes::new(), "two".into()];
    assert_eq!(store.put_if_absent("a/b", pieces).await, Ok(Created::New));
    let again = store.put_if_absent("a/b", vec!["three".into()]).await;
    assert_eq!(again, Ok(Created::Existed));
    assert_eq!(content(store, "a/b").await, Some("one two".into()));
    assert_eq!(store.put_if_absent("empty", Vec::new()).await, Ok(Created::New));
    assert_eq!(content(store, "empty").await, Some(Bytes::new()));
    let head = store.head("a/b").await.expect("head").expect("there");
    assert_eq!((head.key.as_str(), head.size), ("a/b", 7));
}

async fn compare_and_set_replaces_the_expected_version_only(ground: &Ground) {
    let store = &ground.store;
    let first = committed(store.compare_and_set("m", None, "1".into()).await);
    assert_eq!(store.compare_and_set("m", None, "x".into()).await, Cas::Mismatch);
    assert_eq!(content(store, "m").await, Some("1".into()));
    let second = committed(store.compare_and_set("m", Some(&first), "2".into()).await);
    assert_ne!(first, second);
    let stale = store.compare_and_set("m", Some(&first), "x".into()).await;
    assert_eq!(stale, Cas::Mismatch);
    let read = store.get("m").await.expect("get").expect("there");
    assert_eq!(read.bytes, "2");
    committed(store.compare_and_set("m", Some(&read.version), "3".into()).await);
    let stale = store.compare_and_set("m", Some(&second), "x".into()).await;
    assert_eq!(stale, Cas::Mismatch);
    assert_eq!(content(store, "m").await, Some("3".into()));
    let counts = store.requests();
    assert_eq!(
        (counts.cas_committed, counts.cas_mismatch, counts.cas_unknown),
        (3, 3, 0)
    );
}

async fn an_update_of_nothing_is_a_mismatch(ground: &Ground) {
    let store = &ground.store;
    let version = committed(store.compare_and_set("x", None, "1".into()).await);
    let cas = store.compare_and_set("absent", Some(&version), "2".into()).await;
    assert_eq!(cas, Cas::Mismatch);
    assert_eq!(content(store, "absent").await, None);
}

async fn an_unchanged_object_is_not_read_again(ground: &Ground) {
    let store = &ground.store;
    let first = committed(store.compare_and_set("m", None, "first".into()).await);
    let before = store.requests();
    assert_eq!(store.get_if_changed("m", &first).await, Ok(Fetched::Unchanged));
    assert_eq!(store.requests().bytes_read, before.bytes_read);
    let second = committed(store.compare_and_set("m", Some(&first), "second".into()).await);
    let Ok(Fetched::Changed(changed)) = store.get_if_changed("m", &first).await else {
        panic!("a changed object is read");
    };
    assert_eq!(changed.bytes, "second");
    for known in [&second, &changed.version] {
        assert_eq!(store.get_if_changed("m", known).await, Ok(Fetched::Unchanged));
    }
}

async fn a_range_is_exact(ground: &Ground) {
    let store = &ground.store;
    put(store, "s", "0123456789").await;
    for (range, wanted) in [(0..1, "0"), (3..7, "3456"), (9..10, "9"), (0..10, "0123456789")] {
        let got = store.get_range("s", range.clone()).await;
        assert_eq!(got, Ok(Some(wanted.into())), "{range:?}");
    }
    #[expect(clippy::reversed_empty_ranges, reason = "ranges from a damaged index")]
    for range in [5..11, 10..11, 100..200, 4..4, 7..3, 0..u64::MAX] {
        let error = store
            .get_range("s", range.clone())
            .await
            .expect_err("no such range");
        assert_eq!(error.kind(), ErrorKind::Misconfigured, "{range:?}: {error}");
    }
}

async fn a_listing_is_complete_and_in_order(ground: &Ground) {
    let store = &ground.store;
    for key in ["s/b/2", "s/a", "s/b/1", "sx/other", "s/c-1", "top"] {
        put(store, key, "12345").await;
    }
    assert_eq!(keys(store, "s").await, ["s/a", "s/b/1", "s/b/2", "s/c-1"]);
    assert_eq!(keys(store, "s/b").await, ["s/b/1", "s/b/2"]);
    assert_eq!(keys(store, "").await.len(), 6);
    let listed = store.list("s/a").await.expect("list");
    assert!(
        listed.is_empty(),
        "the argument names a folder, not an object: {listed:?}"
    );
    let listed = store.list("").await.expect("list");
    let year_2020_ms = 1_577_836_800_000;
    assert!(
        listed
            .iter()
            .all(|o| o.size == 5 && o.last_modified_ms > year_2020_ms)
    );
}

/// The listings of files have no versions.
async fn a_listing_shows_the_version_of_each_object(ground: &Ground) {
    let store = &ground.store;
    let shows = !matches!(ground.kind, Kind::File);
    let listed = async |key: &str| {
        let listed = store.list_with_versions("a").await.expect("list");
        listed
            .into_iter()
            .find(|object| object.key == key)
            .expect("there")
    };
    let mut earlier = Vec::new();
    for body in ["1", "2", "3"] {
        let expected = earlier.last();
        let written = committed(store.compare_and_set("a/m", expected, body.into()).await);
        let object = listed("a/m").await;
        assert_eq!(object.is_at(&written), shows, "{body}");
        let read = store.get("a/m").await.expect("get").expect("there");
        assert_eq!(object.is_at(&read.version), shows, "{body}");
        assert!(!earlier.iter().any(|version| object.is_at(version)), "{body}");
        earlier.push(written);
    }
    put(store, "a/s", "4").await;
    let read = store.get("a/s").await.expect("get").expect("there");
    assert_eq!(listed("a/s").await.is_at(&read.version), shows);
}

async fn a_listing_of_many_pages_is_complete(ground: &Ground) {
    let store = &ground.store;
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..WRITERS {
        let store = store.clone();
        writers.spawn(async move {
            for i in (writer..1_100).step_by(WRITERS) {
                put(&store, &format!("many/{i:04}"), "x").await;
            }
        });
    }
    writers.join_all().await;
    let before = store.requests().list;
    let wanted: Vec<_> = (0..1_100).map(|i| format!("many/{i:04}")).collect();
    assert_eq!(keys(store, "many").await, wanted);
    assert_eq!(store.requests().list - before, 2);
}

async fn odd_keys_are_keys(ground: &Ground) {
    let store = &ground.store;
    let odd = [
        "with space/and more",
        "ünïcødé/日本語/🦀",
        "percent%2Fnot-a-slash/100%",
        "plus+and=and:and;and,and@",
        "quote'and(and)and!and$and&",
        "dots/.hidden/a..b/c.",
        "-leading-dash",
        "UPPER/lower",
        "upper/LOWER",
    ];
    for key in odd {
        let created = store.put_if_absent(key, vec![key.into()]).await;
        assert_eq!(created, Ok(Created::New), "{key}");
    }
    for key in odd {
        assert_eq!(content(store, key).await, Some(key.into()), "{key}");
    }
    let mut wanted = odd.map(str::to_owned);
    wanted.sort_unstable();
    assert_eq!(keys(store, "").await, wanted);
    for key in odd {
        assert_eq!(store.delete(key).await, Ok(()), "{key}");
    }
    assert_eq!(keys(store, "").await, [""; 0]);
}

async fn impossible_keys_are_refused(ground: &Ground) {
    let store = &ground.store;
    for key in ["", "/a", "a/", "a//b", "../a", "a/../b", "a/./b", "."] {
        let error = store.get(key).await.expect_err(key);
        assert_eq!(error.kind(), ErrorKind::Misconfigured, "{key}");
        assert!(store.put_if_absent(key, Vec::new()).await.is_err(), "{key}");
        let cas = store.compare_and_set(key, None, Bytes::new()).await;
        assert!(matches!(cas, Cas::Unknown(_)), "{key}");
    }
    assert_eq!(store.requests().put, 0, "an invalid key sends no request");
}

async fn a_big_body_arrives_whole(ground: &Ground) {
    let store = &ground.store;
    // All pieces differ, and the size is not round.
    let pieces: Vec<Bytes> = (0..25u8)
        .map(|i| vec![i; (1 << 20) + usize::from(i)].into())
        .collect();
    let whole = pieces.concat();
    assert_eq!(store.put_if_absent("big", pieces).await, Ok(Created::New));
    let read = content(store, "big").await.expect("there");
    assert!(read == whole, "{} bytes of {}", read.len(), whole.len());
    let (start, end) = (5_000_000, 7_000_000);
    let range = store.get_range("big", start as u64..end as u64).await;
    assert!(range == Ok(Some(Bytes::copy_from_slice(&whole[start..end]))));
}

async fn a_deleted_object_is_gone(ground: &Ground) {
    let store = &ground.store;
    put(store, "a/b", "1").await;
    assert_eq!(store.delete("a/b").await, Ok(()));
    assert_eq!(store.get("a/b").await, Ok(None));
    assert_eq!(store.delete("a/b").await, Ok(()));
    put(store, "a/b", "2").await;
    assert_eq!(content(store, "a/b").await, Some("2".into()));
}

async fn one_of_concurrent_creations_wins(ground: &Ground) {
    for round in 0..5 {
        let key = format!("race/{round}");
        let mut writers = tokio::task::JoinSet::new();
        for writer in 0..WRITERS {
            let (store, key) = (ground.store.clone(), key.clone());
            writers.spawn(async move {
                let body = Bytes::from(format!("by {writer}"));
                (store.put_if_absent(&key, vec![body.clone()]).await, body)
            });
        }
        let claims = writers.join_all().await;
        let winners: Vec<_> = claims
            .iter()
            .filter(|(claim, _)| *claim == Ok(Created::New))
            .collect();
        let losers = claims
            .iter()
            .filter(|(claim, _)| *claim == Ok(Created::Existed))
            .count();
        assert_eq!((winners.len(), losers), (1, WRITERS - 1), "{claims:?}");
        assert_eq!(content(&ground.store, &key).await.as_ref(), Some(&winners[0].1));
    }
}

async fn concurrent_writers_lose_nothing(ground: &Ground) {
    let mut stores = vec![ground.store.clone()];
    if !ground.url.to_string().starts_with("memory") {
        // A second opening, as in another process: the two share only the store.
        stores.push(Store::open(&ground.url, &ground.options).await.expect("open"));
    }
    let unknown = concurrent_appends(&stores, "log", 5).await;
    assert_eq!(unknown, 0, "an honest store tells every outcome");
}

async fn every_request_is_counted(ground: &Ground) {
    let store = &ground.store;
    let before = store.requests();
    put(store, "k", "12345").await;
    let existed = store.put_if_absent("k", vec!["123".into()]).await;
    assert_eq!(existed, Ok(Created::Existed));
    content(store, "k").await.expect("there");
    content(store, "absent").await;
    store.get_range("k", 1..3).await.expect("range");
    store.head("k").await.expect("head");
    store.list("").await.expect("list");
    store.delete("k").await.expect("delete");
    let now = store.requests();
    assert_eq!(now.put - before.put, 2);
    assert_eq!(now.get - before.get, 3);
    assert_eq!(now.head - before.head, 1);
    assert_eq!(now.list - before.list, 1);
    assert_eq!(now.delete - before.delete, 1);
    assert_eq!(now.bytes_written - before.bytes_written, 8);
    assert_eq!(now.bytes_read - before.bytes_read, 7);

    let mut registry = Registry::default();
    store.register_metrics(&mut registry);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).expect("encode");
    for line in [
        "millpond_store_requests_total{kind=\"put\",outcome=\"ok\"} 1",
        "millpond_store_requests_total{kind=\"put\",outcome=\"mismatch\"} 1",
        "millpond_store_requests_total{kind=\"delete\",outcome=\"ok\"} 1",
        "millpond_store_bytes_total{direction=\"written\"} 8",
        "millpond_store_request_seconds_count{kind=\"head\"} 1",
    ] {
        assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
    }
}

async fn the_self_test_passes_and_cleans_up(ground: &Ground) {
    assert_eq!(ground.store.self_test().await, Ok(()));
    assert_eq!(keys(&ground.store, "").await, [""; 0]);
}

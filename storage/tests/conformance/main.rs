//! One suite for every kind of store: memory, a directory, a real MinIO. Each runs directly, and behind a network that
//! loses, delays and breaks off requests.

mod contract;
mod faults;
mod open;
mod self_test;

use bytes::Bytes;
use millpond_runtime::{Backoff, SystemEnvironment, blocking};
use millpond_storage::testing::Minio;
use millpond_storage::{BufferUrl, Cas, Error, Store, StoreOptions};
use std::sync::Arc;
use std::time::Duration;

/// The number of concurrent writers, as in the self-test.
const WRITERS: usize = 16;

/// A store under test, with the resources that it needs to stay alive.
struct Ground {
    kind: Kind,
    store: Store,
    url: BufferUrl,
    options: StoreOptions,
    _directory: Option<tempfile::TempDir>,
    minio: Option<Arc<Minio>>,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Memory,
    File,
    Minio,
}

impl Ground {
    async fn new(kind: Kind) -> Self {
        let (url, options, directory, minio) = match kind {
            Kind::Memory => {
                let url = BufferUrl::parse("memory:///").expect("url");
                (url, StoreOptions::default(), None, None)
            }
            Kind::File => {
                let directory = tempfile::tempdir().expect("directory");
                let url = format!("file://{}", directory.path().display());
                let url = BufferUrl::parse(&url).expect("url");
                (url, StoreOptions::default(), Some(directory), None)
            }
            Kind::Minio => {
                let minio = minio().await;
                (minio.url(), minio.options(), None, Some(minio))
            }
        };
        Self::over(kind, url, options, directory, minio).await
    }

    async fn over(
        kind: Kind,
        url: BufferUrl,
        options: StoreOptions,
        directory: Option<tempfile::TempDir>,
        minio: Option<Arc<Minio>>,
    ) -> Self {
        Self {
            kind,
            store: Store::open(&url, &options).await.expect("open"),
            url,
            options,
            _directory: directory,
            minio,
        }
    }
}

async fn minio() -> Arc<Minio> {
    let started = blocking::run(&SystemEnvironment, Minio::start).await;
    Arc::new(started.expect("join").unwrap_or_else(|error| panic!("{error}")))
}

/// Repeats a harmless operation through faults.
async fn patiently<T, F>(mut attempt: impl FnMut() -> F) -> T
where
    F: Future<Output = Result<T, Error>>,
{
    let mut backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(20));
    loop {
        if let Ok(done) = attempt().await {
            return done;
        }
        backoff.pause(&SystemEnvironment).await;
    }
}

async fn content(store: &Store, key: &str) -> Option<Bytes> {
    let found = patiently(|| store.get(key)).await;
    found.map(|found| found.bytes)
}

/// Adds a line to an object as a committer does: read and compare-and-set, and after any outcome but a commit, read
/// again. Returns the number of unknown outcomes.
async fn append(store: &Store, key: &str, line: &str) -> usize {
    let mut unknown = 0;
    loop {
        let found = patiently(|| store.get(key)).await;
        let (mut text, version) = match found {
            Some(found) => (found.bytes.to_vec(), Some(found.version)),
            None => (Vec::new(), None),
        };
        if text.split(|byte| *byte == b'\n').any(|l| l == line.as_bytes()) {
            return unknown;
        }
        text.extend_from_slice(line.as_bytes());
        text.push(b'\n');
        match store.compare_and_set(key, version.as_ref(), text.into()).await {
            Cas::Committed(_) => return unknown,
            Cas::Mismatch => {}
            Cas::Unknown(_) => unknown += 1,
        }
    }
}

/// Sixteen writers add lines to one object; every line must occur once. Returns the number of unknown outcomes.
async fn concurrent_appends(stores: &[Store], key: &str, lines_each: usize) -> usize {
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..WRITERS {
        let store = stores[writer % stores.len()].clone();
        let key = key.to_owned();
        writers.spawn(async move {
            let mut unknown = 0;
            for line in 0..lines_each {
                unknown += append(&store, &key, &format!("{writer}-{line}")).await;
            }
            unknown
        });
    }
    let unknown = writers.join_all().await.into_iter().sum();
    let text = content(&stores[0], key).await.expect("written");
    let text = String::from_utf8(text.to_vec()).expect("text");
    let mut found: Vec<_> = text.lines().map(str::to_owned).collect();
    found.sort_unstable();
    let mut wanted: Vec<_> = (0..WRITERS)
        .flat_map(|writer| (0..lines_each).map(move |line| format!("{writer}-{line}")))
        .collect();
    wanted.sort_unstable();
    assert_eq!(found, wanted);
    unknown
}

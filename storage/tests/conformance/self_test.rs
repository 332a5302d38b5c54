//! Stores that each break a guarantee. The self-test must refuse them.

use async_trait::async_trait;
use futures::stream::{self, BoxStream, StreamExt, TryStreamExt};
use millpond_storage::{ErrorKind, SelfTestError, Store, Violation};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    ObjectStoreExt, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    /// Checks the precondition, then acts on it: correct as long as nobody else writes.
    ChecksThenActs,
    /// The same for creations only.
    ChecksThenCreates,
    IgnoresIfMatch,
    IgnoresIfNoneMatch,
    CreatesOnIfMatch,
    /// Reports one winner, and keeps a loser's write.
    KeepsTheRefused,
    /// A proxy loses each answer and sends the write again: the answer is the one to the second copy.
    AnswersTheCopy,
    Refuses,
    /// A cache shows each object in its first version, and does not answer at first.
    ListsAsBefore,
}

/// A store in memory with one fault.
#[derive(Debug)]
struct Broken {
    inner: InMemory,
    fault: Fault,
    /// The tag of each object's first version.
    first: Arc<Mutex<HashMap<Path, Option<String>>>>,
    listed: AtomicBool,
}

impl Broken {
    fn new(fault: Fault) -> Self {
        Self {
            inner: InMemory::new(),
            fault,
            first: Arc::default(),
            listed: AtomicBool::new(false),
        }
    }

    async fn check(&self, location: &Path, mode: &PutMode) -> Result<()> {
        let current = match self.inner.head(location).await {
            Ok(meta) => meta.e_tag,
            Err(Error::NotFound { .. }) => None,
            Err(error) => return Err(error),
        };
        let expected = match mode {
            PutMode::Overwrite => return Ok(()),
            PutMode::Create => None,
            PutMode::Update(version) => version.e_tag.clone(),
        };
        match current == expected {
            true => Ok(()),
            false => Err(Error::Precondition {
                path: location.to_string(),
                source: "another version".into(),
            }),
        }
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "broken({:?})", self.fault)
    }
}

#[async_trait]
impl ObjectStore for Broken {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        mut options: PutOptions,
    ) -> Result<PutResult> {
        let update = matches!(options.mode, PutMode::Update(_));
        let broken = match self.fault {
            Fault::Refuses => {
                return Err(Error::Precondition {
                    path: location.to_string(),
                    source: "always".into(),
                });
            }
            Fault::KeepsTheRefused | Fault::ListsAsBefore => false,
            Fault::AnswersTheCopy => {
                let (first, again) = (options.clone(), payload.clone());
                self.inner.put_opts(location, payload, first).await?;
                return self.inner.put_opts(location, again, options).await;
            }
            Fault::ChecksThenActs => true,
            Fault::ChecksThenCreates => !update,
            Fault::IgnoresIfNoneMatch => {
                if !update {
                    options.mode = PutMode::Overwrite;
                }
                false
            }
            Fault::IgnoresIfMatch => {
                if update {
                    options.mode = PutMode::Overwrite;
                }
                false
            }
            Fault::CreatesOnIfMatch => {
                if update && self.inner.head(location).await.is_err() {
                    options.mode = PutMode::Overwrite;
                }
                false
            }
        };
        if self.fault == Fault::KeepsTheRefused {
            let result = self.inner.put_opts(location, payload.clone(), options).await;
            if result.is_err() {
                self.inner.put(location, payload).await?;
            }
            return result;
        }
        if broken {
            self.check(location, &options.mode).await?;
            tokio::task::yield_now().await;
            options.mode = PutMode::Overwrite;
        }
        let written = self.inner.put_opts(location, payload, options).await?;
        let mut first = self.first.lock().expect("no test panics here");
        let e_tag = written.e_tag.clone();
        first.entry(location.clone()).or_insert(e_tag);
        Ok(written)
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(location, options).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.inner.get_opts(location, options).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let listed = self.inner.list(prefix);
        if self.fault != Fault::ListsAsBefore {
            return listed;
        }
        if !self.listed.swap(true, Ordering::Relaxed) {
            let unanswered = Error::Generic {
                store: "broken",
                source: "no answer".into(),
            };
            return stream::iter([Err(unanswered)]).boxed();
        }
        let first = Arc::clone(&self.first);
        let as_before = move |meta: ObjectMeta| {
            let first = first.lock().expect("no test panics here");
            let e_tag = first.get(&meta.location).cloned().flatten();
            ObjectMeta { e_tag, ..meta }
        };
        listed.map_ok(as_before).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

async fn violation(fault: Fault) -> Violation {
    let store = Store::over(Arc::new(Broken::new(fault)), "b");
    let error = store.self_test().await.expect_err("a broken store");
    assert_eq!(error.kind(), ErrorKind::Misconfigured);
    let left = store.list("").await.expect("list");
    assert!(left.is_empty(), "left behind: {left:?}");
    match error {
        SelfTestError::Unfit { violation, .. } => violation,
        SelfTestError::Unanswered(error) => panic!("{error}"),
    }
}

#[tokio::test]
async fn a_store_that_breaks_only_under_concurrency_is_refused() {
    let Violation::ConcurrentCreates { winners, writers } = violation(Fault::ChecksThenCreates).await else {
        panic!("this store breaks creations");
    };
    assert!(winners > 1 && writers == 16);
    let found = violation(Fault::ChecksThenActs).await;
    assert!(
        matches!(
            found,
            Violation::ConcurrentCreates { .. } | Violation::ConcurrentUpdates { .. }
        ),
        "{found:?}"
    );
}

#[tokio::test]
async fn a_store_that_ignores_a_precondition_is_refused_and_told_which() {
    for (fault, wanted, named) in [
        (Fault::IgnoresIfMatch, Violation::StaleUpdate, "If-Match"),
        (
            Fault::IgnoresIfNoneMatch,
            Violation::SecondCreate,
            "If-None-Match",
        ),
        (Fault::CreatesOnIfMatch, Violation::UpdateOfNothing, "absent key"),
        (Fault::KeepsTheRefused, Violation::AcceptedAndGone, "read back"),
        (Fault::Refuses, Violation::RefusesAll, "refuses"),
        (Fault::ListsAsBefore, Violation::StaleList, "lists"),
    ] {
        let found = violation(fault).await;
        assert_eq!(found, wanted);
        assert!(found.to_string().contains(named), "{found}");
    }
}

#[tokio::test]
async fn a_repeated_write_is_no_verdict() {
    let store = Store::over(Arc::new(Broken::new(Fault::AnswersTheCopy)), "b");
    assert_eq!(store.self_test().await, Ok(()));
}

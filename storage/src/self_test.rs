//! Tests that the store honours the preconditions that everything rests on, before a buffer is written to.
//!
//! A store that ignores a precondition loses committed data silently, and such stores exist. MinIO has shipped two of
//! these bugs (#21526, #21603). Others check the precondition and then act on it, which only concurrent writers notice,
//! so the test is concurrent. It repeats a question that got no answer, and never takes a missing answer for a verdict.

use crate::error::{Error, ErrorKind};
use crate::{Cas, Created, Store, Version};
use bytes::Bytes;
use futures::future::join_all;
use millpond_runtime::{Backoff, Environment as _, SystemEnvironment};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Why a store is not fit to hold a buffer, or could not be tested.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SelfTestError {
    /// The store does not honour a precondition.
    #[error(
        "the store at {url} cannot hold a buffer: {violation}. Committed data could be lost without notice. \
         Use a store with conditional writes (AWS S3, Google Cloud Storage, Azure Blob Storage, Cloudflare R2, \
         a current MinIO), or upgrade this one; a proxy or gateway in front of it may be what drops the condition"
    )]
    Unfit {
        /// The buffer's URL.
        url: String,
        /// The guarantee that was broken.
        violation: Violation,
    },
    /// The store's answers do not suffice for a verdict.
    #[error("the store could not be tested for conditional writes: {0}")]
    Unanswered(#[from] Error),
}

impl SelfTestError {
    /// What the caller can do about it. An unfit store is [`ErrorKind::Misconfigured`].
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Unfit { .. } => ErrorKind::Misconfigured,
            Self::Unanswered(error) => error.kind(),
        }
    }
}

/// A guarantee that a store broke.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// An update with an old version was accepted.
    #[error("it ignores If-Match (an update based on a replaced version was accepted)")]
    StaleUpdate,
    /// A second creation was accepted.
    #[error("it ignores If-None-Match (an object was created twice)")]
    SecondCreate,
    /// An update of an absent object was accepted.
    #[error("it ignores If-Match on an absent key (an update created an object)")]
    UpdateOfNothing,
    /// The store accepted more than one of several concurrent updates from one version.
    #[error(
        "it keeps If-Match only while nobody else writes ({winners} of {writers} concurrent updates from one version were accepted)"
    )]
    ConcurrentUpdates {
        /// Accepted updates.
        winners: usize,
        /// All concurrent updates.
        writers: usize,
    },
    /// The store accepted more than one of several concurrent creations of one object.
    #[error(
        "it keeps If-None-Match only while nobody else writes ({winners} of {writers} concurrent creations of one object were accepted)"
    )]
    ConcurrentCreates {
        /// Accepted creations.
        winners: usize,
        /// All concurrent creations.
        writers: usize,
    },
    /// A read does not return an accepted write.
    #[error("a write that it accepted is not there when read back")]
    AcceptedAndGone,
    /// A list shows a version that an accepted update has replaced.
    #[error(
        "its lists show an object as it was before an update that it accepted (a cache in front of it, or an index that is late)"
    )]
    StaleList,
    /// The store refused a write although its condition held.
    #[error("it refuses conditional writes whose condition holds")]
    RefusesAll,
}

/// Concurrent writers of a round: enough that a store that checks and then acts lets two through.
const WRITERS: usize = 16;
/// Rounds of updates, and as many of creations.
const ROUNDS: usize = 4;
/// Maximum attempts at a question without a clear answer.
const ATTEMPTS: usize = 8;

impl Store {
    /// Tests that the store honours the preconditions of writes, also with 16 concurrent writers. It takes about 150
    /// requests under `self-test/` in the buffer and cleans up.
    ///
    /// # Errors
    /// The store breaks a guarantee, or its answers do not suffice for a verdict.
    pub async fn self_test(&self) -> Result<(), SelfTestError> {
        let test = Test {
            store: self,
            folder: format!("self-test/{}", SystemEnvironment.uuid()),
        };
        let verdict = test.run().await;
        test.clean_up().await;
        match verdict {
            Ok(()) => Ok(()),
            Err(Finding::Violation(violation)) => Err(SelfTestError::Unfit {
                url: self.url().to_owned(),
                violation,
            }),
            Err(Finding::Unanswered(error)) => Err(error.into()),
        }
    }
}

struct Test<'a> {
    store: &'a Store,
    folder: String,
}

enum Finding {
    Violation(Violation),
    Unanswered(Error),
}

impl From<Error> for Finding {
    fn from(error: Error) -> Self {
        Self::Unanswered(error)
    }
}

/// The result of one contender in a round.
enum Claim {
    Accepted,
    Refused,
    Unknown(Error),
}

impl From<Cas> for Claim {
    fn from(cas: Cas) -> Self {
        match cas {
            Cas::Committed(_) => Self::Accepted,
            Cas::Mismatch => Self::Refused,
            Cas::Unknown(error) => Self::Unknown(error),
        }
    }
}

impl From<Result<Created, Error>> for Claim {
    fn from(created: Result<Created, Error>) -> Self {
        match created {
            Ok(Created::New) => Self::Accepted,
            Ok(Created::Existed) => Self::Refused,
            Err(error) => Self::Unknown(error),
        }
    }
}

impl Test<'_> {
    async fn run(&self) -> Result<(), Finding> {
        self.one_after_another().await?;
        for round in 0..ROUNDS {
            self.at_once(&format!("creates-{round}"), true).await?;
            self.at_once(&format!("updates-{round}"), false).await?;
        }
        Ok(())
    }

    async fn one_after_another(&self) -> Result<(), Finding> {
        let key = self.key("alone");
        let first = self.create(&key).await?;
        self.replace(&key, &first).await?;
        self.must_not_list(&key, &first).await?;
        self.must_refuse(Violation::StaleUpdate, || async {
            self.store
                .compare_and_set(&key, Some(&first), body("stale"))
                .await
                .into()
        })
        .await?;
        self.must_refuse(Violation::SecondCreate, || async {
            self.store.put_if_absent(&key, vec![body("second")]).await.into()
        })
        .await?;
        let absent = self.key("absent");
        self.must_refuse(Violation::UpdateOfNothing, || async {
            self.store
                .compare_and_set(&absent, Some(&first), body("nothing"))
                .await
                .into()
        })
        .await
    }

    /// Garbage collection goes by the versions in a list. Its role may list, and those of others may not.
    async fn must_not_list(&self, key: &str, replaced: &Version) -> Result<(), Finding> {
        self.patiently(|| async {
            let listed = match self.store.list_with_versions(&self.folder).await {
                Ok(listed) => listed,
                Err(error) if error.kind() == ErrorKind::Transient => return Err(error.into()),
                Err(error) => {
                    tracing::info!(%error, "not tested whether the store's lists are current, which garbage collection needs");
                    return Ok(());
                }
            };
            match listed
                .iter()
                .any(|found| found.key == key && found.is_at(replaced))
            {
                true => Err(Finding::Violation(Violation::StaleList)),
                false => Ok(()),
            }
        })
        .await
    }

    /// Repeats until the answer is clear.
    async fn must_refuse<C: Future<Output = Claim>>(
        &self,
        violation: Violation,
        ask: impl Fn() -> C,
    ) -> Result<(), Finding> {
        self.patiently(|| async {
            match ask().await {
                Claim::Refused => Ok(()),
                Claim::Accepted => Err(Finding::Violation(violation)),
                Claim::Unknown(error) => Err(error.into()),
            }
        })
        .await
    }

    /// Runs a round of concurrent writers of one object. Repeats it on another key until the result is clear.
    async fn at_once(&self, name: &str, creates: bool) -> Result<(), Finding> {
        let attempts = AtomicUsize::new(0);
        self.patiently(|| async {
            // Never reuse a key: a late write of the previous attempt would take part in this one.
            let attempt = attempts.fetch_add(1, Ordering::Relaxed);
            let key = self.key(&format!("{name}-{attempt}"));
            let base = match creates {
                true => None,
                false => Some(self.create(&key).await?),
            };
            let bodies: Vec<Bytes> = (0..WRITERS).map(|i| body(&i.to_string())).collect();
            let contend = |body: &Bytes| self.contend(&key, base.as_ref(), body.clone());
            let claims = join_all(bodies.iter().map(contend)).await;
            self.judge(&key, creates, &bodies, &claims).await
        })
        .await
    }

    async fn contend(&self, key: &str, base: Option<&Version>, body: Bytes) -> Claim {
        match base {
            None => self.store.put_if_absent(key, vec![body]).await.into(),
            Some(_) => self.store.compare_and_set(key, base, body).await.into(),
        }
    }

    async fn judge(
        &self,
        key: &str,
        creates: bool,
        bodies: &[Bytes],
        claims: &[Claim],
    ) -> Result<(), Finding> {
        let (writers, mut winner, mut winners, mut unknown) = (claims.len(), None, 0, None);
        for (claim, body) in claims.iter().zip(bodies) {
            match claim {
                Claim::Accepted => {
                    winners += 1;
                    winner = Some(body);
                }
                Claim::Refused => {}
                Claim::Unknown(error) => unknown = Some(error.clone()),
            }
        }
        if winners > 1 {
            return Err(Finding::Violation(if creates {
                Violation::ConcurrentCreates { winners, writers }
            } else {
                Violation::ConcurrentUpdates { winners, writers }
            }));
        }
        // A writer with an unknown outcome may have won, or none reached the store.
        if let (None, Some(error)) = (winner, unknown) {
            return Err(error.into());
        }
        let found = self.store.get(key).await?;
        let has = |body: &Bytes| found.as_ref().is_some_and(|found| found.bytes == *body);
        match winner {
            // In a store that honours preconditions, no other write can have replaced it, reported or not.
            Some(winner) if has(winner) => Ok(()),
            Some(_) => Err(Finding::Violation(Violation::AcceptedAndGone)),
            // A proxy repeated the winner's request, and the store refused the second copy.
            None if bodies.iter().any(has) => Ok(()),
            None => Err(Finding::Violation(Violation::RefusesAll)),
        }
    }

    /// Repeats a question that got no answer. Returns the first verdict, or the last error.
    async fn patiently<T, F: Future<Output = Result<T, Finding>>>(
        &self,
        ask: impl Fn() -> F,
    ) -> Result<T, Finding> {
        let mut backoff = Backoff::new(
            std::time::Duration::from_millis(50),
            std::time::Duration::from_secs(2),
        );
        let mut last = ask().await;
        for _ in 1..ATTEMPTS {
            if !matches!(last, Err(Finding::Unanswered(_))) {
                break;
            }
            backoff.pause(&SystemEnvironment).await;
            last = ask().await;
        }
        last
    }

    /// Creates an object that nobody else creates, whatever the store reports.
    async fn create(&self, key: &str) -> Result<Version, Finding> {
        let body = body("first");
        self.settle(key, &body, || async {
            self.store.compare_and_set(key, None, body.clone()).await
        })
        .await
    }

    async fn replace(&self, key: &str, version: &Version) -> Result<Version, Finding> {
        let body = body("replaced");
        self.settle(key, &body, || async {
            self.store.compare_and_set(key, Some(version), body.clone()).await
        })
        .await
    }

    /// Writes until the key holds the body, and returns its version.
    async fn settle<W: Future<Output = Cas>>(
        &self,
        key: &str,
        body: &Bytes,
        write: impl Fn() -> W,
    ) -> Result<Version, Finding> {
        self.patiently(|| async {
            let unknown = match write().await {
                Cas::Committed(version) => return Ok(version),
                Cas::Mismatch => None,
                Cas::Unknown(error) => Some(error),
            };
            match (self.store.get(key).await?, unknown) {
                (Some(found), _) if found.bytes == *body => Ok(found.version),
                (_, Some(error)) => Err(error.into()),
                (_, None) => Err(Finding::Violation(Violation::RefusesAll)),
            }
        })
        .await
    }

    fn key(&self, name: &str) -> String {
        format!("{}/{name}", self.folder)
    }

    async fn clean_up(&self) {
        let tidy = async {
            for object in self.store.list(&self.folder).await? {
                self.store.delete(&object.key).await?;
            }
            Ok::<_, Error>(())
        };
        if let Err(error) = tidy.await {
            tracing::warn!(%error, "could not delete the self-test's objects; they are safe to delete by hand");
        }
    }
}

/// Bodies never repeat, so that no two states of an object have the same version.
fn body(name: &str) -> Bytes {
    Bytes::from(format!("{name} {}", SystemEnvironment.uuid()))
}

//! Keeps this process in the list of its consumer's members, and follows the list. [`crate::division`] decides. A list that
//! cannot be read or written never ends or delays the work: then free shards are taken as if there were no list.

use crate::division::Division;
use crate::metrics::Metrics;
use millpond_manifest::cas::{self, Object, Swap};
use millpond_manifest::{FormatError, Members, layout};
use millpond_runtime::Environment;
use millpond_storage::{Fetched, Store, Version};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tracing::{info, warn};
use uuid::Uuid;

/// The time that a process spends at most to leave the list when it ends.
const LEAVE_PATIENCE: Duration = Duration::from_secs(5);

/// Attempts to write the list in one round: others write it too.
const ATTEMPTS: usize = 5;

/// The list as it was read.
struct List {
    members: Members,
    /// The version to replace. `None`: there is no list.
    version: Option<Version>,
}

/// A process of a consumer, among its other processes.
pub(crate) struct Membership {
    pub(crate) store: Store,
    pub(crate) environment: Arc<dyn Environment>,
    pub(crate) metrics: Metrics,
    pub(crate) buffer_id: Uuid,
    pub(crate) key: String,
    pub(crate) instance: String,
    pub(crate) lease: Duration,
    division: Mutex<Division>,
    /// Wakes those who wait for a change of the division, in the order in which they began to wait.
    changed: Notify,
    /// Asks for a look at the number of shards.
    pub(crate) growth_wanted: Arc<Notify>,
}

impl Membership {
    pub(crate) fn new(
        store: Store,
        environment: Arc<dyn Environment>,
        metrics: Metrics,
        buffer_id: Uuid,
        (consumer, instance): (&str, &str),
        lease: Duration,
    ) -> Membership {
        Membership {
            store,
            environment,
            metrics,
            buffer_id,
            key: layout::members(consumer),
            instance: instance.to_owned(),
            lease,
            division: Mutex::new(Division::new(instance, lease)),
            changed: Notify::new(),
            growth_wanted: Arc::default(),
        }
    }

    /// The division. Nobody holds it across a wait.
    pub(crate) fn division(&self) -> MutexGuard<'_, Division> {
        self.division.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn now(&self) -> Duration {
        self.environment.uptime()
    }

    pub(crate) fn set_shards(&self, shards: u32) {
        self.division().set_shards(shards, self.now());
        self.changed.notify_waiters();
    }

    /// Waits for a change of the division, at most so long.
    pub(crate) async fn changes_within(&self, most: Duration) {
        // A wait that ends without a change is as good.
        let _ = tokio::time::timeout(most, self.changed.notified()).await;
    }

    /// Waits until a shard of this process is another member's. Returns that member.
    pub(crate) async fn gives(&self, shard: u32) -> String {
        loop {
            let to = self.division().gives(shard, self.now()).map(str::to_owned);
            if let Some(to) = to {
                return to;
            }
            self.changes_within(self.lease / 3).await;
        }
    }

    /// Gives a sign of life every third of a lease, as long as there are shards to divide.
    pub(crate) async fn run(&self) -> Infallible {
        let mut troubled = false;
        loop {
            if !self.division().is_needed() {
                self.changes_within(Duration::MAX).await;
                continue;
            }
            let began = self.now();
            match self.round().await {
                Ok(()) => {
                    if std::mem::take(&mut troubled) {
                        info!("the list of members is readable and writable again");
                    }
                }
                Err(reason) if !std::mem::replace(&mut troubled, true) => warn!(
                    "cannot keep {}: {reason}: until then this process gives no shard away, and takes one that was free for a lease",
                    self.key
                ),
                Err(_) => {}
            }
            let took = self.now().saturating_sub(began);
            tokio::time::sleep((self.lease / 3).saturating_sub(took)).await;
        }
    }

    /// One sign of life, and a look at those of the others.
    async fn round(&self) -> Result<(), String> {
        let mut seen = None;
        for _ in 0..ATTEMPTS {
            let List { members, version } = self.read().await?;
            let gone = self.division().gone(self.now());
            let next = members.beat(&self.instance, gone.iter().map(String::as_str));
            if !next.beats.contains_key(&self.instance) {
                self.observe(&members);
                return Err("the list is full, or the name of this process is too long".to_owned());
            }
            match cas::swap(
                &self.store,
                &self.key,
                version.as_ref(),
                next.stamped(self.environment.random()),
            )
            .await
            {
                Swap::Committed(written) => {
                    self.observe(&written.state);
                    return Ok(());
                }
                Swap::Mismatch => seen = Some(members),
                Swap::Unknown(error) => {
                    // The outcome of the write does not affect what was read.
                    self.observe(&members);
                    return Err(error.to_string());
                }
            }
            let pause = self.lease.mul_f64(self.environment.fraction() / 100.0);
            tokio::time::sleep(pause).await;
        }
        // The others live, whoever was first.
        seen.iter().for_each(|members| self.observe(members));
        Err("another member was first, each time".to_owned())
    }

    /// Looks at the list between two signs of life.
    pub(crate) async fn look(&self) {
        // The next sign of life reports a list that cannot be read.
        if let Ok(List {
            members,
            version: Some(_),
        }) = self.read().await
        {
            self.observe(&members);
        }
    }

    /// Reads the list. Without one, or with bytes that nobody can read, it is empty, and the next write replaces exactly these bytes.
    async fn read(&self) -> Result<List, String> {
        let found = self.store.get_at_most(&self.key, None, Members::BYTES_MAX).await;
        let (version, decoded) = match found.map_err(|error| error.to_string())? {
            // No version was known.
            Fetched::Absent | Fetched::Unchanged => (None, Ok(Members::new(self.buffer_id))),
            Fetched::TooLarge { version, .. } => (Some(version), Ok(Members::new(self.buffer_id))),
            Fetched::Changed(found) => (Some(found.version), Members::decode(&found.bytes)),
        };
        let members = match decoded {
            Ok(members) if members.buffer_id != self.buffer_id => {
                return Err(format!(
                    "it belongs to another buffer, {}: delete it",
                    members.buffer_id
                ));
            }
            Ok(members) => members,
            // Processes of a newer program keep it.
            Err(newer @ FormatError::Version { .. }) => {
                return Err(format!("{newer}, or delete the list if no newer one runs"));
            }
            Err(wrong) => {
                warn!("{}: {wrong}: it is written anew", self.key);
                Members::new(self.buffer_id)
            }
        };
        Ok(List { members, version })
    }

    fn observe(&self, members: &Members) {
        let now = self.now();
        let mut division = self.division();
        let is_new = division.observe(members, now);
        let living = i64::try_from(division.living(now).len()).unwrap_or(i64::MAX);
        drop(division);
        self.metrics.members.set(living);
        // Those who wait look at the list themselves: a look that shows nothing new must not wake the others.
        if is_new {
            self.changed.notify_waiters();
        }
    }

    /// Takes this process off the list, so that the others need not wait until it is silent.
    pub(crate) async fn leave(&self) {
        if !self.division().is_needed() {
            return;
        }
        let leave = async {
            for _ in 0..ATTEMPTS {
                let Ok(List { members, version }) = self.read().await else {
                    return;
                };
                if !members.beats.contains_key(&self.instance) {
                    return;
                }
                let next = members.without(&self.instance).stamped(self.environment.random());
                let Swap::Mismatch = cas::swap(&self.store, &self.key, version.as_ref(), next).await else {
                    return;
                };
            }
        };
        // The others notice it anyway.
        let _ = tokio::time::timeout(LEAVE_PATIENCE, leave).await;
    }
}

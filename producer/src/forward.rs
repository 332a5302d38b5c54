//! Asks the leader to commit this producer's next segments. Whatever the leader answers or does not, the number belongs to
//! these records from then on, and the table shows what became of it.

use std::time::Duration;

use futures::future::join_all;
use millpond_manifest::{ClientClaim, NewSegment};
use tokio::time::{Instant, timeout};

use crate::claims::claims_of;
use crate::clients::CLIENTS_FORWARD_MAX;
use crate::committer::Committer;
use crate::election::Failure;
use crate::peers::{LeaderAddress, PeerAnswer, PeerCommit, PeerRefusal, PeerRequest, Records};
use crate::segment::{EncodedWork, UploadedWork};

/// The maximum wait for a leader that shows signs of life.
const ASK_MAX: Duration = Duration::from_secs(30);

/// Segments that are next in order, uploaded or not.
#[derive(Default)]
pub(crate) struct Batch(Vec<Item>);

enum Item {
    Kept(EncodedWork),
    Uploaded(UploadedWork),
}

impl Batch {
    /// Segments that are uploaded.
    fn of(uploaded: Vec<UploadedWork>) -> Batch {
        Batch(uploaded.into_iter().map(Item::Uploaded).collect())
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn push_kept(&mut self, work: EncodedWork) {
        self.0.push(Item::Kept(work));
    }

    pub(crate) fn push_uploaded(&mut self, uploaded: UploadedWork) {
        self.0.push(Item::Uploaded(uploaded));
    }

    /// The compressed bytes if nothing is uploaded.
    fn kept_bytes(&self) -> Option<u64> {
        let size = |item: &Item| match item {
            Item::Kept(work) => Some(work.encoded.size),
            Item::Uploaded(_) => None,
        };
        self.0.iter().map(size).sum()
    }

    /// The segments in their order, all uploaded with `upload`.
    pub(crate) async fn uploaded<F>(self, upload: impl Fn(EncodedWork) -> F) -> Vec<UploadedWork>
    where
        F: Future<Output = UploadedWork>,
    {
        let upload = &upload;
        let all = self.0.into_iter().map(|item| async move {
            match item {
                Item::Kept(work) => upload(work).await,
                Item::Uploaded(uploaded) => uploaded,
            }
        });
        join_all(all).await
    }

    /// Returns true if a request has room for the numbered requests of another segment.
    pub(crate) fn has_room_for(&self, work: &EncodedWork) -> bool {
        let numbered = self.works().map(|work| work.clients.len()).sum::<usize>();
        numbered + work.clients.len() <= CLIENTS_FORWARD_MAX
    }

    fn works(&self) -> impl Iterator<Item = &EncodedWork> {
        self.0.iter().map(|item| match item {
            Item::Kept(work) | Item::Uploaded(UploadedWork { work, .. }) => work,
        })
    }

    fn into_works(self) -> impl Iterator<Item = EncodedWork> {
        self.0.into_iter().map(|item| match item {
            Item::Kept(work) | Item::Uploaded(UploadedWork { work, .. }) => work,
        })
    }

    /// What to send to the leader. `None`: it has to be uploaded first.
    fn records(&self, forward_below: u64) -> Option<Records> {
        let kept = |item: &Item| match item {
            Item::Kept(work) => Some(work.own.clone()),
            Item::Uploaded(_) => None,
        };
        let uploaded = |item: &Item| match item {
            Item::Kept(_) => None,
            Item::Uploaded(uploaded) => Some(uploaded.describe()),
        };
        if self.kept_bytes().is_some_and(|bytes| bytes < forward_below) {
            let blocks: Option<Vec<_>> = self.0.iter().map(kept).collect();
            return blocks.map(|blocks| Records::Blocks(blocks.into_iter().flatten().collect()));
        }
        let segments: Option<Vec<NewSegment>> = self.0.iter().map(uploaded).collect();
        segments.map(Records::Segments)
    }

    /// The numbered requests, for these records.
    fn clients(&self, records: &Records) -> Vec<ClientClaim> {
        let mut clients = claims_of(self.works());
        if let Records::Blocks(_) = records {
            // The leader puts all blocks into one segment.
            clients.iter_mut().for_each(|claim| claim.segment = 0);
        }
        clients
    }
}

/// A leader, and the term that this producer knows it by.
pub(crate) struct Asked {
    address: LeaderAddress,
    term: u64,
}

impl Committer {
    /// The leader to ask for the next commit.
    pub(crate) fn leader_to_ask(&self) -> Option<Asked> {
        self.peering.as_ref()?;
        let leader = self.election.follows(self.commits.producer(), self.elapsed())?;
        let certificate = self.lead.certificate(leader.producer)?;
        Some(Asked {
            address: LeaderAddress {
                address: leader.address.clone(),
                certificate,
            },
            term: leader.term,
        })
    }

    /// Sends a batch to the leader and waits for the answer. Returns the batch unless it is in the log.
    pub(crate) async fn forward(&mut self, leader: Asked, batch: Batch) -> Option<Batch> {
        let below = self.peering.as_ref().map_or(0, |peering| peering.forward_below);
        let (batch, records) = match batch.records(below) {
            Some(records) => (batch, Some(records)),
            None => {
                let batch = Batch::of(self.upload_all(batch).await);
                let records = batch.records(below);
                (batch, records)
            }
        };
        let Some(records) = records else {
            return Some(batch);
        };
        let is_appended = matches!(records, Records::Blocks(_));
        let clients = batch.clients(&records);
        match self.ask(&leader, records, clients).await {
            Some(commit) => {
                self.landed_elsewhere(batch, commit.first_sequence, is_appended);
                None
            }
            None => Some(batch),
        }
    }

    /// Asks the leader to commit these records under the next number. Returns its answer if they are in the log. Otherwise they
    /// may or may not be, now or later.
    pub(crate) async fn ask(
        &mut self,
        leader: &Asked,
        records: Records,
        clients: Vec<ClientClaim>,
    ) -> Option<PeerCommit> {
        let peering = self.peering.clone()?;
        let number = self.commits.forward()?;
        let is_numbered = !clients.is_empty();
        let request = PeerRequest {
            producer: self.commits.producer(),
            number,
            records,
            clients,
        };
        let answer = timeout(ASK_MAX, peering.peers.ask(&leader.address, request)).await;
        let failure = match &answer {
            Ok(Err(_)) => Failure::Unreachable,
            // Pings would have ended a request to a leader that stands still.
            _ => Failure::NotServed,
        };
        let (kind, reason) = match answer {
            Ok(Ok(PeerAnswer::Committed(commit))) if self.commits.landed_elsewhere(number) => {
                let interval = commit.closes.map_or(Duration::ZERO, |closes| closes.every);
                self.election.served(leader.term, interval);
                self.lead.keep_rhythm(commit.closes, Instant::now());
                return Some(commit);
            }
            Ok(Ok(PeerAnswer::Committed(_))) => ("stale", "it answered for another number".to_owned()),
            Ok(Ok(PeerAnswer::Refused(refusal @ (PeerRefusal::Client | PeerRefusal::Unnumbered))))
                if is_numbered =>
            {
                self.refused_for_clients(leader, &refusal);
                return None;
            }
            Ok(Ok(PeerAnswer::Refused(refusal))) => {
                if refusal == PeerRefusal::Leaving {
                    self.election.is_leaving(leader.term);
                }
                (kind(&refusal), refusal.to_string())
            }
            Ok(Err(reason)) => ("unreachable", reason),
            Err(_) => ("unreachable", format!("no answer for {} s", ASK_MAX.as_secs())),
        };
        self.election.failed(leader.term, failure, self.elapsed());
        // Its answer may say that the known manifest is old.
        self.commits.doubt_known();
        self.lead.follow(None, false);
        self.upload.metrics.fallback(kind);
        let address = &leader.address.address;
        tracing::warn!("the leader at {address} did not commit: {reason}; committing without it");
        None
    }

    /// Handles a refusal of a request for its clients, which is no failure of the leader.
    fn refused_for_clients(&mut self, leader: &Asked, refusal: &PeerRefusal) {
        self.election.lives(leader.term);
        // The leader has read a state that refuses the client, or has one of others.
        self.commits.doubt_known();
        self.upload.metrics.fallback(kind(refusal));
        let address = &leader.address.address;
        if *refusal == PeerRefusal::Unnumbered {
            self.unnumbered_term = Some(leader.term);
            self.election.knows_no_numbers(leader.term);
            tracing::info!(
                "the leader at {address} does not know numbered requests: committing them without it"
            );
        } else {
            self.keeps_group = true;
            tracing::debug!("the leader at {address} did not commit: {refusal}; committing without it");
        }
    }

    fn landed_elsewhere(&self, batch: Batch, first_sequence: u64, is_appended: bool) {
        let metrics = &self.upload.metrics;
        for (at, work) in (0_u64..).zip(batch.into_works()) {
            if is_appended {
                metrics.appended_bytes.inc_by(work.encoded.size);
                self.answer(work, first_sequence);
            } else {
                metrics.delegated_bytes.inc_by(work.encoded.size);
                self.answer_uploaded(work, first_sequence + at);
            }
        }
    }
}

/// Why a leader did not commit: the labels of the metric.
pub(crate) const REASONS: [&str; 11] = [
    "unreachable",
    "stale",
    "not_leading",
    "leaving",
    "over_budget",
    "held_up",
    "busy",
    "not_committed",
    "client",
    "unnumbered",
    "invalid",
];

/// The label of a refusal.
fn kind(refusal: &PeerRefusal) -> &'static str {
    match refusal {
        PeerRefusal::NotLeading => "not_leading",
        PeerRefusal::Leaving => "leaving",
        PeerRefusal::OverBudget => "over_budget",
        PeerRefusal::HeldUp(_) => "held_up",
        PeerRefusal::Busy => "busy",
        PeerRefusal::NotCommitted(_) => "not_committed",
        PeerRefusal::Client => "client",
        PeerRefusal::Unnumbered => "unnumbered",
        PeerRefusal::Invalid(_) => "invalid",
    }
}

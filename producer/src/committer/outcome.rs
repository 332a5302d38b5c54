//! What became of a group: tells callers and other producers, and prepares what is left of it for the next attempt.

use std::sync::Arc;

use super::Committer;
use crate::clients::{MessagePlace, kind};
use crate::commit::{Landed, Own, Renewal, Settlement};
use crate::group::{Described, Members, Removed, committed};
use crate::peers::{PeerRefusal, StreamBlock};
use crate::segment::{EncodedWork, UploadedWork};
use crate::{AppendError, Committed};
use millpond_manifest::ClientRefusal;
use millpond_runtime::blocking;

impl Committer {
    /// Handles the first segments of the group, which are in the log.
    pub(super) fn succeed(&mut self, members: &mut Members, landed: Landed) {
        self.upload.metrics.commit_segments.observe(landed.count as f64);
        let works = landed.count.min(members.works.len());
        let after = landed.first_sequence + works as u64;
        for (sequence, uploaded) in (landed.first_sequence..).zip(members.works.drain(..works)) {
            self.answer_uploaded(uploaded.work, sequence);
        }
        if landed.count > works {
            members.foreign_landed(after, &self.lead);
        }
    }

    /// Tells everybody who waits for a segment of this producer that it is in the log.
    pub(crate) fn answer_uploaded(&self, work: EncodedWork, sequence: u64) {
        let metrics = &self.upload.metrics;
        metrics.segments.inc();
        metrics.stored_bytes.inc_by(work.encoded.size);
        self.answer(work, sequence);
    }

    /// Tells everybody who waits for these records that they are in the log.
    pub(crate) fn answer(&self, work: EncodedWork, sequence: u64) {
        let shard = self.upload.shard;
        let metrics = &self.upload.metrics;
        work.trace.committed(shard, sequence);
        metrics.segments_uncommitted.dec();
        for StreamBlock { block, .. } in &work.own {
            metrics.blocks.inc();
            metrics.messages.inc_by(block.messages);
            metrics.records.inc_by(block.records);
            metrics.raw_bytes.inc_by(block.raw_len);
        }
        let new = Committed {
            shard,
            sequence,
            is_repeated: false,
        };
        for waiter in work.waiters {
            // The caller may have gone away.
            let _ = waiter.send(Ok(new));
        }
        for client in work.clients {
            client.ticket.answer(&Ok(new));
        }
        for guest in work.guests {
            guest.ticket.answer(&committed(sequence, &self.lead));
        }
    }

    /// Handles what the table shows about the group.
    pub(super) async fn settle(
        &mut self,
        members: &mut Members,
        described: &Described,
        settlement: Settlement,
    ) {
        let gone = self.answer_clients(members, described, settlement.clients);
        let changed = members.settle_held(described, &settlement.held, &self.lead);
        let own = described.group().own;
        let (landed, first_sequence, segments) = match settlement.own {
            Some(Own::Landed(landed)) => {
                if let Some(manifest) = self.commits.manifest() {
                    self.turns
                        .committed(manifest, self.commits.producer(), self.began.elapsed());
                }
                (landed.count, landed.first_sequence, landed.count as u64)
            }
            Some(Own::Elsewhere {
                first_sequence,
                count,
            }) => (own, first_sequence, count),
            None => (0, 0, 0),
        };
        let is_elsewhere = matches!(settlement.own, Some(Own::Elsewhere { .. }));
        let works = std::mem::take(&mut members.works);
        for (at, ((mut uploaded, changed), gone)) in works.into_iter().zip(changed).zip(gone).enumerate() {
            if at < landed {
                if is_elsewhere {
                    // Another producer's segments have this producer's records, and nothing else of the group.
                    uploaded.work.guests.clear();
                }
                // The leader has put the blocks of several segments into one.
                let at = if segments == landed as u64 { at as u64 } else { 0 };
                self.answer_uploaded(uploaded.work, first_sequence + at);
            } else if !gone.is_empty() {
                if let Some(work) = self.without(uploaded.work, gone).await {
                    members.works.extend(self.rebuild(work).await);
                }
            } else if changed {
                members.works.extend(self.rebuild(uploaded.work).await);
            } else {
                members.works.push(uploaded);
            }
        }
    }

    /// Answers requests of clients that the log has already or never takes. Returns the places of their records in each work.
    fn answer_clients(
        &self,
        members: &mut Members,
        described: &Described,
        settled: Vec<(usize, ClientRefusal)>,
    ) -> Vec<Vec<MessagePlace>> {
        let shard = self.upload.shard;
        let mut settled: Vec<((usize, usize), ClientRefusal)> = settled
            .into_iter()
            .filter_map(|(place, refusal)| Some((described.client(place)?, refusal)))
            .collect();
        // From the last on, so that the places of the others stay.
        settled.sort_by_key(|(place, _)| std::cmp::Reverse(*place));
        let mut gone: Vec<Vec<MessagePlace>> = vec![Vec::new(); members.works.len()];
        for ((work, place), refusal) in settled {
            let client = members.works[work].work.clients.remove(place);
            gone[work].push(client.at);
            self.upload.metrics.client_settled(kind(&refusal));
            let outcome = match refusal {
                ClientRefusal::Repeated { last_sequence } => Ok(Committed {
                    shard,
                    sequence: last_sequence,
                    is_repeated: true,
                }),
                refusal => Err(AppendError::Client(refusal)),
            };
            client.ticket.answer(&outcome);
        }
        gone
    }

    /// Takes messages out of a segment's blocks.
    async fn without(&self, mut work: EncodedWork, gone: Vec<MessagePlace>) -> Option<EncodedWork> {
        let level = self.compression_level;
        let stripped = blocking::run(&*self.upload.environment, move || {
            let result = work.strip(&gone, level);
            (work, result)
        });
        // Callers of work that is lost with its thread hear that their records were given up.
        let (work, result) = stripped.await.ok()?;
        let Err(reason) = result else { return Some(work) };
        tracing::error!("a segment could not be built anew: {reason}");
        self.upload.metrics.segments_uncommitted.dec();
        work.fail(&AppendError::NotCommitted(reason.into()));
        None
    }

    /// Builds and uploads a segment anew, without the blocks of claims that left it.
    async fn rebuild(&self, work: EncodedWork) -> Option<UploadedWork> {
        self.upload.metrics.segments_uncommitted.dec();
        let work = work.rebuilt()?;
        self.upload.metrics.segments_uncommitted.inc();
        Some(self.upload.put(work, 0).await)
    }

    /// Uploads segments again under names above the orphan floor: the objects under the present names may be deleted at
    /// any time. Others do that for their segments.
    pub(super) async fn upload_again(&mut self, members: &mut Members, places: &[usize], floor_ms: u64) {
        tracing::warn!(
            "{} segments are named before the orphan floor {floor_ms}: uploading again",
            places.len()
        );
        for foreign in members.remove_foreign(places) {
            let reason = format!("segments are named before the orphan floor {floor_ms}");
            foreign.ticket.answer(&Err(PeerRefusal::NotCommitted(reason)));
        }
        let works = members.works.len();
        for &place in places.iter().filter(|place| **place < works) {
            let uploaded = members.works.remove(place);
            self.upload.metrics.reuploads.inc();
            let again = self.upload.put(uploaded.work, floor_ms).await;
            members.works.insert(place, again);
        }
    }

    /// Takes a segment that the manifest refuses out of the group and tells its callers. If others have blocks in it, they
    /// are the first suspects: it is tried again without them.
    pub(super) async fn drop_invalid(&self, members: &mut Members, place: usize, reason: String) {
        let uploaded = match members.remove(place) {
            Removed::Work(uploaded) => *uploaded,
            Removed::Foreign(foreign) => {
                return foreign.ticket.answer(&Err(PeerRefusal::Invalid(reason)));
            }
            Removed::Nothing => return,
        };
        let UploadedWork { name, mut work, .. } = uploaded;
        if !work.guests.is_empty() {
            for guest in work.guests.drain(..) {
                let reason = reason.clone();
                guest.ticket.answer(&Err(PeerRefusal::Invalid(reason)));
            }
            // In its place: a producer's records stay in order.
            if let Some(again) = self.rebuild(work).await {
                members.works.insert(place, again);
            }
            return;
        }
        tracing::error!("segment {name} cannot be committed: {reason}");
        self.upload.metrics.segments_uncommitted.dec();
        work.trace.fail(&reason);
        work.fail(&AppendError::NotCommitted(reason.into()));
    }

    /// Continues under a new id. If the outcome is in doubt, tells the callers of the group that it is unknown.
    pub(super) fn go_on_anew(&self, members: &mut Members, renewal: Renewal) {
        let metrics = &self.upload.metrics;
        let reason = renewal.reason;
        metrics.expired.inc();
        if renewal.contradicted {
            tracing::error!("{reason}: was the buffer restored from a copy?");
        }
        if !renewal.in_doubt {
            tracing::warn!("going on under a new producer id: {reason}");
            return;
        }
        tracing::error!(
            "the outcome of a commit of {} segments is unknown: {reason}",
            members.len()
        );
        let error = AppendError::OutcomeUnknown(Arc::from(reason));
        for uploaded in members.works.drain(..) {
            metrics.segments_uncommitted.dec();
            uploaded.work.trace.fail(&error);
            uploaded.work.fail(&error);
        }
        // Others ask the table themselves.
        members.foreign.clear();
    }
}

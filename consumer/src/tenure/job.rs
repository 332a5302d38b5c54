//! Turns a planned batch into a job: its identity, the parts to fetch, and whether the sink may have some of its rows.

use super::Tenure;
use crate::rounds::LaterRounds;
use crate::schedule::Key;
use crate::sink::{Batch, BatchId};
use crate::trace::BatchTrace;
use crate::work::{Job, Wanted};
use crate::write::Term;
use millpond_manifest::Log;
use tracing::warn;

impl Tenure<'_> {
    /// Returns the batch's identity and the parts to fetch.
    pub(super) fn job(&self, log: &Log, key: &Key) -> Option<Job> {
        let (stream, plan) = key;
        let claim = &self.shard.claim;
        let index = log.stream_index(stream)?;
        let id = self.batch_id(key);
        let within = log
            .parts(index, plan.low)
            .take_while(|(sequence, ..)| *sequence <= plan.high);
        let wanted = within.filter(|(sequence, entry, part)| {
            let skipped = self.durable.state.is_skipped(stream, *sequence);
            if skipped {
                warn!(
                    shard = claim.shard,
                    stream,
                    sequence,
                    "{} records of segment {} are left out, as an operator requested",
                    part.records,
                    entry.segment
                );
            }
            !skipped
        });
        let wanted = wanted.map(|(sequence, entry, part)| Wanted::of(claim.shard, sequence, entry, part));
        let wanted: Vec<Wanted> = wanted.collect();
        // After a clean release too: an earlier owner may send what it planned ahead of the log.
        let inherited = self.schedule.is_inherited(key);
        let in_doubt = inherited || self.durable.state.may_have_sent(*plan) || self.shard.repair.is_some();
        let parts = wanted.iter().map(|wanted| (&wanted.part, wanted.length));
        let trace = BatchTrace::begin(&id, parts, in_doubt);
        let encoding = log.streams[index as usize].encoding;
        let batch = Batch {
            id,
            encoding,
            parts: Vec::new(),
        };
        Some(Job {
            wanted,
            batch,
            policy: self.durable.state.policy.clone(),
            in_doubt,
            refused: self.durable.state.refused(stream, *plan).cloned(),
            refusals: self.refusals.clone(),
            trace,
            term: Term {
                later_rounds: LaterRounds {
                    batch: key.clone(),
                    ..self.term.later_rounds.clone()
                },
                other_tokens: self.durable.state.generation > 0 && self.durable.state.may_have_sent(*plan),
                ..self.term.clone()
            },
            unique: None,
            keeps_rows: true,
        })
    }

    fn batch_id(&self, (stream, plan): &Key) -> BatchId {
        let (claim, cursor) = (&self.shard.claim, &self.durable.state);
        BatchId {
            buffer_id: claim.buffer_id,
            shard: claim.shard,
            stream: stream.clone(),
            consumer: claim.consumer.clone(),
            cursor: claim.cursor.clone(),
            generation: cursor.generation,
            sink: cursor.policy.sink.clone(),
            low: plan.low,
            high: plan.high,
            schema_version: cursor.policy.schema_version,
        }
    }
}

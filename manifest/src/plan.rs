//! Forms batches from a stream's committed segments. Pure: two owners of a cursor with the same policy, plans and log
//! get the same batches.

/// Decides how batches are formed and which bytes are sent under a token. It is pinned while batches may be in doubt: a
/// successor must cut the same batches into the same chunks.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct BatchingPolicy {
    /// Target number of records in a batch. A segment with half of it is a batch by itself.
    pub batch_records: u64,
    /// Target raw bytes of a batch. A segment with half of it is a batch by itself.
    pub batch_bytes: u64,
    /// Maximum rows in a chunk.
    pub chunk_rows: u64,
    /// Maximum bytes in a chunk, uncompressed in the sink's format.
    pub chunk_bytes: u64,
    /// Maximum partitions of the sink's table in a chunk's rows.
    pub max_partitions_per_chunk: u32,
    /// Maximum batches of a stream in flight past the acknowledged position.
    pub max_in_flight: u32,
    /// The sink's name, part of every batch's identity.
    pub sink: String,
    /// The version of the sink's mapping from messages to rows, part of every batch's identity.
    pub schema_version: u32,
}

impl BatchingPolicy {
    /// Returns an error for the first invalid setting.
    pub fn check(&self) -> Result<(), String> {
        let limits = [
            ("batch_records", self.batch_records),
            ("batch_bytes", self.batch_bytes),
            ("chunk_rows", self.chunk_rows),
            ("chunk_bytes", self.chunk_bytes),
            ("max_partitions_per_chunk", self.max_partitions_per_chunk.into()),
            ("max_in_flight", self.max_in_flight.into()),
        ];
        match limits.into_iter().find(|(_, value)| *value == 0) {
            Some((name, _)) => Err(format!("{name} is 0: it must be at least 1")),
            None => Ok(()),
        }
    }
}

/// A contiguous range of sequences that one batch covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
pub struct Plan {
    /// First sequence.
    pub low: u64,
    /// Last sequence, inclusive.
    pub high: u64,
}

/// The size of a stream's part of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// Records in it.
    pub records: u64,
    /// Bytes in it, uncompressed.
    pub raw_bytes: u64,
}

/// Why a batch has its boundaries. Only planned batches may be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlanStatus {
    /// The cursor has this plan.
    Planned,
    /// A large segment, or small neighbours that are full or precede a large segment: nothing more can join.
    Full,
    /// Small neighbours at the end of the log: more could still join.
    Open,
}

/// A candidate for a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// Its sequences.
    pub plan: Plan,
    /// Why it has these sequences.
    pub status: PlanStatus,
    /// The total over all its parts.
    pub size: Size,
}

impl BatchingPolicy {
    /// Returns true if a part is a batch by itself: at least half the target size of a batch.
    pub fn is_large(&self, size: Size) -> bool {
        size.records.saturating_mul(2) >= self.batch_records
            || size.raw_bytes.saturating_mul(2) >= self.batch_bytes
    }

    fn is_full(&self, size: Size) -> bool {
        size.records >= self.batch_records || size.raw_bytes >= self.batch_bytes
    }
}

/// Cuts a stream's parts into batches, in order from the acknowledged position on. `planned` are the cursor's plans.
/// Returns at most `limit` candidates.
pub fn candidates(
    policy: &BatchingPolicy,
    planned: impl IntoIterator<Item = Plan>,
    parts: impl IntoIterator<Item = (u64, Size)>,
    limit: usize,
) -> Vec<Candidate> {
    let mut planned = planned.into_iter().peekable();
    let mut out: Vec<Candidate> = Vec::new();
    // True if the last of `out` is a group of small parts with room for another one.
    let mut group_open = false;
    for (sequence, size) in parts {
        while planned.next_if(|plan| plan.high < sequence).is_some() {}
        let within = planned.peek().copied().filter(|plan| plan.low <= sequence);
        if let Some(plan) = within {
            close(&mut out, &mut group_open);
            match out.last_mut().filter(|last| last.plan == plan) {
                Some(last) => last.size = add(last.size, size),
                None => out.push(Candidate {
                    plan,
                    status: PlanStatus::Planned,
                    size,
                }),
            }
        } else if policy.is_large(size) {
            close(&mut out, &mut group_open);
            let plan = Plan {
                low: sequence,
                high: sequence,
            };
            out.push(Candidate {
                plan,
                status: PlanStatus::Full,
                size,
            });
        } else {
            match out.last_mut().filter(|_| group_open) {
                Some(group) => {
                    group.plan.high = sequence;
                    group.size = add(group.size, size);
                }
                None => {
                    let plan = Plan {
                        low: sequence,
                        high: sequence,
                    };
                    out.push(Candidate {
                        plan,
                        status: PlanStatus::Open,
                        size,
                    });
                    group_open = true;
                }
            }
            if out.last().is_some_and(|group| policy.is_full(group.size)) {
                close(&mut out, &mut group_open);
            }
        }
        if out.len() > limit {
            out.truncate(limit);
            break;
        }
    }
    out
}

fn close(out: &mut [Candidate], group_open: &mut bool) {
    if std::mem::take(group_open)
        && let Some(group) = out.last_mut()
    {
        group.status = PlanStatus::Full;
    }
}

fn add(a: Size, b: Size) -> Size {
    Size {
        records: a.records + b.records,
        raw_bytes: a.raw_bytes + b.raw_bytes,
    }
}

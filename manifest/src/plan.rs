//! Forms batches from a stream's committed segments. Pure: two owners of a cursor with the same policy, plans and log
//! get the same batches.

use crate::cursor::{BatchingPolicy, Plan};

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

//! Requests of clients that number them. A producer holds each number once, so that a copy of a request that arrives
//! while the first one waits gets the answer of that one. The manifest's table shows the numbers that are in the log.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millpond_manifest::{ClientClaim, ClientId, ClientRefusal, Numbers, SourcePartition};

use crate::segment::{Waiter, fail};
use crate::{AppendError, Committed};

/// The memory of a held request beside its payload and its waiter, in bytes.
pub(crate) const CLIENT_BYTES: usize = 256;

/// The maximum number of numbered requests that another producer commits under one number.
pub(crate) const CLIENTS_FORWARD_MAX: usize = 4_096;

/// A client's number for an append.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Numbered {
    /// The client and its stream, or an idempotency key.
    pub client: ClientId,
    /// The numbers of the request.
    pub numbers: Numbers,
    /// CRC32C of the message, to recognise a number that is used for other content; 0: do not compare.
    pub checksum: u32,
    /// The partition that a bridge reads. Only [`Numbers::Offsets`] have one.
    pub source: Option<Arc<SourcePartition>>,
}

/// The requests that a producer holds. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Clients(Arc<Mutex<HashMap<(ClientId, Numbers), Held>>>);

#[derive(Debug)]
struct Held {
    checksum: u32,
    first: Waiter,
    copies: Vec<Waiter>,
}

/// The place of a message within the blocks of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct MessagePlace {
    /// The index of the block.
    pub(crate) block: usize,
    /// The index of the message within the block.
    pub(crate) message: u64,
    pub(crate) records: u64,
}

/// The duty to answer for a client's number. Dropped without an answer, it says that the outcome is unknown: nobody knows
/// what became of a swap that was on its way.
#[derive(Debug)]
pub(crate) struct ClientTicket {
    clients: Clients,
    numbered: Numbered,
    /// The client may send the number again at once: a later ticket for it is not this one's to settle.
    is_answered: bool,
}

impl Clients {
    fn state(&self) -> MutexGuard<'_, HashMap<(ClientId, Numbers), Held>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Holds a number. `None`: this producer holds it already, and `waiter` gets the same answer.
    pub(crate) fn hold(&self, numbered: Numbered, waiter: Waiter) -> Option<ClientTicket> {
        let mut state = self.state();
        let key = (numbered.client, numbered.numbers);
        if let Some(held) = state.get_mut(&key) {
            if held.checksum == numbered.checksum {
                held.copies.retain(|waiter| !waiter.is_closed());
                held.copies.push(waiter);
            } else {
                fail(vec![waiter], &AppendError::Client(ClientRefusal::Reused));
            }
            return None;
        }
        let held = Held {
            checksum: numbered.checksum,
            first: waiter,
            copies: Vec::new(),
        };
        state.insert(key, held);
        drop(state);
        Some(ClientTicket {
            clients: self.clone(),
            numbered,
            is_answered: false,
        })
    }
}

impl ClientTicket {
    /// The claim of the request, whose records are in this segment of a commit.
    pub(crate) fn claim(&self, segment: usize) -> ClientClaim {
        let Numbered {
            client,
            numbers,
            checksum,
            ref source,
        } = self.numbered;
        ClientClaim {
            client,
            numbers,
            checksum,
            segment,
            source: source.clone(),
        }
    }

    /// Returns true if it is of a bridge.
    pub(crate) fn is_of_source(&self) -> bool {
        matches!(self.numbered.numbers, Numbers::Offsets { .. })
    }

    /// Tells everybody who sent the request.
    pub(crate) fn answer(mut self, outcome: &Result<Committed, AppendError>) {
        self.is_answered = true;
        self.settle(outcome);
    }

    fn settle(&self, outcome: &Result<Committed, AppendError>) {
        let key = (self.numbered.client, self.numbered.numbers);
        let Some(held) = self.clients.state().remove(&key) else {
            return;
        };
        // The log may have gained the missing number between the judgement of the first copy and the arrival of a later one.
        let for_copies = match outcome {
            Err(AppendError::Client(
                lacking @ (ClientRefusal::Gap { .. }
                | ClientRefusal::Unknown
                | ClientRefusal::Full
                | ClientRefusal::Position { .. }
                | ClientRefusal::SetAnew),
            )) => Err(AppendError::NotCommitted(lacking.to_string().into())),
            Ok(committed) => Ok(Committed {
                is_repeated: true,
                ..*committed
            }),
            other => other.clone(),
        };
        // The callers may have gone away.
        let _ = held.first.send(outcome.clone());
        for waiter in held.copies {
            let _ = waiter.send(for_copies.clone());
        }
    }
}

impl Drop for ClientTicket {
    fn drop(&mut self) {
        if self.is_answered {
            return;
        }
        self.settle(&Err(AppendError::OutcomeUnknown(
            "the records were given up".into(),
        )));
    }
}

/// The caller that waits for a message.
pub(crate) enum Caller {
    Waiter(Waiter),
    Client(ClientTicket),
}

impl Caller {
    pub(crate) fn fail(self, error: AppendError) {
        match self {
            Caller::Waiter(waiter) => fail(vec![waiter], &error),
            Caller::Client(ticket) => ticket.answer(&Err(error)),
        }
    }
}

/// A client's message in a segment.
#[derive(Debug)]
pub(crate) struct ClientMessage {
    pub(crate) ticket: ClientTicket,
    pub(crate) at: MessagePlace,
}

/// The label of a refusal in the metrics.
pub(crate) fn kind(refusal: &ClientRefusal) -> &'static str {
    match refusal {
        ClientRefusal::Repeated { .. } => "repeated",
        ClientRefusal::Reused => "reused",
        ClientRefusal::Gap { .. } => "gap",
        ClientRefusal::Unknown => "unknown",
        ClientRefusal::Fenced { .. } => "fenced",
        ClientRefusal::Overlaps => "overlaps",
        ClientRefusal::Full => "full",
        ClientRefusal::Position { .. } => "position",
        ClientRefusal::SetAnew => "set_anew",
        ClientRefusal::Invalid(_) => "invalid",
    }
}

/// The labels of all refusals.
pub(crate) const KINDS: [&str; 10] = [
    "repeated", "reused", "gap", "unknown", "fenced", "overlaps", "full", "position", "set_anew", "invalid",
];

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot;

    #[test]
    fn a_ticket_that_is_lost_with_its_task_leaves_the_outcome_open() {
        let clients = Clients::default();
        let numbered = Numbered {
            client: ClientId([7; 16]),
            numbers: Numbers::Counted { number: 1 },
            checksum: 1,
            source: None,
        };
        let (first, mut outcome) = oneshot::channel();
        let (copy, mut of_copy) = oneshot::channel();
        let ticket = clients.hold(numbered.clone(), first);
        assert!(clients.hold(numbered, copy).is_none());
        drop(ticket);
        for outcome in [&mut outcome, &mut of_copy] {
            let told = outcome.try_recv().unwrap();
            assert!(
                told.as_ref().is_err_and(|error| !error.has_no_side_effects()),
                "{told:?}"
            );
        }
        assert!(clients.state().is_empty());
    }
}

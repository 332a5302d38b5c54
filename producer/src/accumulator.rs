//! The accumulator: one task that collects messages into blocks and blocks into segments, and decides when a segment
//! closes. Messages are committed in the order in which it takes them. It never waits for the store.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::clients::{CLIENTS_FORWARD_MAX, Caller};
use crate::early_close::EarlyClose;
use crate::encoder::Encoders;
use crate::flow::Flow;
use crate::lead::{Guest, Lead};
use crate::metrics::Metrics;
use crate::segment::{DoneBlock, FillingSegment, FullBlock};
use crate::uploader::Uploaders;
use crate::{Append, Config};
use millpond_runtime::{Budget, Reservation};

/// An accepted message and its caller.
pub(crate) struct Accepted {
    pub(crate) append: Append,
    pub(crate) caller: Caller,
}

/// The maximum number of messages to take from the queue at once.
const TAKEN_MAX: usize = 64;

pub(crate) struct Accumulator {
    config: Config,
    budget: Budget,
    encoders: Encoders,
    uploaders: Uploaders,
    flow: Flow,
    early_close: EarlyClose,
    lead: Lead,
    metrics: Metrics,
    next_number: u64,
    open: Option<FillingSegment>,
    /// Closed segments that wait for encoders.
    closed: HashMap<u64, FillingSegment>,
    encoding: JoinSet<DoneBlock>,
    /// Streams that filled a block recently: their next block starts with a full-size buffer.
    busy: HashSet<Arc<str>>,
}

impl Accumulator {
    pub(crate) fn new(
        config: Config,
        budget: Budget,
        encoders: Encoders,
        uploaders: Uploaders,
        flow: Flow,
        lead: Lead,
        metrics: Metrics,
    ) -> Self {
        let early_close = EarlyClose::new(config.linger, flow.clone());
        Self {
            config,
            budget,
            encoders,
            uploaders,
            flow,
            early_close,
            lead,
            metrics,
            next_number: 0,
            open: None,
            closed: HashMap::new(),
            encoding: JoinSet::new(),
            busy: HashSet::new(),
        }
    }

    /// Runs until `closing`, or until nobody can append any more, and then until the uploaders have every accepted
    /// message.
    pub(crate) async fn run(
        mut self,
        mut messages: mpsc::Receiver<Accepted>,
        mut guests: mpsc::Receiver<(Guest, Reservation)>,
        closing: CancellationToken,
    ) {
        let mut taken = Vec::with_capacity(TAKEN_MAX);
        let mut accepting = true;
        while accepting || !self.encoding.is_empty() {
            let close_at = self.close_at();
            tokio::select! {
                biased;
                () = closing.cancelled(), if accepting && !messages.is_closed() => messages.close(),
                Some(done) = self.encoding.join_next(), if !self.encoding.is_empty() => match done {
                    Ok(done) => self.put(done),
                    // The task only waits. It fails only when the runtime shuts down, and this task with it.
                    Err(error) => return tracing::error!("an encoder's task broke off: {error}"),
                },
                () = sleep_until(close_at.unwrap_or_else(Instant::now)), if close_at.is_some() => self.close_due(&mut messages),
                Some((guest, reservation)) = guests.recv(), if accepting => self.take_in(guest, reservation),
                count = messages.recv_many(&mut taken, TAKEN_MAX), if accepting => {
                    taken.drain(..).for_each(|accepted| self.accept(accepted));
                    if count == 0 {
                        accepting = false;
                        // Whoever sent later guests commits for itself.
                        guests.close();
                        self.close_open();
                    }
                }
            }
        }
    }

    /// Returns the time to close the open segment.
    fn close_at(&self) -> Option<Instant> {
        let first_at = self.open.as_ref()?.first_at;
        let due = first_at + self.config.linger;
        let set_by_others = self.lead.close_at(first_at);
        Some(set_by_others.map_or_else(|| self.early_close.close_at(due), |at| due.min(at)))
    }

    /// Closes the open segment, unless a message or an answer has come meanwhile: then somebody may add to it.
    fn close_due(&mut self, messages: &mut mpsc::Receiver<Accepted>) {
        for _ in 0..TAKEN_MAX {
            let Ok(accepted) = messages.try_recv() else { break };
            self.accept(accepted);
        }
        if self.close_at().is_some_and(|at| at <= Instant::now()) {
            self.close(Duration::ZERO);
        }
    }

    fn accept(&mut self, accepted: Accepted) {
        let Accepted { append, caller } = accepted;
        self.flow.message();
        self.early_close.message(Instant::now());
        let (budget, number) = (&self.budget, self.next_number);
        let open = self
            .open
            .get_or_insert_with(|| FillingSegment::new(number, budget.nothing(), Instant::now()));
        self.next_number = open.number + 1;
        let full = self.busy.contains(&append.stream);
        let (encoders, block_bytes) = (&self.encoders, self.config.block_bytes);
        let blocks = open.append(append, caller, block_bytes, |base| encoders.builder(base, full));
        let too_large = open.raw_len >= self.config.segment_raw_bytes;
        blocks.into_iter().flatten().for_each(|block| self.encode(block));
        if too_large {
            self.close_open();
        }
    }

    /// Adds blocks of another producer to the open segment.
    fn take_in(&mut self, guest: Guest, reservation: Reservation) {
        let now = Instant::now();
        let (budget, number) = (&self.budget, self.next_number);
        let open = self
            .open
            .get_or_insert_with(|| FillingSegment::new(number, budget.nothing(), now));
        self.next_number = open.number + 1;
        let due = open.first_at + self.config.linger;
        self.lead.guest(now, due, self.config.linger);
        open.add_guest(guest, reservation);
        let is_full = open.compressed_len >= self.config.segment_bytes
            || open.raw_len >= self.config.segment_raw_bytes
            || open.clients_of_others() >= CLIENTS_FORWARD_MAX;
        if is_full {
            self.close_open();
        }
    }

    fn encode(&mut self, block: FullBlock) {
        self.encoding.spawn(block.encode(self.encoders.clone()));
    }

    fn put(&mut self, done: DoneBlock) {
        let number = done.segment;
        if let Some(open) = self.open.as_mut().filter(|open| open.number == number) {
            open.put(done);
            if open.compressed_len >= self.config.segment_bytes {
                self.close_open();
            }
            return;
        }
        if let Some(closed) = self.closed.get_mut(&number) {
            closed.put(done);
        }
        self.hand_over(number);
    }

    /// Closes the open segment before its linger ends: its commit may wait for others for the rest.
    fn close_open(&mut self) {
        if let Some(open) = &self.open {
            self.close(self.config.linger.saturating_sub(open.first_at.elapsed()));
        }
    }

    fn close(&mut self, linger_left: Duration) {
        let Some(mut open) = self.open.take() else { return };
        self.flow.segment_closed();
        self.early_close.closed(Instant::now());
        let filled_for = open.first_at.elapsed();
        self.metrics.linger_seconds.observe(filled_for.as_secs_f64());
        let number = open.number;
        let blocks = open.close(linger_left);
        blocks.into_iter().for_each(|block| self.encode(block));
        for (stream, filled) in open.streams() {
            if filled {
                self.busy.insert(Arc::clone(stream));
            } else {
                self.busy.remove(stream);
            }
        }
        self.closed.insert(number, open);
        self.hand_over(number);
    }

    /// Hands a closed segment to the uploaders once its last block is encoded.
    fn hand_over(&mut self, number: u64) {
        if self.closed.get(&number).is_none_or(FillingSegment::is_encoding) {
            return;
        }
        let finished = self.closed.remove(&number).map(FillingSegment::finish);
        match finished {
            Some(Ok(work)) if work.is_empty() => {
                self.uploaders.skip(number);
            }
            Some(Ok(work))
                if work.may_be_forwarded() && self.lead.keeps(work.encoded.size, work.is_numbered()) =>
            {
                self.uploaders.keep(work);
            }
            Some(Ok(work)) => self.uploaders.upload(work),
            Some(Err(number)) => self.uploaders.skip(number),
            None => {}
        }
    }
}

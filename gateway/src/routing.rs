//! Sends the rows of routed streams to the shards of their keys. It appends the rows with keys first. After their commit it appends the rest:
//! the number of the request, and the rows without a key, whose repetitions no consumer could recognise.

use std::sync::Arc;

use bytes::Bytes;
use millpond_producer::{Append, AppendError, Numbered, Producers, Route, Submitted};
use millpond_segment::Encoding;
use tokio::sync::oneshot;

use crate::memory::HeldMemory;
use crate::refusal::Refusal;
use crate::request::{Service, TRANSCODE_INLINE_MAX, refusal};
use crate::rows::{Division, Part, Parts};

/// Memory of a part beside what a producer pays for.
const PART_BYTES: usize = 128;

/// A message of a routed stream.
pub(crate) struct Routed {
    pub(crate) stream: Arc<str>,
    pub(crate) route: Arc<Route>,
    pub(crate) payload: Bytes,
    pub(crate) records: u64,
    pub(crate) received_at_us: i64,
    pub(crate) numbered: Option<Numbered>,
}

/// A message on its way into several shards.
pub(crate) struct Divided {
    keyed: Vec<(u32, Append)>,
    rest: Option<Rest>,
}

struct Rest {
    shard: u32,
    append: Append,
    numbered: Option<Numbered>,
}

/// A message whose rows with keys are with the producers.
pub(crate) struct Sent {
    keyed: Vec<Submitted>,
    rest: Option<Rest>,
}

/// A message's place in the order of those that came over one connection. The next one has its turn when this is dropped.
pub(crate) struct Turn {
    before: Option<oneshot::Receiver<()>>,
    _after: oneshot::Sender<()>,
}

/// The order of the rests of a connection's messages: numbers follow one another in it.
#[derive(Default)]
pub(crate) struct Order(Option<oneshot::Receiver<()>>);

impl Order {
    /// The place of the next message.
    pub(crate) fn turn(&mut self) -> Turn {
        let (after, next) = oneshot::channel();
        Turn {
            before: self.0.replace(next),
            _after: after,
        }
    }
}

impl Turn {
    async fn comes(&mut self) {
        if let Some(before) = self.before.take() {
            // The sender only ever goes away.
            let _ = before.await;
        }
    }
}

impl Service {
    /// Divides a message among shards, and pays for the parts. `held` covers `covered` bytes, the message among them.
    pub(crate) async fn divided(
        &self,
        message: Routed,
        covered: usize,
        held: &mut HeldMemory,
    ) -> Result<Divided, Refusal> {
        let Routed {
            stream,
            route,
            payload,
            records,
            received_at_us,
            numbered,
        } = message;
        let producers = self.producers();
        let rest_in = match &numbered {
            Some(numbered) => producers.shard_of(numbered.client),
            None => producers.shard(),
        };
        let rows = usize::try_from(records).unwrap_or(usize::MAX);
        let reading = rows.saturating_mul(Division::ROW_BYTES);
        held.grow_to(covered.saturating_add(reading)).await?;
        let (long, has_rest) = (payload.len() > TRANSCODE_INLINE_MAX, numbered.is_some());
        let of = payload.clone();
        let division = self.off_loop(long, move || {
            Division::of(&of, records, &route, rest_in, has_rest)
        });
        let division = division.await?;
        // All that the producers will want, so that none of them asks for more after others have taken their rows.
        let cost = |bytes, is_numbered| {
            let cost = producers.cost(bytes, is_numbered);
            cost.map_err(|error| refusal(error, Encoding::Ndjson))
        };
        let mut parts = division.len() * PART_BYTES;
        for bytes in division.sizes() {
            parts += cost(bytes, has_rest)?;
        }
        let is_copied = !division.is_whole();
        let there = if is_copied { 0 } else { payload.len() };
        held.grow_to(covered.saturating_add(reading + parts.saturating_sub(there)))
            .await?;
        let parts = self.off_loop(long && is_copied, move || division.parts(&payload));
        let Parts { keyed, rest } = parts.await?;
        let mut append = |part: Part, is_numbered| {
            Ok::<_, Refusal>(Append {
                stream: stream.clone(),
                encoding: Encoding::Ndjson,
                records: part.records,
                received_at_us,
                reservation: held.part(cost(part.payload.len(), is_numbered)?),
                payload: part.payload,
            })
        };
        let keyed = keyed
            .into_iter()
            .map(|part| Ok((part.shard, append(part, false)?)));
        let keyed = keyed.collect::<Result<_, Refusal>>()?;
        let rest = match rest {
            None => None,
            Some(part) => Some(Rest {
                shard: part.shard,
                append: append(part, has_rest)?,
                numbered,
            }),
        };
        Ok(Divided { keyed, rest })
    }
}

impl Divided {
    /// Hands the rows with keys over, unless one of the shards cannot be used, that of the rest included: each repetition of a request
    /// appends them again.
    pub(crate) async fn send(self, producers: &Producers) -> Result<Sent, AppendError> {
        let Divided { keyed, rest } = self;
        let keyed = match keyed.is_empty() {
            true => Vec::new(),
            false => {
                let rest_in = rest.as_ref().map(|rest| rest.shard);
                producers.submit_to(keyed, rest_in).await?
            }
        };
        Ok(Sent { keyed, rest })
    }
}

impl Sent {
    /// Waits until all of the message is committed. Returns true if the log had it already, under the same number.
    ///
    /// # Errors
    /// Rows with keys may be in the log, whatever the error says. The rest is not, unless the outcome is unknown.
    pub(crate) async fn committed(
        self,
        producers: &Producers,
        mut turn: Option<Turn>,
    ) -> Result<bool, AppendError> {
        let mut keyed = Ok(());
        for submitted in self.keyed {
            keyed = keyed.and(submitted.committed().await.map(drop));
        }
        // Also after an error: the message after this one must not overtake the one before.
        if let Some(turn) = &mut turn {
            turn.comes().await;
        }
        keyed?;
        let Some(Rest {
            shard,
            append,
            numbered,
        }) = self.rest
        else {
            return Ok(false);
        };
        let submitted = match numbered {
            Some(numbered) => vec![producers.submit_numbered(append, numbered).await?],
            None => producers.submit_to(vec![(shard, append)], None).await?,
        };
        drop(turn);
        let mut is_repeated = false;
        for submitted in submitted {
            is_repeated = submitted.committed().await?.is_repeated;
        }
        Ok(is_repeated)
    }
}

//! Inserts a chunk that may have been sent before, once. An attempt works in rounds: it asks which rows the sink lacks,
//! sends exactly those, and asks again. `design/protocols.md` ("Row identity") has the proof. This module neither waits
//! nor retries.

use crate::schedule::Key;
use crate::sink::{Attempt, BatchId, Chunk, Presence, Settled, Sink, SinkError};
use async_trait::async_trait;
use millpond_manifest::piece;
use millpond_runtime::{Environment as _, SystemEnvironment, blocking};
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

/// Rounds per attempt. A second round is needed only if a sink knows a token and lacks its rows, and a third only if it
/// also lost the rows of the second token.
pub(crate) const ROUNDS: u32 = 3;

/// The rows of a chunk that the first question of an attempt found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Found {
    /// None of its rows, or the sink cannot ask.
    Nothing,
    /// Some of them.
    Some,
    /// All of them: the attempt sent nothing.
    All,
}

/// Why an attempt ended without the chunk's rows in the sink.
#[derive(Debug)]
pub(crate) enum Failed {
    /// The sink's own reason.
    Sink(SinkError),
    /// The sink accepted every round, and still lacks this many rows.
    Missing(u64),
    /// The sink cannot tell which rows it has, and the sender does not send without that knowledge.
    CannotTell,
}

impl From<SinkError> for Failed {
    fn from(error: SinkError) -> Self {
        Failed::Sink(error)
    }
}

/// The sender of requests. It names them and decides when one may go out.
#[async_trait]
pub(crate) trait Sender: Sync {
    /// Returns when the sender may send, for [`may_still_send`](Self::may_still_send).
    async fn may_send(&self) -> u64;
    /// Returns true if the sender could send at any time since [`may_send`](Self::may_send) returned `since`, and still
    /// can.
    fn may_still_send(&self, since: u64) -> bool;
    /// Returns when the sender must stop sending.
    async fn must_stop_sending(&self);
    /// The opening under which it sends.
    fn opening(&self) -> u64;
    /// Sixty-four random bits.
    fn random(&self) -> u64;
    /// Returns true if rows of the chunk may be in the sink under tokens of another generation, which do not prevent
    /// duplicates.
    fn sent_under_other_tokens(&self) -> bool {
        false
    }
    /// Returns true if the sender also sends to a sink that cannot tell which rows it has. Its tokens alone then
    /// prevent duplicates.
    fn trusts_tokens(&self) -> bool {
        true
    }
    /// Returns when any successor of this sender will know that requests of later rounds may be in flight.
    async fn announce_later_round(&self) {}
    /// Cuts these rows out of a chunk ([`Sink::some`]).
    async fn some(&self, sink: Arc<dyn Sink>, chunk: Chunk, rows: Vec<u64>) -> Chunk;
}

/// An announcement that requests of a batch's later rounds may be in flight.
pub(crate) struct LaterRound {
    pub(crate) batch: Key,
    /// Signalled when the cursor has the announcement.
    pub(crate) durable: oneshot::Sender<()>,
}

/// The channel on which a batch announces later rounds to the owner of the cursor. A successor that sees the
/// announcement waits until those requests have ended.
#[derive(Clone)]
pub(crate) struct LaterRounds {
    pub(crate) announcements: mpsc::Sender<LaterRound>,
    pub(crate) batch: Key,
}

impl LaterRounds {
    /// Returns when the cursor records that requests of later rounds may be in flight.
    pub(crate) async fn announce(&self) {
        let (durable, done) = oneshot::channel();
        let batch = self.batch.clone();
        let sent = self.announcements.send(LaterRound { batch, durable }).await;
        if sent.is_err() || done.await.is_err() {
            // The term has ended, and this task is about to end.
            std::future::pending::<()>().await;
        }
    }
}

/// The attempts of one process at a chunk so far.
#[derive(Debug, Default)]
pub(crate) struct Attempts {
    /// The number of rows that the sink lacked at the first question.
    pub(crate) lacked: Option<u64>,
    /// A request of a later round may be in flight. Its token differs from the first round's, so both rounds may insert
    /// the same rows.
    later_round: bool,
    /// The sink accepted a token and certainly lacked rows of it. From then on a success without a certain answer
    /// proves nothing.
    lost: bool,
}

/// Sends a chunk for the first time.
pub(crate) async fn first(
    sender: &dyn Sender,
    sink: &dyn Sink,
    id: &BatchId,
    chunk: &Chunk,
) -> Result<(), Failed> {
    let since = sender.may_send().await;
    send(sender, sink, id, chunk, (0, true), since).await
}

/// Inserts a chunk of which the sink may have any rows.
pub(crate) async fn again(
    sender: &dyn Sender,
    sink: &Arc<dyn Sink>,
    id: &BatchId,
    chunk: &Chunk,
    attempts: &mut Attempts,
) -> Result<Found, Failed> {
    let source = id.source();
    let mut found = None;
    if attempts.later_round {
        end_others(&**sink, id, chunk).await?;
        attempts.later_round = false;
    } else {
        // Late requests of the first round share its token, which the sink knows while they run.
        sink.end_requests(&requests_of_chunk(id, chunk.index)).await;
    }
    for round in 0..=ROUNDS {
        let (presence, since) = ask(sender, &**sink, id, chunk, round > 0).await?;
        // An earlier answer was certain. This answer may come from another server that lags behind.
        let was_certain = round > 0 || attempts.lost;
        let Some((lacks, certain)) = lacking(sender, presence)? else {
            if was_certain {
                return Err(no_longer_certain(id, chunk));
            }
            send(sender, &**sink, id, chunk, (round, false), since).await?;
            return Ok(Found::Nothing);
        };
        attempts.lacked.get_or_insert(lacks.len() as u64);
        let first = *found.get_or_insert(match lacks.len() as u64 {
            0 => Found::All,
            lacks if lacks < chunk.rows => Found::Some,
            _ => Found::Nothing,
        });
        if lacks.is_empty() {
            // Only a single request that inserted every row has also produced all the data that the sink derives from
            // these rows.
            if first != Found::Nothing || round > 1 {
                sink.complete(&source, chunk).await?;
            }
            return Ok(first);
        }
        if round == ROUNDS {
            return Err(Failed::Missing(lacks.len() as u64));
        }
        if !certain && sender.sent_under_other_tokens() {
            return Err(uncertain(id, chunk));
        }
        if !certain && was_certain {
            return Err(no_longer_certain(id, chunk));
        }
        attempts.later_round |= round > 0;
        attempts.lost |= round > 0;
        send_missing(sender, sink, id, chunk, lacks, (round, since)).await?;
        if !certain {
            sink.complete(&source, chunk).await?;
            return Ok(first);
        }
    }
    unreachable!("the last round returns")
}

/// Returns the rows that the sink lacks and whether the answer is certain. `None`: the sink cannot tell, and the token
/// decides.
fn lacking(sender: &dyn Sender, presence: Presence) -> Result<Option<(Vec<u64>, bool)>, Failed> {
    match presence {
        Presence::Lacks { rows, certain } if certain || rows.is_empty() || sender.trusts_tokens() => {
            Ok(Some((rows, certain)))
        }
        Presence::Unknown if sender.trusts_tokens() => Ok(None),
        Presence::Lacks { .. } | Presence::Unknown => Err(Failed::CannotTell),
    }
}

fn no_longer_certain(id: &BatchId, chunk: &Chunk) -> Failed {
    Failed::Sink(SinkError::Transient(format!(
        "it is not certain any more which rows of chunk {} of {id} the table has",
        chunk.index
    )))
}

/// Requests under other tokens may have inserted the missing rows on a replica that did not answer.
fn uncertain(id: &BatchId, chunk: &Chunk) -> Failed {
    Failed::Sink(SinkError::Schema(format!(
        "it is not certain which rows of chunk {} of {id} the table has, because a replica that was not asked may have more; \
         grant SYSTEM SYNC REPLICA, or name the cluster",
        chunk.index
    )))
}

/// Sends the rows that the sink lacks, in one request. `since` is the result of [`Sender::may_send`].
async fn send_missing(
    sender: &dyn Sender,
    sink: &Arc<dyn Sink>,
    id: &BatchId,
    chunk: &Chunk,
    lacks: Vec<u64>,
    (round, since): (u32, u64),
) -> Result<(), Failed> {
    if lacks.len() as u64 == chunk.rows {
        return send(sender, &**sink, id, chunk, (round, false), since).await;
    }
    let some = sender.some(sink.clone(), chunk.clone(), lacks).await;
    send(sender, &**sink, id, &some, (round, false), since).await
}

/// Asks which rows of a chunk the sink lacks. Also returns the result of [`Sender::may_send`] from before the question.
/// `later`: this is a round after the first.
async fn ask(
    sender: &dyn Sender,
    sink: &dyn Sink,
    id: &BatchId,
    chunk: &Chunk,
    later: bool,
) -> Result<(Presence, u64), Failed> {
    let source = id.source();
    let since = sender.may_send().await;
    let presence = sink.presence(&source, chunk).await?;
    if !(later && lacks_any(&presence)) {
        return Ok((presence, since));
    }
    // The sink knows the previous round's token, but its rows may not be visible yet.
    end_others(sink, id, chunk).await?;
    let since = sender.may_send().await;
    let presence = sink.presence(&source, chunk).await?;
    if lacks_any(&presence) {
        sender.announce_later_round().await;
    }
    Ok((presence, since))
}

fn lacks_any(presence: &Presence) -> bool {
    matches!(presence, Presence::Lacks { rows, .. } if !rows.is_empty())
}

/// Returns when no earlier request of the chunk or its pieces is in flight. ClickHouse reports success as soon as it
/// knows a token. The rows of the request that brought the token may become visible a little later, and a question in
/// between would miss them. A chunk and its pieces are sent one after another, so this ends no request that anybody
/// waits for.
async fn end_others(sink: &dyn Sink, id: &BatchId, chunk: &Chunk) -> Result<(), SinkError> {
    if sink.settle(&requests_of_chunk(id, chunk.index), None).await? == Settled::Waits {
        tokio::time::sleep(sink.attempt_max()).await;
    }
    Ok(())
}

async fn send(
    sender: &dyn Sender,
    sink: &dyn Sink,
    id: &BatchId,
    chunk: &Chunk,
    (round, first): (u32, bool),
    since: u64,
) -> Result<(), Failed> {
    sink.ready().await;
    // After a pause, the answer may be older than the sink's memory of a token. Rows that arrived meanwhile would be
    // inserted twice.
    if !sender.may_still_send(since) {
        return Err(Failed::Sink(SinkError::Transient(
            "the lease ran out since the sink was asked".to_owned(),
        )));
    }
    let number = chunk.index;
    let (requests, random) = (requests_of_chunk(id, number), sender.random());
    let opening = requests_of_opening(sender.opening());
    let attempt = Attempt {
        token: id.token(number, round),
        query_id: format!("{requests}{number}{opening}{random:016x}"),
        first,
    };
    tokio::select! {
        biased;
        sent = sink.insert(chunk, &attempt) => Ok(sent?),
        () = sender.must_stop_sending() => Err(Failed::Sink(SinkError::Transient(
            "the lease ran out while the request was under way".to_owned(),
        ))),
    }
}

/// The prefix of the query ids of a consumer's requests in a shard.
pub(crate) fn requests_of(buffer_id: Uuid, shard: u32, consumer: &str) -> String {
    format!("millpond/{buffer_id}/{shard:04}/{consumer}/")
}

/// The prefix of the query ids of one batch's requests, for any sender.
pub(crate) fn requests_of_batch(id: &BatchId) -> String {
    let BatchId {
        buffer_id,
        shard,
        stream,
        consumer,
        cursor,
        low,
        high,
        ..
    } = id;
    let all = requests_of(*buffer_id, *shard, consumer);
    format!("{all}{cursor}/{stream}/{low}-{high}/")
}

/// The prefix of the query ids of the requests with rows of this chunk, or of the chunk of this piece: whole or in
/// pieces, for any sender.
pub(crate) fn requests_of_chunk(id: &BatchId, number: u32) -> String {
    format!("{}{}/", requests_of_batch(id), piece::chunk(number))
}

/// The part of a query id that names the opening.
pub(crate) fn requests_of_opening(opening: u64) -> String {
    format!("/{opening:016x}/")
}

/// Inserts a chunk as a consumer does when it may not be the first to send the chunk. For tests of sinks.
#[doc(hidden)]
pub async fn write_again(sink: &Arc<dyn Sink>, id: &BatchId, chunk: &Chunk) -> Result<Found, SinkError> {
    let failed = |failed| match failed {
        Failed::Sink(error) => error,
        Failed::Missing(rows) => SinkError::Schema(format!("{rows} rows are missing after the last round")),
        Failed::CannotTell => unreachable!("a test trusts tokens"),
    };
    again(&Unleased, sink, id, chunk, &mut Attempts::default())
        .await
        .map_err(failed)
}

/// A sender without a cursor or a lease: an operator's replay, or a test.
pub(crate) struct Unleased;

#[async_trait]
impl Sender for Unleased {
    async fn may_send(&self) -> u64 {
        0
    }

    fn may_still_send(&self, _: u64) -> bool {
        true
    }

    async fn must_stop_sending(&self) {
        std::future::pending::<()>().await;
    }

    fn opening(&self) -> u64 {
        0
    }

    fn random(&self) -> u64 {
        SystemEnvironment.random()
    }

    async fn some(&self, sink: Arc<dyn Sink>, chunk: Chunk, rows: Vec<u64>) -> Chunk {
        blocking::compute(&SystemEnvironment, move || sink.some(&chunk, &rows)).await
    }
}

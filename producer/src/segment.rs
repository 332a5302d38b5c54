//! One segment: it fills with blocks, is encoded, and is uploaded. Pure bookkeeping: no task, no I/O.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use millpond_manifest::{NewPart, NewSegment};
use millpond_segment::{
    BlockBuilder, EncodedBlock, EncodedSegment, Encoding, MessageTooLarge, SegmentBuilder, StreamPart,
};
use tokio::sync::oneshot;
use tokio::time::Instant;
use ulid::Ulid;

use crate::append::WAITER_BYTES;
use crate::clients::{CLIENT_BYTES, CLIENTS_FORWARD_MAX, Caller, ClientMessage, ClientTicket, MessagePlace};
use crate::encoder::Encoders;
use crate::lead::Guest;
use crate::peers::{PeerRefusal, StreamBlock};
use crate::strip::{moved, strip};
use crate::trace::SegmentTrace;
use crate::{Append, AppendError, Committed};
use millpond_runtime::Reservation;

/// The channel to a caller that waits for the commit. A caller that has gone away changes nothing.
pub(crate) type Waiter = oneshot::Sender<Result<Committed, AppendError>>;

/// Sends all `waiters` the same error.
pub(crate) fn fail(waiters: Vec<Waiter>, error: &AppendError) {
    for waiter in waiters {
        // The caller may have gone away.
        let _ = waiter.send(Err(error.clone()));
    }
}

/// A full block, or the last block of a closing segment.
pub(crate) struct FullBlock {
    pub(crate) segment: u64,
    pub(crate) stream: usize,
    pub(crate) slot: usize,
    pub(crate) builder: BlockBuilder,
    pub(crate) records: u64,
    pub(crate) reservation: Reservation,
}

/// The result of a [`FullBlock`].
pub(crate) struct DoneBlock {
    pub(crate) segment: u64,
    pub(crate) stream: usize,
    pub(crate) slot: usize,
    pub(crate) encoded: Result<EncodedBlock, String>,
    pub(crate) reservation: Reservation,
}

impl FullBlock {
    /// Compresses the block and returns the part of its reservation that this frees.
    pub(crate) async fn encode(self, encoders: Encoders) -> DoneBlock {
        let FullBlock {
            segment,
            stream,
            slot,
            builder,
            records,
            mut reservation,
        } = self;
        let encoded = encoders.encode(builder, records).await;
        if let Ok(block) = &encoded {
            let waiters = usize::try_from(block.messages)
                .unwrap_or(usize::MAX)
                .saturating_mul(WAITER_BYTES + CLIENT_BYTES);
            reservation.shrink(block.bytes.len().saturating_add(waiters));
        }
        DoneBlock {
            segment,
            stream,
            slot,
            encoded,
            reservation,
        }
    }
}

/// A client's message in a segment that is filling.
struct FillingClient {
    ticket: ClientTicket,
    stream: usize,
    slot: usize,
    message: u64,
    records: u64,
}

struct OpenBlock {
    builder: BlockBuilder,
    records: u64,
    reservation: Reservation,
}

struct OpenStream {
    name: Arc<str>,
    encoding: Encoding,
    open: Option<OpenBlock>,
    /// The blocks in order. `None` while an encoder has the block.
    encoded: Vec<Option<EncodedBlock>>,
    filled_a_block: bool,
}

/// A segment that is filling, or closed and waiting for its encoders.
pub(crate) struct FillingSegment {
    pub(crate) number: u64,
    pub(crate) first_at: Instant,
    streams: Vec<OpenStream>,
    places: HashMap<Arc<str>, usize>,
    waiters: Vec<Waiter>,
    clients: Vec<FillingClient>,
    guests: Vec<Guest>,
    reservation: Reservation,
    pub(crate) raw_len: usize,
    pub(crate) compressed_len: usize,
    in_encoders: usize,
    linger_left: Duration,
    failure: Option<String>,
    trace: Box<SegmentTrace>,
}

impl FillingSegment {
    pub(crate) fn new(number: u64, nothing: Reservation, first_at: Instant) -> Self {
        Self {
            number,
            first_at,
            streams: Vec::new(),
            places: HashMap::new(),
            waiters: Vec::new(),
            clients: Vec::new(),
            guests: Vec::new(),
            reservation: nothing,
            raw_len: 0,
            compressed_len: 0,
            in_encoders: 0,
            linger_left: Duration::ZERO,
            failure: None,
            trace: SegmentTrace::begin(),
        }
    }

    /// Appends a message; `builder` creates the builder of a new block. Returns the blocks that are full now: one
    /// without room for the message, and the message's own if the message fills it.
    pub(crate) fn append(
        &mut self,
        append: Append,
        caller: Caller,
        block_bytes: usize,
        builder: impl Fn(i64) -> BlockBuilder,
    ) -> [Option<FullBlock>; 2] {
        let Append {
            stream,
            encoding,
            payload,
            records,
            received_at_us,
            reservation,
        } = append;
        let place = self.place(&stream, encoding);
        let known = self.streams[place].encoding;
        if known != encoding {
            let reason = format!("stream {stream} holds {known} messages, not {encoding}");
            caller.fail(AppendError::Refused(reason.into()));
            return [None, None];
        }
        let room = |open: &OpenBlock| {
            open.builder.raw_len() + BlockBuilder::message_len_max(payload.len()) <= block_bytes
        };
        let before = match &self.streams[place].open {
            Some(open) if !room(open) => self.ship(place),
            _ => None,
        };
        let slot = self.streams[place].encoded.len();
        let open = self.streams[place].open.get_or_insert_with(|| OpenBlock {
            builder: builder(received_at_us),
            records: 0,
            reservation: self.reservation.split(0),
        });
        let raw_len = open.builder.raw_len();
        if let Err(error @ MessageTooLarge { .. }) = open.builder.push(received_at_us, &payload) {
            caller.fail(AppendError::Refused(error.to_string().into()));
            return [before, None];
        }
        self.raw_len += open.builder.raw_len() - raw_len;
        open.records += records;
        open.reservation.merge(reservation);
        match caller {
            Caller::Waiter(waiter) => self.waiters.push(waiter),
            Caller::Client(ticket) => self.clients.push(FillingClient {
                ticket,
                stream: place,
                slot,
                message: open.builder.messages() - 1,
                records,
            }),
        }
        let full = open.builder.raw_len() >= block_bytes;
        let filled = before.is_some() || full;
        self.streams[place].filled_a_block |= filled;
        let own = if full { self.ship(place) } else { None };
        [before, own]
    }

    /// Takes blocks of another producer.
    pub(crate) fn add_guest(&mut self, guest: Guest, reservation: Reservation) {
        for StreamBlock { block, .. } in &guest.blocks {
            self.compressed_len += block.bytes.len();
            self.raw_len += usize::try_from(block.raw_len).unwrap_or(usize::MAX);
        }
        self.reservation.merge(reservation);
        self.guests.push(guest);
    }

    /// The number of the guests' numbered requests.
    pub(crate) fn clients_of_others(&self) -> usize {
        self.guests.iter().map(|guest| guest.clients.len()).sum()
    }

    fn place(&mut self, stream: &Arc<str>, encoding: Encoding) -> usize {
        if let Some(&place) = self.places.get(stream) {
            return place;
        }
        let (name, place) = (Arc::clone(stream), self.streams.len());
        let (open, encoded, filled_a_block) = (None, Vec::new(), false);
        self.streams.push(OpenStream {
            name,
            encoding,
            open,
            encoded,
            filled_a_block,
        });
        self.places.insert(Arc::clone(stream), place);
        place
    }

    /// Takes a stream's open block if it has messages.
    fn ship(&mut self, place: usize) -> Option<FullBlock> {
        let stream = &mut self.streams[place];
        let OpenBlock {
            builder,
            records,
            reservation,
        } = stream.open.take().filter(|b| !b.builder.is_empty())?;
        let slot = stream.encoded.len();
        stream.encoded.push(None);
        self.in_encoders += 1;
        Some(FullBlock {
            segment: self.number,
            stream: place,
            slot,
            builder,
            records,
            reservation,
        })
    }

    /// Takes the remaining blocks: the segment takes no more messages. `linger_left` is the rest of its linger.
    pub(crate) fn close(&mut self, linger_left: Duration) -> Vec<FullBlock> {
        self.linger_left = linger_left;
        self.trace.encode();
        (0..self.streams.len())
            .filter_map(|place| self.ship(place))
            .collect()
    }

    /// The streams, and whether each has filled a block.
    pub(crate) fn streams(&self) -> impl Iterator<Item = (&Arc<str>, bool)> {
        self.streams
            .iter()
            .map(|stream| (&stream.name, stream.filled_a_block))
    }

    /// Puts a block from the encoders into its place.
    pub(crate) fn put(&mut self, done: DoneBlock) {
        self.in_encoders -= 1;
        self.reservation.merge(done.reservation);
        match done.encoded {
            Ok(block) => {
                self.compressed_len += block.bytes.len();
                self.streams[done.stream].encoded[done.slot] = Some(block);
            }
            Err(reason) => self.failure = Some(reason),
        }
    }

    /// Returns true if an encoder still has a block of the segment.
    pub(crate) fn is_encoding(&self) -> bool {
        self.in_encoders > 0
    }

    /// Assembles the blocks of a closed segment. On an error, its callers have their answers.
    pub(crate) fn finish(self) -> Result<EncodedWork, u64> {
        let Self {
            number,
            streams,
            waiters,
            clients,
            mut guests,
            mut reservation,
            linger_left,
            failure,
            mut trace,
            ..
        } = self;
        let clients = located(clients, &streams);
        let own: Vec<StreamBlock> = streams.into_iter().flat_map(OpenStream::into_blocks).collect();
        let assembled = failure.map_or_else(|| assemble(&own, &mut guests), Err);
        let encoded = match assembled {
            Ok(encoded) => encoded,
            Err(reason) => {
                tracing::error!(
                    "a segment of {} messages could not be encoded: {reason}",
                    waiters.len()
                );
                trace.fail(&reason);
                let error = AppendError::NotCommitted(reason.into());
                clients
                    .into_iter()
                    .for_each(|client| client.ticket.answer(&Err(error.clone())));
                fail(waiters, &error);
                return Err(number);
            }
        };
        trace.encoded(&encoded);
        let held = usize::try_from(encoded.size).unwrap_or(usize::MAX);
        let numbered = clients.len() + guests.iter().map(|guest| guest.clients.len()).sum::<usize>();
        let callers = (waiters.len() + clients.len()) * WAITER_BYTES + numbered * CLIENT_BYTES;
        reservation.shrink(held.saturating_add(callers));
        Ok(EncodedWork {
            number,
            encoded,
            own,
            guests,
            waiters,
            clients,
            linger_left,
            reservation,
            trace,
        })
    }
}

/// Numbers the blocks of all streams in their order.
fn located(clients: Vec<FillingClient>, streams: &[OpenStream]) -> Vec<ClientMessage> {
    let firsts: Vec<usize> = streams
        .iter()
        .scan(0, |first, stream| {
            let this = *first;
            *first += stream.encoded.len();
            Some(this)
        })
        .collect();
    let locate = |client: FillingClient| ClientMessage {
        at: MessagePlace {
            block: firsts[client.stream] + client.slot,
            message: client.message,
            records: client.records,
        },
        ticket: client.ticket,
    };
    clients.into_iter().map(locate).collect()
}

impl OpenStream {
    fn into_blocks(self) -> impl Iterator<Item = StreamBlock> {
        let (stream, encoding) = (self.name, self.encoding);
        self.encoded.into_iter().flatten().map(move |block| StreamBlock {
            stream: Arc::clone(&stream),
            encoding,
            block,
        })
    }
}

/// Assembles a segment. Guests whose blocks do not fit beside the others leave it, with an answer.
fn assemble(own: &[StreamBlock], guests: &mut Vec<Guest>) -> Result<EncodedSegment, String> {
    let push = |builder: &mut SegmentBuilder, blocks: &[StreamBlock]| {
        blocks
            .iter()
            .try_for_each(|it| builder.push(&it.stream, it.encoding, it.block.clone()))
            .map_err(|error| error.to_string())
    };
    loop {
        let mut builder = SegmentBuilder::new();
        push(&mut builder, own)?;
        let unfit = guests
            .iter()
            .enumerate()
            .find_map(|(place, guest)| Some((place, push(&mut builder, &guest.blocks).err()?)));
        let Some((place, reason)) = unfit else {
            return Ok(builder.finish());
        };
        let guest = guests.remove(place);
        guest.ticket.answer(&Err(PeerRefusal::NotCommitted(reason)));
    }
}

/// An encoded segment.
pub(crate) struct EncodedWork {
    /// Its place in the producer's order.
    pub(crate) number: u64,
    pub(crate) encoded: EncodedSegment,
    /// This producer's own blocks.
    pub(crate) own: Vec<StreamBlock>,
    /// The other producers whose blocks are in the segment.
    pub(crate) guests: Vec<Guest>,
    pub(crate) waiters: Vec<Waiter>,
    /// The clients that number their requests, in the order of their messages.
    pub(crate) clients: Vec<ClientMessage>,
    /// The rest of the linger when the segment closed: the commit may be this much later than the upload.
    pub(crate) linger_left: Duration,
    /// Kept until the commit, because the orphan floor may require another upload.
    #[expect(
        dead_code,
        reason = "it is held for what it pays for, and goes back when this is dropped"
    )]
    reservation: Reservation,
    pub(crate) trace: Box<SegmentTrace>,
}

impl EncodedWork {
    /// Returns true if nobody waits for it.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiters.is_empty() && self.clients.is_empty() && self.guests.is_empty()
    }

    /// Returns true if another producer may commit it. Positions of sources are this producer's matter.
    pub(crate) fn may_be_forwarded(&self) -> bool {
        self.guests.is_empty()
            && self.clients.len() <= CLIENTS_FORWARD_MAX
            && !self.clients.iter().any(|client| client.ticket.is_of_source())
    }

    /// Returns true if it has requests of clients that number them.
    pub(crate) fn is_numbered(&self) -> bool {
        !self.clients.is_empty()
    }

    /// Builds the segment anew with the guests and the own blocks that it still has. `None`: there are none.
    pub(crate) fn rebuilt(mut self) -> Option<EncodedWork> {
        if self.own.is_empty() && self.guests.is_empty() {
            return None;
        }
        match assemble(&self.own, &mut self.guests) {
            Ok(encoded) => {
                self.encoded = encoded;
                Some(self)
            }
            // A part of what fitted before fits.
            Err(reason) => {
                tracing::error!("a segment could not be built anew: {reason}");
                self.fail(&AppendError::NotCommitted(reason.into()));
                None
            }
        }
    }

    /// Takes these messages out of the segment's blocks. The segment must be [`rebuilt`](Self::rebuilt) after it.
    ///
    /// CPU work: run it on a blocking thread.
    pub(crate) fn strip(&mut self, gone: &[MessagePlace], level: i32) -> Result<(), String> {
        for client in &mut self.clients {
            client.at = moved(client.at, &self.own, gone);
        }
        self.own = strip(std::mem::take(&mut self.own), gone, level)?;
        Ok(())
    }

    /// Tells all callers the same error.
    pub(crate) fn fail(self, error: &AppendError) {
        for client in self.clients {
            client.ticket.answer(&Err(error.clone()));
        }
        fail(self.waiters, error);
    }
}

/// A segment in the store.
pub(crate) struct UploadedWork {
    pub(crate) name: Ulid,
    /// The latest time at which the commit starts.
    pub(crate) commit_by: Instant,
    pub(crate) work: EncodedWork,
}

impl UploadedWork {
    /// Describes the segment for a commit.
    pub(crate) fn describe(&self) -> NewSegment {
        let parts = self.work.encoded.streams.iter().map(new_part).collect();
        NewSegment {
            segment: self.name,
            size: self.work.encoded.size,
            parts,
        }
    }
}

fn new_part(part: &StreamPart) -> NewPart {
    NewPart {
        stream: part.stream.clone(),
        encoding: part.encoding,
        offset: part.offset,
        length: part.length,
        raw_len: part.raw_len,
        messages: part.messages,
        records: part.records,
        first_received_at_us: part.first_received_at_us,
        last_received_at_us: part.last_received_at_us,
    }
}

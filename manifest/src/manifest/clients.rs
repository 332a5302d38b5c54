//! Clients that number their requests, and the transition that enters each number into the log once. A client that
//! repeats a request, to any producer of the shard, learns the outcome of the first one from its row.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::fmt;
use std::sync::Arc;

use thiserror::Error;

use super::{Manifest, SourcePartition};

/// Maximum number of clients remembered. Beyond it, the group with most of them forgets the one whose last request is
/// furthest back in the log. The manifest never forgets a producer for a client.
pub const CLIENTS_MAX: usize = 4_096;
/// Maximum number of idempotency keys remembered. The manifest refuses further keys rather than forget one early.
pub const KEYS_MAX: usize = 4_096;
/// A group of keys has at most this many times what it leaves free: a group alone three quarters of the table, two
/// groups that want more three sevenths each.
const KEYS_PER_FREE: usize = 3;
/// Minimum time for which the manifest remembers an idempotency key, in milliseconds.
pub const KEY_EXPIRY_MS: u64 = 24 * 3_600 * 1_000;

/// Kafka's sequence numbers have 31 bits and start again at 0.
const SEQUENCES: u64 = 1 << 31;

/// Identifies a client and the stream of its requests, or an idempotency key of a stream: four bytes for the group of the
/// stream, whose clients share the tables with those of other groups, and a digest of the whole.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientId(pub [u8; 16]);

impl ClientId {
    /// A client by the digest of its group and that of its name.
    pub fn new(group: &[u8; 32], client: &[u8; 32]) -> Self {
        let mut id = [0; 16];
        id[..4].copy_from_slice(&group[..4]);
        id[4..].copy_from_slice(&client[..12]);
        ClientId(id)
    }

    /// The group. Groups are told apart by 32 bits of a digest, and two with the same bits share what each would have.
    fn group(self) -> [u8; 4] {
        let [a, b, c, d, ..] = self.0;
        [a, b, c, d]
    }
}

impl fmt::Debug for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

/// The manifest's record of a client: enough to recognise every number that is in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientRow {
    /// The client.
    pub id: ClientId,
    /// Kafka's epoch of the producer; 0 for others.
    pub epoch: u16,
    /// The number of its last request in the log; for Kafka, of records under this epoch.
    pub last: u64,
    /// Sequence of the segment that holds its last request.
    pub sequence: u64,
    /// Unix time in milliseconds of that commit.
    pub seen_at_ms: u64,
    /// CRC32C of the last request's message; 0: not recorded.
    pub checksum: u32,
}

impl ClientRow {
    /// Returns true while the manifest may not forget this key.
    fn is_kept(&self, now_ms: u64) -> bool {
        now_ms.saturating_sub(self.seen_at_ms) < KEY_EXPIRY_MS
    }
}

/// The numbers of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Numbers {
    /// The client counts its requests from 1.
    Counted {
        /// The number of this request.
        number: u64,
    },
    /// A Kafka producer counts its records for each partition.
    Sequence {
        /// The producer's epoch.
        epoch: u16,
        /// The sequence number of the first record, below 2³¹.
        first: u32,
        /// The number of records.
        count: u32,
    },
    /// An idempotency key, which stands for one request.
    Once,
    /// A bridge reads the offsets of a partition one after another. Some offsets have no record.
    Offsets {
        /// The incarnation of the position.
        incarnation: u64,
        /// The position before the records.
        from: u64,
        /// The position after them.
        to: u64,
    },
}

/// One request of a client in a commit.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ClientClaim {
    /// The client, or the key.
    pub client: ClientId,
    /// Its numbers.
    pub numbers: Numbers,
    /// CRC32C of its message, to recognise a number that is used for other content; 0: do not compare.
    pub checksum: u32,
    /// The index of the commit's segment that holds its records.
    pub segment: usize,
    /// The partition of [`Numbers::Offsets`], which judges them instead of the client. Others have none.
    pub source: Option<Arc<SourcePartition>>,
}

/// Why a client's claim is unusable.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Error)]
pub enum ClientRefusal {
    /// All of its records are in the log already.
    #[error("the records are in the log already")]
    Repeated {
        /// Sequence of the segment that holds the client's last request.
        last_sequence: u64,
    },
    /// Its number, or its key, is in the log with another message.
    #[error("the number or key was used for another message")]
    Reused,
    /// Numbers before it are missing.
    #[error("the number does not follow {last}, the last one in the log")]
    Gap {
        /// The last number in the log.
        last: u64,
    },
    /// The manifest does not know the client, and this is not its first number.
    #[error("the client is unknown or forgotten, and this is not its first number")]
    Unknown,
    /// The log has a later epoch of the Kafka producer.
    #[error("the log has epoch {epoch} of the producer, which is later")]
    Fenced {
        /// The epoch in the log.
        epoch: u16,
    },
    /// A part of its numbers is in the log or in another claim of the commit.
    #[error("the numbers overlap others")]
    Overlaps,
    /// The table of keys has no room for its group.
    #[error("the idempotency keys of the last 24 h leave no room for another of this stream's prefix")]
    Full,
    /// The offsets do not begin at the partition's position.
    #[error("the offsets do not begin at the position in the manifest, which is {}", next.map_or_else(|| "missing".to_owned(), |next| next.to_string()))]
    Position {
        /// The position in the log. `None`: this shard has none.
        next: Option<u64>,
    },
    /// The position was set without records since the offsets were read.
    #[error("the position in the manifest was set anew since the records were read")]
    SetAnew,
    /// The numbers are impossible.
    #[error("the number is not valid: {0}")]
    Invalid(&'static str),
}

/// A client's claim that prevents its commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnusableClient {
    /// Its index among the commit's clients.
    pub place: usize,
    /// The reason.
    pub reason: ClientRefusal,
}

/// The rows that a commit enters for its clients, checked against the state that it replaces.
#[derive(Debug, Clone, Default)]
pub struct CheckedClients {
    clients: BTreeMap<ClientId, (ClientRow, usize)>,
    keys: BTreeMap<ClientId, (ClientRow, usize)>,
    pub(super) sources: BTreeMap<Arc<SourcePartition>, u64>,
    /// The table of keys with those of this commit, once it has one.
    room: Option<KeyRoom>,
}

/// The keys of a table that may not be forgotten yet.
#[derive(Debug, Clone, Default)]
struct KeyRoom {
    all: usize,
    of_group: BTreeMap<[u8; 4], usize>,
}

impl KeyRoom {
    /// Returns true if there is room for another key of this group.
    fn is_for(&self, group: [u8; 4]) -> bool {
        let of_group = self.of_group.get(&group).copied().unwrap_or_default();
        self.all < KEYS_MAX && of_group < KEYS_PER_FREE * (KEYS_MAX - self.all)
    }

    fn add(&mut self, group: [u8; 4]) {
        self.all += 1;
        *self.of_group.entry(group).or_default() += 1;
    }
}

impl Manifest {
    /// The row of a client or a key, if the manifest remembers it.
    pub fn client(&self, id: ClientId, numbers: Numbers) -> Option<&ClientRow> {
        let table = match numbers {
            Numbers::Once => &self.keys,
            Numbers::Counted { .. } | Numbers::Sequence { .. } => &self.clients,
            Numbers::Offsets { .. } => return None,
        };
        let place = table.binary_search_by_key(&id, |row| row.id).ok()?;
        table.get(place)
    }

    /// Checks the claims of a commit's clients, in their order: several of one client follow each other.
    ///
    /// # Errors
    /// Every unusable claim. The others may be usable without them.
    pub fn check_clients(
        &self,
        claims: &[ClientClaim],
        now_ms: u64,
    ) -> Result<CheckedClients, Vec<UnusableClient>> {
        let mut checked = CheckedClients::default();
        let mut unusable = Vec::new();
        for (place, claim) in claims.iter().enumerate() {
            if let Err(reason) = self.check_client(claim, now_ms, &mut checked) {
                unusable.push(UnusableClient { place, reason });
            }
        }
        if unusable.is_empty() {
            Ok(checked)
        } else {
            Err(unusable)
        }
    }

    fn check_client(
        &self,
        claim: &ClientClaim,
        now_ms: u64,
        checked: &mut CheckedClients,
    ) -> Result<(), ClientRefusal> {
        if matches!(claim.numbers, Numbers::Offsets { .. }) {
            return self.check_offsets(claim, checked);
        }
        let row = self.client(claim.client, claim.numbers);
        let by_log = judge(row, claim);
        let is_once = claim.numbers == Numbers::Once;
        let entered = if is_once {
            &mut checked.keys
        } else {
            &mut checked.clients
        };
        let last = match (entered.get(&claim.client), by_log) {
            (None, by_log) => by_log?,
            (Some(_), Err(refusal @ (ClientRefusal::Repeated { .. } | ClientRefusal::Reused))) => {
                return Err(refusal);
            }
            // Nothing of this commit is in the log yet, so its own claims are no answer for a copy.
            (Some((before, _)), _) => match judge(Some(before), claim) {
                Err(ClientRefusal::Repeated { .. } | ClientRefusal::Reused) => {
                    return Err(ClientRefusal::Overlaps);
                }
                // Nor is its number the last one in the log.
                Err(ClientRefusal::Gap { .. }) => {
                    let last = row.map_or(0, |row| row.last);
                    return Err(ClientRefusal::Gap { last });
                }
                other => other?,
            },
        };
        let row = ClientRow {
            id: claim.client,
            epoch: claim.numbers.epoch(),
            last,
            sequence: 0,
            seen_at_ms: now_ms,
            checksum: claim.checksum,
        };
        if is_once {
            let room = checked.room.get_or_insert_with(|| self.key_room(now_ms));
            if !room.is_for(claim.client.group()) {
                return Err(ClientRefusal::Full);
            }
            room.add(claim.client.group());
        }
        entered.insert(claim.client, (row, claim.segment));
        Ok(())
    }

    fn key_room(&self, now_ms: u64) -> KeyRoom {
        let mut room = KeyRoom::default();
        for row in self.keys.iter().filter(|row| row.is_kept(now_ms)) {
            room.add(row.id.group());
        }
        room
    }

    /// Enters the clients of a commit whose segments begin at `first_sequence`.
    pub fn enter_clients(&mut self, checked: CheckedClients, first_sequence: u64, now_ms: u64) {
        let CheckedClients {
            clients,
            keys,
            sources,
            room: _,
        } = checked;
        self.enter_sources(sources, now_ms);
        if self.keys.len() + keys.len() > KEYS_MAX {
            self.keys.retain(|row| row.is_kept(now_ms));
        }
        enter(&mut self.clients, clients, first_sequence);
        enter(&mut self.keys, keys, first_sequence);
        forget(&mut self.clients);
    }
}

fn enter(table: &mut Vec<ClientRow>, rows: BTreeMap<ClientId, (ClientRow, usize)>, first_sequence: u64) {
    for (id, (mut row, segment)) in rows {
        row.sequence = first_sequence + segment as u64;
        match table.binary_search_by_key(&id, |row| row.id) {
            Ok(place) => table[place] = row,
            Err(place) => table.insert(place, row),
        }
    }
}

/// Forgets clients beyond the maximum, one at a time: the one furthest back in the log, of the group that has the most. So no
/// group loses a client while another has more.
fn forget(clients: &mut Vec<ClientRow>) {
    let Some(excess @ 1..) = clients.len().checked_sub(CLIENTS_MAX) else {
        return;
    };
    let place = |row: &ClientRow| (Reverse(row.sequence), row.id);
    let mut groups: BTreeMap<_, Vec<ClientRow>> = BTreeMap::new();
    for row in clients.drain(..) {
        groups.entry(row.id.group()).or_default().push(row);
    }
    let mut groups: Vec<_> = groups.into_values().collect();
    // The largest group, and of several the one whose last client is furthest back.
    let entry = |number: usize, group: &[ClientRow]| Some((group.len(), place(group.last()?), number));
    let mut largest = BinaryHeap::new();
    for (number, group) in groups.iter_mut().enumerate() {
        group.sort_unstable_by_key(place);
        largest.extend(entry(number, group));
    }
    for _ in 0..excess {
        if let Some((_, _, number)) = largest.pop() {
            groups[number].pop();
            largest.extend(entry(number, &groups[number]));
        }
    }
    clients.extend(groups.into_iter().flatten());
    clients.sort_unstable_by_key(|row| row.id);
}

impl Numbers {
    fn epoch(self) -> u16 {
        match self {
            Numbers::Sequence { epoch, .. } => epoch,
            Numbers::Counted { .. } | Numbers::Once | Numbers::Offsets { .. } => 0,
        }
    }
}

/// Returns the last number in the log if the claim enters it, or why it cannot.
fn judge(row: Option<&ClientRow>, claim: &ClientClaim) -> Result<u64, ClientRefusal> {
    match claim.numbers {
        Numbers::Counted { number } => judge_counted(row, number, claim.checksum),
        Numbers::Sequence { epoch, first, count } => judge_sequence(row, epoch, first, count),
        Numbers::Once => match row {
            None => Ok(1),
            Some(row) => Err(repeated(row, claim.checksum)),
        },
        Numbers::Offsets { .. } => Err(ClientRefusal::Invalid("offsets belong to a partition")),
    }
}

fn judge_counted(row: Option<&ClientRow>, number: u64, checksum: u32) -> Result<u64, ClientRefusal> {
    let last = row.map_or(0, |row| row.last);
    match row {
        _ if number == 0 => Err(ClientRefusal::Invalid("numbers begin with 1")),
        Some(row) if number == last => Err(repeated(row, checksum)),
        Some(row) if number < last => Err(repeated(row, 0)),
        _ if number == last + 1 => Ok(number),
        None => Err(ClientRefusal::Unknown),
        Some(_) => Err(ClientRefusal::Gap { last }),
    }
}

fn judge_sequence(row: Option<&ClientRow>, epoch: u16, first: u32, count: u32) -> Result<u64, ClientRefusal> {
    let (first, count) = (u64::from(first), u64::from(count));
    if first >= SEQUENCES || count == 0 || count >= SEQUENCES / 2 {
        return Err(ClientRefusal::Invalid("sequence numbers have 31 bits"));
    }
    let Some(row) = row else {
        return if first == 0 {
            Ok(count)
        } else {
            Err(ClientRefusal::Unknown)
        };
    };
    if row.epoch > epoch {
        return Err(ClientRefusal::Fenced { epoch: row.epoch });
    }
    if row.epoch < epoch {
        return if first == 0 {
            Ok(count)
        } else {
            Err(ClientRefusal::Gap { last: 0 })
        };
    }
    let ahead = (SEQUENCES + first - row.last % SEQUENCES) % SEQUENCES;
    let behind = SEQUENCES - ahead;
    if ahead == 0 {
        return row
            .last
            .checked_add(count)
            .ok_or(ClientRefusal::Invalid("the client has no numbers left"));
    }
    if ahead < SEQUENCES / 2 || behind > row.last {
        return Err(ClientRefusal::Gap { last: row.last });
    }
    Err(if count <= behind {
        repeated(row, 0)
    } else {
        ClientRefusal::Overlaps
    })
}

/// The answer to a request that is in the log. A checksum of 0 is not compared.
fn repeated(row: &ClientRow, checksum: u32) -> ClientRefusal {
    if checksum != 0 && row.checksum != 0 && checksum != row.checksum {
        return ClientRefusal::Reused;
    }
    ClientRefusal::Repeated {
        last_sequence: row.sequence,
    }
}

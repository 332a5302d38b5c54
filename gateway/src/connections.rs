//! Limits the open connections of a server. At the limit, a new connection replaces the slowest one that is idle or has
//! sent half a request. A connection with a complete, unanswered request is never closed.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

/// Connections that were told to close may keep their descriptors for a moment. Accepting pauses when this many do.
const LEAVING_MAX: usize = 64;

/// Unproven connections may take at most one in this many places.
const NEWCOMERS_SHARE: usize = 4;

/// How connections that wait for scarce memory take it from others.
#[derive(Debug, Clone, Copy)]
struct Pressure {
    /// One connection is closed per interval of waiting.
    interval: Duration,
    /// A connection that has held memory for less than this keeps it.
    held_min: Duration,
}

const PRESSURE: Pressure = Pressure {
    interval: Duration::from_millis(250),
    held_min: Duration::from_secs(1),
};

/// The connections of a server. Clones share them.
#[derive(Debug, Clone)]
pub struct Connections(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    limit: usize,
    pressure: Pressure,
    room: Arc<Semaphore>,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    /// Orders connections and their progress.
    clock: u64,
    open: HashMap<u64, Entry>,
}

#[derive(Debug)]
struct Entry {
    standing: Standing,
    /// How much of each kind of memory it holds.
    holds: [Holds; 2],
    closing: CancellationToken,
}

/// How many times a connection holds a kind of memory, and since when.
#[derive(Debug, Clone, Copy, Default)]
struct Holds {
    count: usize,
    since: Option<Instant>,
}

/// Decides which connection to close.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Standing {
    source: IpAddr,
    /// It has authenticated, or finished a request where no authentication is required.
    proven: bool,
    /// Complete requests without an answer.
    answering: usize,
    /// Its last progress: connecting, completing a request or receiving an answer. Only the order counts.
    progress: u64,
}

/// Memory that connections compete for, in addition to their places.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scarce {
    /// TLS's buffers.
    Tls,
    /// Requests in the process of being read.
    Reading,
}

/// The right to have one more descriptor open.
#[derive(Debug)]
pub struct Room {
    _permit: OwnedSemaphorePermit,
}

/// One of the open connections, until dropped.
#[derive(Debug)]
pub struct Connection {
    seat: Seat,
    closing: CancellationToken,
    nth: usize,
    _room: Room,
}

/// A handle to an open connection, which records what the connection does. It does not keep the connection open.
#[derive(Debug, Clone)]
pub struct Seat {
    shared: Arc<Shared>,
    id: u64,
}

/// A complete request without an answer, until dropped.
#[derive(Debug)]
pub struct Answering(Seat);

/// Scarce memory that a connection holds, until dropped.
#[derive(Debug)]
pub(crate) struct Holding {
    seat: Seat,
    what: Scarce,
}

impl Connections {
    /// The number of descriptors that `limit` connections need, including those being closed.
    pub const fn descriptors(limit: usize) -> usize {
        limit + LEAVING_MAX
    }

    /// Room for at most `limit` connections, but at least one.
    pub fn new(limit: usize) -> Connections {
        Connections::with(limit, PRESSURE)
    }

    fn with(limit: usize, pressure: Pressure) -> Connections {
        let limit = limit.clamp(1, Semaphore::MAX_PERMITS - LEAVING_MAX);
        Connections(Arc::new(Shared {
            limit,
            pressure,
            room: Arc::new(Semaphore::new(Self::descriptors(limit))),
            table: Mutex::default(),
        }))
    }

    /// Waits until another connection may be accepted. It does not wait at the limit, only while closed connections
    /// still have their descriptors.
    ///
    /// # Panics
    /// Never: the semaphore is not closed.
    pub async fn room(&self) -> Room {
        let permit = Arc::clone(&self.0.room).acquire_owned().await;
        Room {
            _permit: permit.expect("a semaphore that is never closed"),
        }
    }

    /// Admits a connection, and closes another one at the limit. Returns `None` if all others have complete requests:
    /// the caller must then close the new one.
    pub fn admit(&self, from: IpAddr, room: Room) -> Option<Connection> {
        let mut table = self.0.table();
        if table.open.len() >= self.0.limit {
            let chosen = choose(self.0.limit, table.standings());
            table.close(chosen)?;
        }
        let id = table.tick();
        let closing = CancellationToken::new();
        let standing = Standing {
            source: source(from),
            proven: false,
            answering: 0,
            progress: id,
        };
        let entry = Entry {
            standing,
            holds: [Holds::default(); 2],
            closing: closing.clone(),
        };
        table.open.insert(id, entry);
        let nth = table.open.len();
        drop(table);
        let seat = Seat {
            shared: Arc::clone(&self.0),
            id,
        };
        Some(Connection {
            seat,
            closing,
            nth,
            _room: room,
        })
    }
}

impl Shared {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    fn standings(&self) -> Vec<(u64, Standing)> {
        self.open
            .iter()
            .map(|(id, entry)| (*id, entry.standing))
            .collect()
    }

    /// Connections that have held this memory for a while.
    fn holders(&self, what: Scarce, held_min: Duration) -> Vec<(u64, Standing)> {
        let held_long = |entry: &Entry| {
            entry.holds[what as usize]
                .since
                .is_some_and(|since| since.elapsed() >= held_min)
        };
        let holders = self.open.iter().filter(|(_, entry)| held_long(entry));
        holders.map(|(id, entry)| (*id, entry.standing)).collect()
    }

    fn close(&mut self, id: Option<u64>) -> Option<()> {
        let entry = self.open.remove(&id?)?;
        entry.closing.cancel();
        Some(())
    }
}

impl Connection {
    /// The number of open connections when it arrived, including itself.
    pub(crate) fn nth(&self) -> usize {
        self.nth
    }

    /// The handle for the tasks that serve it.
    pub fn seat(&self) -> Seat {
        self.seat.clone()
    }

    /// Runs the future that serves the connection. Returns `None` if another connection took its place.
    pub async fn until_closed<F: Future>(&self, served: F) -> Option<F::Output> {
        self.closing.run_until_cancelled(served).await
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.seat.shared.table().open.remove(&self.seat.id);
    }
}

impl Seat {
    fn change(&self, change: impl FnOnce(&mut Entry, u64)) {
        let mut table = self.shared.table();
        let now = table.tick();
        if let Some(entry) = table.open.get_mut(&self.id) {
            change(entry, now);
        }
    }

    /// Marks the connection as proven: it has authenticated or, where no authentication is required, got an answer.
    /// Three quarters of the places are reserved for such connections.
    pub fn prove(&self) {
        self.change(|entry, _| entry.standing.proven = true);
    }

    /// Marks a request as complete: the connection stays open until its answer.
    pub fn answering(&self) -> Answering {
        self.change(|entry, now| {
            entry.standing.answering += 1;
            entry.standing.progress = now;
        });
        Answering(self.clone())
    }

    /// Records that the connection holds scarce memory from now on.
    pub(crate) fn holding(&self, what: Scarce) -> Holding {
        self.change(|entry, _| {
            let holds = &mut entry.holds[what as usize];
            holds.count += 1;
            holds.since.get_or_insert_with(Instant::now);
        });
        Holding {
            seat: self.clone(),
            what,
        }
    }

    /// Waits for scarce memory, and meanwhile closes the slowest of its holders at intervals. `limit` is the number of
    /// connections that the memory is for.
    pub(crate) async fn press<F: Future>(&self, what: Scarce, limit: usize, reserving: F) -> F::Output {
        let mut reserving = std::pin::pin!(reserving);
        loop {
            tokio::select! {
                biased;
                reserved = reserving.as_mut() => return reserved,
                () = sleep(self.shared.pressure.interval) => {
                    let mut table = self.shared.table();
                    let holders = table.holders(what, self.shared.pressure.held_min);
                    let chosen = choose(limit, holders.into_iter().filter(|(id, _)| *id != self.id).collect());
                    table.close(chosen);
                }
            }
        }
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.change(|entry, now| {
            entry.standing.answering = entry.standing.answering.saturating_sub(1);
            entry.standing.progress = now;
        });
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        self.seat.change(|entry, _| {
            let holds = &mut entry.holds[self.what as usize];
            holds.count = holds.count.saturating_sub(1);
            if holds.count == 0 {
                holds.since = None;
            }
        });
    }
}

/// Chooses the connection to close for another one, or `None` if none may be closed.
///
/// Proven connections keep three quarters of `limit`. Among the others the choice is the connection without progress
/// for longest, of the address with the most connections.
fn choose(limit: usize, open: Vec<(u64, Standing)>) -> Option<u64> {
    let proven = open.iter().filter(|(_, standing)| standing.proven).count();
    let mut crowds = HashMap::<IpAddr, usize>::new();
    for (_, standing) in open.iter().filter(|(_, standing)| !standing.proven) {
        *crowds.entry(standing.source).or_default() += 1;
    }
    let idle = open.into_iter().filter(|(_, standing)| standing.answering == 0);
    let (proven_idle, newcomers): (Vec<_>, Vec<_>) = idle.partition(|(_, standing)| standing.proven);
    let newcomer = newcomers.into_iter().min_by_key(|(_, standing)| {
        let crowd = crowds.get(&standing.source).copied().unwrap_or(0);
        (std::cmp::Reverse(crowd), standing.progress)
    });
    let slowest = proven_idle
        .into_iter()
        .min_by_key(|(_, standing)| standing.progress);
    let chosen = if proven > limit - limit / NEWCOMERS_SHARE {
        slowest.or(newcomer)
    } else {
        newcomer
    };
    chosen.map(|(id, _)| id)
}

/// The address by which connections are counted: an IPv6 host owns its whole /64.
fn source(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        v4 @ IpAddr::V4(_) => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    const NEWCOMER: Standing = Standing {
        source: IpAddr::V4(Ipv4Addr::LOCALHOST),
        proven: false,
        answering: 0,
        progress: 0,
    };

    fn newcomer(progress: u64) -> Standing {
        Standing { progress, ..NEWCOMER }
    }

    fn proven(progress: u64) -> Standing {
        Standing {
            proven: true,
            ..newcomer(progress)
        }
    }

    fn at_work(standing: Standing) -> Standing {
        Standing {
            answering: 1,
            ..standing
        }
    }

    fn from(address: &str, standing: Standing) -> Standing {
        Standing {
            source: source(address.parse().unwrap()),
            ..standing
        }
    }

    fn chosen(limit: usize, open: &[Standing]) -> Option<u64> {
        choose(limit, (0..).zip(open.iter().copied()).collect())
    }

    #[test]
    fn the_slowest_newcomer_goes_first() {
        assert_eq!(
            chosen(4, &[newcomer(3), newcomer(1), proven(0), newcomer(2)]),
            Some(1)
        );
        assert_eq!(chosen(2, &[at_work(newcomer(1)), newcomer(2)]), Some(1));
        assert_eq!(chosen(0, &[]), None);
    }

    #[test]
    fn the_most_crowded_address_gives_way_first() {
        let crowd = ["10.0.0.9", "10.0.0.9", "::ffff:10.0.0.9"].map(|address| from(address, newcomer(9)));
        let mut open = vec![from("10.0.0.1", newcomer(1))];
        open.extend(crowd);
        assert!(chosen(4, &open) > Some(0));
        // An IPv6 host has 2^64 addresses.
        let one_host = ["2001:db8::1", "2001:db8::2"].map(|address| from(address, newcomer(9)));
        let open = [from("2001:db8:0:1::1", newcomer(1)), one_host[0], one_host[1]];
        assert!(chosen(3, &open) > Some(0));
    }

    #[test]
    fn three_quarters_are_kept_for_those_that_have_proven_themselves() {
        let open = |count: u64| {
            let mut open: Vec<_> = (0..count).map(proven).collect();
            open.resize_with(8, || newcomer(100));
            open
        };
        assert_eq!(chosen(8, &open(6)), Some(6));
        assert_eq!(chosen(8, &open(7)), Some(0));
        assert_eq!(chosen(8, &open(8)), Some(0));
    }

    #[test]
    fn connections_at_work_stay_open() {
        assert_eq!(chosen(2, &[at_work(proven(1)), at_work(newcomer(2))]), None);
        let mut busy = vec![at_work(proven(1)); 7];
        busy.push(newcomer(0));
        assert_eq!(chosen(8, &busy), Some(7));
        // Busy newcomers do not cost a proven connection its place.
        assert_eq!(chosen(2, &[proven(1), at_work(newcomer(2))]), None);
    }

    #[tokio::test]
    async fn a_connection_over_the_limit_replaces_the_slowest() {
        let connections = Connections::new(2);
        let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let first = connections.admit(address, connections.room().await).unwrap();
        let second = connections.admit(address, connections.room().await).unwrap();
        drop(first.seat().answering());
        let third = connections.admit(address, connections.room().await).unwrap();
        assert_eq!(second.until_closed(std::future::pending::<()>()).await, None);
        let (one, other) = (first.seat().answering(), third.seat().answering());
        assert!(connections.admit(address, connections.room().await).is_none());
        drop((one, second));
        let fourth = connections.admit(address, connections.room().await).unwrap();
        assert_eq!(first.until_closed(std::future::pending::<()>()).await, None);
        assert_eq!(fourth.nth(), 2);
        drop(other);
    }

    #[tokio::test]
    async fn scarce_memory_comes_from_the_slowest_holder() {
        let at_once = Pressure {
            interval: Duration::from_millis(1),
            held_min: Duration::ZERO,
        };
        let connections = Connections::with(8, at_once);
        let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let memory = Arc::new(Semaphore::new(1));
        let holder = connections.admit(address, connections.room().await).unwrap();
        let waiter = connections.admit(address, connections.room().await).unwrap();
        let permit = Arc::clone(&memory).acquire_owned().await.unwrap();
        let held = async {
            let _held = (holder.seat().holding(Scarce::Tls), permit);
            std::future::pending::<()>().await;
        };
        let seat = waiter.seat();
        let (closed, got) = tokio::join!(
            holder.until_closed(held),
            seat.press(Scarce::Tls, 8, memory.acquire()),
        );
        assert_eq!(closed, None);
        drop(got);
    }

    #[tokio::test]
    async fn only_long_held_memory_of_the_same_kind_can_be_taken_away() {
        let connections = Connections::new(8);
        let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let holder = connections.admit(address, connections.room().await).unwrap();
        let seat = holder.seat();
        let (first, second) = (seat.holding(Scarce::Tls), seat.holding(Scarce::Tls));
        let holders = |what, held_min| connections.0.table().holders(what, held_min).len();
        let hour = Duration::from_secs(3_600);
        assert_eq!(holders(Scarce::Tls, Duration::ZERO), 1);
        assert_eq!(holders(Scarce::Tls, hour), 0);
        assert_eq!(holders(Scarce::Reading, Duration::ZERO), 0);
        drop(first);
        assert_eq!(holders(Scarce::Tls, Duration::ZERO), 1);
        drop(second);
        assert_eq!(holders(Scarce::Tls, Duration::ZERO), 0);
    }
}

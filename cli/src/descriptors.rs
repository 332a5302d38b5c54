//! File descriptors: raises the process's limit, and limits client connections, so that they leave descriptors for the store, the
//! log and the probes.

use crate::admin::ADMIN_DESCRIPTORS;
use anyhow::Context;
use millpond_gateway::Connections;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tracing::warn;

/// The soft limit to request, unless the hard limit is lower.
const WANTED: u64 = 65_536;

/// Descriptors for the store's connections or files: far more than concurrent uploads, commits and their retries.
const STORE: usize = 128;

/// Descriptors for the program itself: standard streams, the runtime, listeners, resolvers, reloaded files.
const PROGRAM: usize = 64;

/// Minimum connections of a useful gateway.
const CONNECTIONS_MIN: usize = 16;

/// Raises the limit of open files as far as permitted, and returns it.
///
/// # Errors
/// The system does not report its limit.
pub(crate) fn raise() -> anyhow::Result<usize> {
    let what = Resource::RLIMIT_NOFILE;
    let (soft, hard) = getrlimit(what).context("cannot read the limit of open files")?;
    let target = hard.min(WANTED).max(soft);
    let raised = target > soft && setrlimit(what, target, hard).is_ok();
    let limit = if raised { target } else { soft };
    Ok(usize::try_from(limit).unwrap_or(usize::MAX))
}

/// The part of the descriptors for connections that other gateways get at most.
const PEERS: usize = 4;

/// Maximum numbers of a gateway's connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Room {
    /// Connections of clients, on all ports together.
    pub(crate) otlp: usize,
    /// Connections of other gateways.
    pub(crate) peers: usize,
}

/// Divides this limit of open files, up to the `wanted` numbers. Without a port for other gateways, `wanted.peers` is 0.
///
/// # Errors
/// The limit leaves no room for a useful number.
pub(crate) fn connections(limit: usize, wanted: Room) -> anyhow::Result<Room> {
    // Descriptors that are not available to connections of clients and gateways.
    let ports = if wanted.peers > 0 { 2 } else { 1 };
    let reserved = ports * Connections::descriptors(0) + ADMIN_DESCRIPTORS + STORE + PROGRAM;
    let fit = limit.saturating_sub(reserved);
    let peers = wanted.peers.min(fit / PEERS);
    let (fit, wanted) = (fit - peers, wanted.otlp);
    anyhow::ensure!(
        fit >= CONNECTIONS_MIN,
        "the limit of open files is {limit}, and a gateway needs {} at least: raise it (ulimit -n, systemd's LimitNOFILE)",
        reserved + peers + CONNECTIONS_MIN
    );
    if fit < wanted {
        warn!(
            "room for {fit} OTLP connections, not {wanted}: the limit of open files is {limit} (ulimit -n, systemd's LimitNOFILE)"
        );
    }
    let otlp = fit.min(wanted);
    Ok(Room { otlp, peers })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_port_and_the_store_have_their_descriptors() {
        let reserved = Connections::descriptors(0) + ADMIN_DESCRIPTORS + STORE + PROGRAM;
        let room = |otlp, peers| Room { otlp, peers };
        let clients = |limit| connections(limit, room(1024, 0)).map(|room| room.otlp);
        assert_eq!(clients(reserved + 1024).unwrap(), 1024);
        assert_eq!(clients(usize::MAX).unwrap(), 1024);
        assert_eq!(clients(reserved + 100).unwrap(), 100);
        let error = clients(reserved + CONNECTIONS_MIN - 1).unwrap_err();
        assert!(error.to_string().contains("LimitNOFILE"), "{error}");

        let reserved = reserved + Connections::descriptors(0);
        let both = |limit| connections(limit, room(1024, 512));
        assert_eq!(both(usize::MAX).unwrap(), room(1024, 512));
        assert_eq!(both(reserved + 100).unwrap(), room(75, 25));
        assert!(both(reserved + CONNECTIONS_MIN).is_err());
    }

    #[test]
    fn the_soft_limit_is_raised() {
        let raised = raise().unwrap();
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        assert_eq!(soft, hard.min(WANTED).max(soft));
        assert_eq!(u64::try_from(raised).unwrap(), soft);
    }
}

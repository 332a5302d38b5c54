//! Addresses for the processes that the demo and the benchmark start.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::ops::Range;

use millpond_runtime::{Environment as _, SystemEnvironment};

/// Distinct local addresses that were free a moment ago.
///
/// # Errors
/// The system has no free port.
pub fn free_addresses<const N: usize>() -> io::Result<[SocketAddr; N]> {
    let mut addresses = [SocketAddr::from(([127, 0, 0, 1], 0)); N];
    fill(&mut addresses)?;
    Ok(addresses)
}

/// As [`free_addresses`], several sets of them, all distinct.
///
/// # Errors
/// The system has no free port.
pub fn sets_of_free_addresses<const N: usize>(sets: usize) -> io::Result<Vec<[SocketAddr; N]>> {
    let mut addresses = vec![[SocketAddr::from(([127, 0, 0, 1], 0)); N]; sets];
    fill(addresses.as_flattened_mut())?;
    Ok(addresses)
}

/// Below the ports that the system gives to outgoing connections (from 32768 on Linux): one of these
/// could take the port of a server that is still starting, or starts again.
const PORTS: Range<u16> = 10_240..32_768;

fn fill(addresses: &mut [SocketAddr]) -> io::Result<()> {
    let size = PORTS.end - PORTS.start;
    let first = PORTS.start + u16::try_from(SystemEnvironment.below(size.into())).unwrap_or(0);
    let mut ports = (first..PORTS.end).chain(PORTS.start..first);
    // Hold all of them until the last one is known, so that no two are equal.
    let mut held = Vec::new();
    for address in addresses {
        let (port, listener) = ports
            .find_map(|port| Some((port, TcpListener::bind((address.ip(), port)).ok()?)))
            .ok_or(io::ErrorKind::AddrInUse)?;
        address.set_port(port);
        held.push(listener);
    }
    Ok(())
}

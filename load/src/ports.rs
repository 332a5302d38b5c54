//! Addresses for the processes that the demo and the benchmark start.

use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use millpond_runtime::{Environment as _, SystemEnvironment};

/// Distinct local addresses that were free a moment ago. This process does not get them again, nor do other processes that ask here, until
/// it ends.
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

/// A UDP socket on a port, which does not disturb a TCP server there, tells others who look for one that the port is taken.
static RESERVED: Mutex<Vec<UdpSocket>> = Mutex::new(Vec::new());

fn fill(addresses: &mut [SocketAddr]) -> io::Result<()> {
    let size = PORTS.end - PORTS.start;
    let first = PORTS.start + u16::try_from(SystemEnvironment.below(size.into())).unwrap_or(0);
    let mut ports = (first..PORTS.end).chain(PORTS.start..first);
    let mut reserved = RESERVED.lock().unwrap_or_else(PoisonError::into_inner);
    for address in addresses {
        let reservation = ports
            .find_map(|port| {
                let reservation = UdpSocket::bind((address.ip(), port)).ok()?;
                TcpListener::bind((address.ip(), port)).ok().map(|_| reservation)
            })
            .ok_or(io::ErrorKind::AddrInUse)?;
        address.set_port(reservation.local_addr()?.port());
        reserved.push(reservation);
    }
    Ok(())
}

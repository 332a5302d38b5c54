//! Addresses for the processes that the demo and the benchmark start.

use std::io;
use std::net::{SocketAddr, TcpListener};

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

fn fill(addresses: &mut [SocketAddr]) -> io::Result<()> {
    // Hold all of them until the last one is known, so that no two are equal.
    let mut held = Vec::new();
    for address in addresses {
        let listener = TcpListener::bind(*address)?;
        *address = listener.local_addr()?;
        held.push(listener);
    }
    Ok(())
}

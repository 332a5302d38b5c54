//! Addresses for the processes that the demo and the benchmark start.

use std::io;
use std::net::{SocketAddr, TcpListener};

/// Addresses of this machine that were free a moment ago, no two the same.
///
/// # Errors
/// When the system has no port left.
pub fn free_addresses<const N: usize>() -> io::Result<[SocketAddr; N]> {
    let mut addresses = [SocketAddr::from(([127, 0, 0, 1], 0)); N];
    // All are held until all are known, so that no two are the same.
    let mut held = Vec::new();
    for address in &mut addresses {
        let listener = TcpListener::bind(*address)?;
        *address = listener.local_addr()?;
        held.push(listener);
    }
    Ok(addresses)
}

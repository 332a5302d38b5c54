//! The gateway's settings: every limit with its default and the reason. This module never reads a file or the
//! environment: the program does.

use std::time::Duration;

/// The gateway's settings. Each one is a limit on the resources that clients can use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Maximum length of a request message in bytes, both as received and decompressed. Default 16 MiB: the Collector's
    /// batches stay far below it, and the gateway holds a whole message in memory. At most a quarter of the memory
    /// budget.
    pub max_message_bytes: usize,
    /// Delay that RetryInfo or Retry-After asks of a client. Default 1 s: about the time in which a commit frees
    /// memory.
    pub retry_after: Duration,
    /// Time limit for receiving a request, from headers to last byte, not counting waits for memory. Default 30 s: a
    /// slower client holds memory that others need.
    pub read_timeout: Duration,
    /// Time limit of a new connection for each of: its first byte, the TLS handshake, and the bytes that show whether
    /// it speaks HTTP/2. Default 10 s.
    pub handshake_timeout: Duration,
    /// Time limit of an HTTP/1 connection for the headers of its next request, including idle time. Default 75 s: keeps
    /// the connections of clients that send once a minute, and closes one that trickles its headers.
    pub http1_header_timeout: Duration,
    /// Idle time after which the gateway sends an HTTP/2 ping. Default 30 s: below the idle timeouts of common load
    /// balancers.
    pub keepalive_interval: Duration,
    /// Time limit for the answer to a ping; then the gateway closes the connection. Default 20 s.
    pub keepalive_timeout: Duration,
    /// Maximum number of open connections over all ports. A further one replaces the slowest connection that is idle
    /// or has sent half a request. Default 1,024: each may have 64 KiB unread.
    pub max_connections: usize,
    /// Maximum number of requests in flight on one connection; the client holds back the rest. Default 1,024: a request
    /// waits for its commit, so a busy client has many.
    pub max_streams_per_connection: u32,
    /// Maximum number of requests in flight over all connections; the gateway asks further ones to retry. Default
    /// 16,384: each holds 12 KiB of the memory budget beside its message, so the budget is usually the tighter limit.
    pub max_requests: usize,
    /// Maximum size of one request's headers, and of an HTTP/1 connection's read buffer, which is at least 8 KiB.
    /// Default 16 KiB: ample for tokens and trace context.
    pub max_header_bytes: u32,
    /// Bytes that a client may send ahead on one request (HTTP/2's stream window). Default 1 MiB: a typical request
    /// fits without a pause.
    pub stream_window_bytes: u32,
    /// Bytes that the first connection may send ahead (HTTP/2's connection window). The n-th connection gets an n-th of
    /// it, but at least 64 KiB, the protocol's minimum. Default 8 MiB.
    pub connection_window_bytes: u32,
    /// Maximum size of an HTTP/2 frame. Default 64 KiB: fewer frames and reads for clients that use it, in buffers that
    /// the allocator still keeps at hand.
    pub max_frame_bytes: u32,
    /// Time limit for requests in flight to finish once the gateway stops. Default 30 s: a linger and a commit with
    /// some retries.
    pub drain_timeout: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            max_message_bytes: 16 << 20,
            retry_after: Duration::from_secs(1),
            read_timeout: Duration::from_secs(30),
            handshake_timeout: Duration::from_secs(10),
            http1_header_timeout: Duration::from_secs(75),
            keepalive_interval: Duration::from_secs(30),
            keepalive_timeout: Duration::from_secs(20),
            max_connections: 1024,
            max_streams_per_connection: 1024,
            max_requests: 16_384,
            max_header_bytes: 16 << 10,
            stream_window_bytes: 1 << 20,
            connection_window_bytes: 8 << 20,
            max_frame_bytes: 64 << 10,
            drain_timeout: Duration::from_secs(30),
        }
    }
}

//! The gateway's settings: every limit it keeps, with its default and the reason for it.
//! It never reads a file or the environment: the program does that.

use std::time::Duration;

/// The gateway's settings. Every one is a limit: what a client sends cannot exceed their sum.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The longest request message in bytes, both as it came and decompressed. 16 MiB: the Collector's batches stay
    /// far below it, and a message is held in memory as a whole. A quarter of the memory budget at most.
    pub max_message_bytes: usize,
    /// What RetryInfo or Retry-After tells a client that should come back. 1 s: about the time in which a commit
    /// frees some.
    pub retry_after: Duration,
    /// How long a client may take to send one request, from its headers to its last byte, waiting for memory not
    /// counted. 30 s: a slower client holds memory that others need.
    pub read_timeout: Duration,
    /// How long a new connection may take for its first byte, for TLS's handshake, and for the bytes that say whether it speaks
    /// HTTP/2, each. 10 s.
    pub handshake_timeout: Duration,
    /// How long an HTTP/1 connection may take to send the headers of its next request, its idle time included. 75 s:
    /// clients that send once a minute keep their connection, and one that sends its headers byte by byte does not.
    pub http1_header_timeout: Duration,
    /// An HTTP/2 ping is sent on a connection that was silent for this long. 30 s: below the idle timeouts of
    /// common load balancers.
    pub keepalive_interval: Duration,
    /// A connection that does not answer a ping for this long is closed. 20 s.
    pub keepalive_timeout: Duration,
    /// Connections open at once, of both ports. One more takes the place of the slowest that is idle or has sent half a request.
    /// 1,024: each may have 64 KiB unread.
    pub max_connections: usize,
    /// Requests in flight on one connection; the client holds back the rest. 1,024: a request waits for its commit,
    /// so a busy client has many.
    pub max_streams_per_connection: u32,
    /// Requests in flight over all connections; one more is told to come back. 16,384: each holds
    /// 12 KiB of the memory budget beside its message, so that the budget is what bounds them as a rule.
    pub max_requests: usize,
    /// Bytes of headers of one request, and of what an HTTP/1 connection reads at a time, which is 8 KiB at least.
    /// 16 KiB: ample for tokens and trace context.
    pub max_header_bytes: u32,
    /// How far a client may send ahead on one request before it is read (HTTP/2's stream window). 1 MiB: a usual
    /// request fits without a pause.
    pub stream_window_bytes: u32,
    /// How far the first connection may send ahead (HTTP/2's connection window); the n-th gets an n-th of it, but at
    /// least 64 KiB, the protocol's own minimum. 8 MiB.
    pub connection_window_bytes: u32,
    /// The largest HTTP/2 frame accepted. 64 KiB: fewer frames and reads for clients that make use of it, in buffers
    /// that the allocator still keeps at hand.
    pub max_frame_bytes: u32,
    /// How long requests in flight may take to finish once the gateway is told to stop. 30 s: a linger and a commit
    /// with some retries.
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

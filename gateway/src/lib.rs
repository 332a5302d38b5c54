//! OTLP/gRPC and OTLP/HTTP in front of a producer: logs, traces and metrics, each into a stream of its own.
//!
//! It does not decode OTLP. A request is read within limits and the memory budget, decompressed within both, checked by
//! one walk over its wire structure, and appended as it is; JSON becomes protobuf first. It answers success only when the
//! records are committed. What a client should retry is answered UNAVAILABLE, DEADLINE_EXCEEDED or, with RetryInfo,
//! RESOURCE_EXHAUSTED (503, 504 or 429); what it should not is INVALID_ARGUMENT (400 or 413).
//! Where the gateway has a tokens file, a request without one of its tokens is UNAUTHENTICATED (401) before a byte of it is
//! read; where it has a certificate, connections are TLS and nothing else.
//!
//! There is one way for all requests (`request`), and an envelope for each protocol (`grpc`, `http`).
//!
//! gRPC's framing and decompression are done here, on hyper, rather than by tonic, which (0.14) allocates what a
//! message's prefix promises and lets a zstd frame choose a window of 128 MiB, neither of which a budget could bound.

mod buffers;
mod config;
mod connection;
mod connections;
mod decompress;
mod entrance;
mod files;
mod google_rpc;
mod grpc;
mod http;
mod memory;
mod message;
mod metrics;
mod refusal;
mod reply;
mod request;
mod security;
mod server;
mod throttled_warnings;
mod tls;
mod tokens;

pub use config::Config;
pub use connections::{Answering, Connection, Connections, Room, Seat};
pub use files::FileError;
pub use security::{Exposed, Security, SecurityFiles, check_exposure, count_tokens};
pub use server::{Error, Gateway, Listeners};
pub use tls::TlsFiles;

//! OTLP/gRPC and OTLP/HTTP in front of a producer: logs, traces and metrics, each in a separate stream. Events, which
//! are rows of JSON, come over HTTP into streams that their senders name. Kafka's producers send both.
//!
//! The gateway does not decode OTLP. It reads a request within limits and the memory budget, decompresses it within
//! both, validates it with one walk over its wire structure, and appends it unchanged; JSON becomes protobuf first. It
//! reports success only once the records are committed. Errors that a client should retry are UNAVAILABLE,
//! DEADLINE_EXCEEDED or, with RetryInfo, RESOURCE_EXHAUSTED (503, 504 or 429). Errors that it should not retry are
//! INVALID_ARGUMENT (400 or 413). With a tokens file, a request without a valid token is UNAUTHENTICATED (401) before
//! the gateway reads a byte of it. With a certificate, the gateway accepts only TLS connections.
//!
//! All requests take one path (`request`), with an envelope for each protocol (`grpc`, `http`, `events`, `kafka`).
//!
//! The gateway does gRPC's framing and decompression itself, on hyper. tonic (0.14) allocates the length in a message's
//! prefix and lets a zstd frame choose a window of 128 MiB; a budget could bound neither.

mod buffers;
mod config;
mod connection;
mod connections;
mod decompress;
mod entrance;
mod envelope;
mod events;
mod files;
mod google_rpc;
mod grpc;
mod http;
mod kafka;
mod memory;
mod message;
mod metrics;
mod numbering;
mod refusal;
mod reply;
mod request;
mod routing;
pub mod rows;
mod security;
mod server;
mod throttled_warnings;
mod tls;
mod tokens;

pub use config::Config;
pub use connections::{Answering, Connection, Connections, Room, Seat};
pub use files::FileError;
pub use kafka::{KafkaConfig, KafkaTopics, Route, TopicSettings, Unlisted, raw_row};
pub use security::{Exposed, Security, SecurityFiles, check_exposure, count_tokens};
pub use server::{Error, Gateway, Listeners};
pub use tls::TlsFiles;
pub use tokens::is_for_otlp;

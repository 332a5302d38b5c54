//! Tests of the gateway over real connections.

mod bad_input;
mod common;
mod events;
mod export;
mod homes;
mod http;
mod http_bad_input;
mod kafka;
mod numbering;
mod routing;
mod tls;
mod tokens;

//! Tests of the requests between members of a buffer, over real connections.

mod growth;
mod peer;
mod support;
mod watch;

//! Buffer URLs, requests to the object store, and their outcomes.
//!
//! Only this crate knows the kind of the store. It never retries a request by itself and never guesses an outcome.

mod error;
mod file;
mod metrics;
mod open;
mod s3;
mod self_test;
mod store;
#[cfg(feature = "testing")]
pub mod testing;
pub mod unreliable;
mod url;

pub use error::{Error, ErrorKind};
pub use metrics::RequestCounts;
pub use open::{OpenError, S3Credentials, StoreOptions};
pub use self_test::{SelfTestError, Violation};
pub use store::{Cas, Created, Fetched, Listed, Store, Version, Versioned};
pub use url::{BufferUrl, BufferUrlError};

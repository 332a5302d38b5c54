//! The object `buffer`: the buffer's identity and number of shards. The first producer writes it, and the number only grows.

use crate::manifest::ClientId;
use crate::object::{Object, Stamp};
use crate::unique::{PATHS_MAX, check_key};
use crate::{BUFFER_VERSION, Count, FORMAT_VERSION, FormatError, envelope, proto};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;
use thiserror::Error;
use uuid::Uuid;

/// Maximum number of shards in a buffer: keys have four digits.
pub const SHARDS_MAX: u32 = 10_000;

/// Maximum number of streams whose rows are routed by key: as many streams of events as a shard has.
pub const ROUTED_MAX: usize = 256;

/// The routes of streams, by name.
pub type Routes = BTreeMap<Arc<str>, Arc<Route>>;

/// How the rows of a stream find their shards: by their keys. Rows without a key may be in any shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// JSON paths, as in a setting of `--unique`.
    pub key: Vec<String>,
    /// The rows go to this number of shards, from shard 0 on.
    pub shards: u32,
}

impl Route {
    /// The shard of the rows with this key, the hash of [`UniqueSetting`](crate::UniqueSetting)'s key.
    pub fn shard_of(&self, key: u128) -> u32 {
        let shard = key % u128::from(self.shards.max(1));
        u32::try_from(shard).expect("less than the number of shards")
    }
}

/// Why a buffer cannot route a stream.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CannotRoute {
    /// Its rows have gone to other shards so far.
    #[error(
        "stream {stream} is routed by {} over {}: consumers would not compare its earlier rows with those of a new route. To change the \
         route anyway, first run `millpond buffer unroute {stream}`",
        .is.key.join(", "), shards(.is.shards)
    )]
    Differs {
        /// The stream.
        stream: String,
        /// Its route.
        is: Arc<Route>,
    },
    /// The route breaks a rule.
    #[error("stream {stream}: {reason}")]
    Invalid {
        /// The stream.
        stream: String,
        /// The rule.
        reason: String,
    },
    /// The object would be too large.
    #[error("a buffer routes at most {ROUTED_MAX} streams by key")]
    TooMany,
}

fn shards(count: u32) -> String {
    match count {
        1 => "1 shard".to_owned(),
        _ => format!("{count} shards"),
    }
}

/// The content of the object `buffer`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Buffer {
    /// Part of every batch's identity: a buffer created again at the same URL gets a new id.
    pub id: Uuid,
    /// At least one.
    pub shards: u32,
    /// The number of shards that have numbered requests, the first ones. `None`: all, because the buffer has not grown.
    pub home_shards: Option<u32>,
    /// The streams whose rows go to the shard of their key.
    pub routed: Routes,
    /// Distinguishes states. Zero in an object of an older program.
    pub stamp: Stamp,
}

/// Why a buffer cannot have this number of shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum CannotGrow {
    /// Sequences and cursors of the last shards would be lost.
    #[error(
        "the buffer has {has} shards and cannot shrink to {asked}: make a buffer at another URL and move the producers to it"
    )]
    Shrinks {
        /// The number of shards that it has.
        has: u32,
        /// The number that was asked for.
        asked: u32,
    },
    /// Keys have four digits.
    #[error("a buffer has at most {SHARDS_MAX} shards, not {0}: use a smaller number")]
    TooMany(u32),
}

impl Buffer {
    /// A new buffer, in its first state. Half of its random id is the nonce of its writer.
    pub fn new(id: Uuid, shards: u32) -> Buffer {
        let nonce = id.as_u64_pair().1;
        let stamp = Stamp { version: 1, nonce };
        Buffer {
            id,
            shards,
            home_shards: None,
            routed: Routes::new(),
            stamp,
        }
    }

    /// The number of shards that have numbered requests, the first ones. It never changes.
    pub fn homes(&self) -> u32 {
        self.home_shards.unwrap_or(self.shards)
    }

    /// The shard that has the row of a client or of a key, for as long as the buffer lives.
    pub fn home_of(&self, client: ClientId) -> u32 {
        let [_, _, _, _, _, _, _, _, digest @ ..] = client.0;
        let home = u64::from_be_bytes(digest) % u64::from(self.homes());
        u32::try_from(home).expect("less than the number of shards")
    }

    /// The state with more shards. `None`: it has this number already.
    ///
    /// # Errors
    /// The number is smaller than before, or too large.
    pub fn grow(&self, shards: u32, nonce: u64) -> Result<Option<Buffer>, CannotGrow> {
        let has = self.shards;
        if shards > SHARDS_MAX {
            return Err(CannotGrow::TooMany(shards));
        }
        if shards < has {
            return Err(CannotGrow::Shrinks { has, asked: shards });
        }
        let grown = Buffer {
            shards,
            home_shards: Some(self.homes()),
            ..self.next(nonce)
        };
        Ok((shards > has).then_some(grown))
    }

    /// The state that also routes these streams. `None`: it routes all of them already.
    ///
    /// # Errors
    /// See [`CannotRoute`]: a route never changes.
    pub fn route(&self, routes: &Routes, nonce: u64) -> Result<Option<Buffer>, CannotRoute> {
        let mut next = self.next(nonce);
        for (stream, route) in routes {
            self.check_route(stream, route)
                .map_err(|reason| CannotRoute::Invalid {
                    stream: stream.to_string(),
                    reason,
                })?;
            match next.routed.get(stream) {
                Some(is) if is == route => {}
                Some(is) => {
                    return Err(CannotRoute::Differs {
                        stream: stream.to_string(),
                        is: is.clone(),
                    });
                }
                None => {
                    next.routed.insert(stream.clone(), route.clone());
                }
            }
        }
        if next.routed.len() > ROUTED_MAX {
            return Err(CannotRoute::TooMany);
        }
        Ok((next.routed.len() > self.routed.len()).then_some(next))
    }

    /// The state that no longer routes these streams. `None`: the buffer routes none of them.
    pub fn unroute(&self, streams: &[String], nonce: u64) -> Option<Buffer> {
        let mut next = self.next(nonce);
        next.routed
            .retain(|stream, _| !streams.iter().any(|ended| **ended == **stream));
        (next.routed.len() < self.routed.len()).then_some(next)
    }

    /// The same content in another state.
    fn next(&self, nonce: u64) -> Buffer {
        let version = self.stamp.version.wrapping_add(1);
        Buffer {
            stamp: Stamp { version, nonce },
            ..self.clone()
        }
    }

    /// Names the first rule that a route breaks.
    fn check_route(&self, stream: &str, route: &Route) -> Result<(), String> {
        millpond_segment::check_stream_name(stream).map_err(|error| error.to_string())?;
        check_key(&route.key)?;
        if !(1..=self.shards).contains(&route.shards) {
            let all = shards(self.shards);
            return Err(format!(
                "it is routed over {}: the buffer has {all}",
                shards(route.shards)
            ));
        }
        Ok(())
    }
}

impl Object for Buffer {
    const NAME: &'static str = "buffer object";
    const MAGIC: [u8; 4] = *b"MPBF";
    // Each of the routed streams has a key of eight paths.
    const BYTES_MAX: u64 = 1 << 20;
    const VERSION_MAX: u16 = BUFFER_VERSION;
    const COUNTS: &'static [Count] = &[
        Count {
            of: "routed streams",
            path: &[7],
            max: ROUTED_MAX,
        },
        Count {
            of: "paths of keys",
            path: &[7, 2],
            max: ROUTED_MAX * PATHS_MAX,
        },
    ];

    fn encode(&self) -> Bytes {
        // Destructured completely: a forgotten new field does not compile.
        let Buffer {
            id,
            shards,
            home_shards,
            routed,
            stamp,
        } = self;
        // Programs that would not route the rows refuse the object.
        let version = match routed.is_empty() {
            true => FORMAT_VERSION,
            false => BUFFER_VERSION,
        };
        envelope::wrap_version(
            Self::MAGIC,
            version,
            &proto::Buffer {
                buffer_id: id.as_bytes().to_vec(),
                shards: *shards,
                version: stamp.version,
                writer_nonce: stamp.nonce,
                home_shards: home_shards.unwrap_or(0),
                routed: routed.iter().map(encode_route).collect(),
            },
        )
    }

    fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let message: proto::Buffer = envelope::unwrap::<Self, _>(bytes)?;
        let id = Uuid::from_bytes(envelope::sixteen(Self::NAME, "buffer_id", &message.buffer_id)?);
        if message.shards == 0 || message.shards > SHARDS_MAX {
            return Err(FormatError::Content {
                object: Self::NAME,
                reason: format!(
                    "{} shards, which is not between 1 and {SHARDS_MAX}",
                    message.shards
                ),
            });
        }
        if message.home_shards > message.shards {
            return Err(FormatError::Content {
                object: Self::NAME,
                reason: format!(
                    "{} home shards, which is more than its {} shards",
                    message.home_shards, message.shards
                ),
            });
        }
        let mut buffer = Buffer {
            id,
            shards: message.shards,
            home_shards: Some(message.home_shards).filter(|homes| *homes > 0),
            routed: Routes::new(),
            stamp: Stamp {
                version: message.version,
                nonce: message.writer_nonce,
            },
        };
        for routed in message.routed {
            let proto::RoutedStream { stream, key, shards } = routed;
            let route = Route { key, shards };
            let wrong = |reason: String| FormatError::Content {
                object: Self::NAME,
                reason: format!("stream {stream}: {reason}"),
            };
            buffer.check_route(&stream, &route).map_err(wrong)?;
            if buffer
                .routed
                .insert(stream.as_str().into(), route.into())
                .is_some()
            {
                return Err(wrong("it is routed twice".to_owned()));
            }
        }
        Ok(buffer)
    }

    fn stamp(&self) -> Stamp {
        self.stamp
    }
}

fn encode_route((stream, route): (&Arc<str>, &Arc<Route>)) -> proto::RoutedStream {
    let Route { key, shards } = &**route;
    proto::RoutedStream {
        stream: stream.to_string(),
        key: key.clone(),
        shards: *shards,
    }
}

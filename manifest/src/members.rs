//! The processes of a consumer that divide the shards among themselves, as they last gave a sign of life. No promise
//! depends on this object: the cursors' leases alone decide who owns a shard.

use crate::object::{Object, Stamp};
use crate::{Count, FormatError, envelope, proto};
use bytes::Bytes;
use std::collections::BTreeMap;
use uuid::Uuid;

/// Maximum number of processes of one consumer.
pub const MEMBERS_MAX: usize = 1_000;

/// Maximum bytes of a process's name.
const INSTANCE_MAX: usize = 1_000;

/// The processes of a consumer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Members {
    /// The buffer.
    pub buffer_id: Uuid,
    /// Distinguishes states.
    pub stamp: Stamp,
    /// The number of signs of life of each process, by its name. A process without a change for some time is gone.
    pub beats: BTreeMap<String, u64>,
}

impl Members {
    /// A consumer without processes.
    pub fn new(buffer_id: Uuid) -> Members {
        Members {
            buffer_id,
            stamp: Stamp { version: 0, nonce: 0 },
            beats: BTreeMap::new(),
        }
    }

    /// The state after a process's sign of life, without the processes that are `gone`. A process that would be one too many
    /// is left out.
    #[must_use]
    pub fn beat<'a>(&self, instance: &str, gone: impl IntoIterator<Item = &'a str>) -> Members {
        let mut next = self.clone();
        for gone in gone {
            next.beats.remove(gone);
        }
        let fits = instance.len() <= INSTANCE_MAX && next.beats.len() < MEMBERS_MAX;
        if fits || next.beats.contains_key(instance) {
            let beats = next.beats.entry(instance.to_owned()).or_insert(0);
            *beats = beats.wrapping_add(1);
        }
        next
    }

    /// The state after a process has ended.
    #[must_use]
    pub fn without(&self, instance: &str) -> Members {
        let mut next = self.clone();
        next.beats.remove(instance);
        next
    }

    /// The next state, distinguished from every other by its counter and `nonce`.
    #[must_use]
    pub fn stamped(mut self, nonce: u64) -> Members {
        self.stamp = Stamp {
            version: self.stamp.version.wrapping_add(1),
            nonce,
        };
        self
    }
}

impl Object for Members {
    const NAME: &'static str = "list of members";
    const MAGIC: [u8; 4] = *b"MPMB";
    const BYTES_MAX: u64 = 2 << 20;
    const COUNTS: &'static [Count] = &[Count {
        of: "members",
        path: &[4],
        max: MEMBERS_MAX,
    }];

    fn encode(&self) -> Bytes {
        // Destructured completely: a forgotten new field does not compile.
        let Members {
            buffer_id,
            stamp,
            beats,
        } = self;
        let member = |(instance, beats): (&String, &u64)| proto::Member {
            instance: instance.clone(),
            beats: *beats,
        };
        envelope::wrap(
            Self::MAGIC,
            &proto::Members {
                buffer_id: buffer_id.as_bytes().to_vec(),
                version: stamp.version,
                writer_nonce: stamp.nonce,
                members: beats.iter().map(member).collect(),
            },
        )
    }

    fn decode(bytes: &[u8]) -> Result<Members, FormatError> {
        let message: proto::Members = envelope::unwrap::<Members, _>(bytes)?;
        let content = |reason: &str| FormatError::Content {
            object: Self::NAME,
            reason: reason.to_owned(),
        };
        if message
            .members
            .iter()
            .any(|member| member.instance.len() > INSTANCE_MAX)
        {
            return Err(content("the name of a process is too long"));
        }
        if !message.members.is_sorted_by(|a, b| a.instance < b.instance) {
            return Err(content("the processes are not in order"));
        }
        let members = message.members.into_iter();
        Ok(Members {
            buffer_id: Uuid::from_bytes(envelope::sixteen(Self::NAME, "buffer_id", &message.buffer_id)?),
            stamp: Stamp {
                version: message.version,
                nonce: message.writer_nonce,
            },
            beats: members.map(|member| (member.instance, member.beats)).collect(),
        })
    }

    fn stamp(&self) -> Stamp {
        self.stamp
    }
}

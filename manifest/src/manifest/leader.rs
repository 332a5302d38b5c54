//! The producer that commits for others, and the certificates by which producers know each other. No promise depends on
//! either: the transition of a commit does not look at them.

use std::fmt;

use super::{Manifest, ProducerId};
use crate::FormatError;

/// Maximum bytes of a leader's address: a DNS name has 253, a port five more and a colon.
pub const ADDRESS_MAX: usize = 259;

/// The SHA-256 of a certificate.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint(pub [u8; 32]);

impl Fingerprint {
    /// The bytes of an optional field: none for `None`.
    pub(crate) fn encode(fingerprint: Option<Fingerprint>) -> Vec<u8> {
        fingerprint.map_or_else(Vec::new, |fingerprint| fingerprint.0.to_vec())
    }

    /// Reads an optional field of an object.
    pub(crate) fn decode(
        object: &'static str,
        field: &str,
        bytes: &[u8],
    ) -> Result<Option<Fingerprint>, FormatError> {
        if bytes.is_empty() {
            return Ok(None);
        }
        let fingerprint = bytes.try_into().map_err(|_| FormatError::Content {
            object,
            reason: format!("{field} has {} bytes, not 32", bytes.len()),
        })?;
        Ok(Some(Fingerprint(fingerprint)))
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// The producer that commits for others.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Leader {
    /// The producer.
    pub producer: ProducerId,
    /// The version of the manifest when it took the lead. It tells apart two times of one producer.
    pub term: u64,
    /// The number of commits since then that carried another producer's claim: a sign of life to those that it does not serve.
    pub shared: u64,
    /// Where the other producers reach it, as `host:port`.
    pub address: String,
}

impl Manifest {
    /// Returns true if this producer commits for others.
    pub fn is_led_by(&self, producer: ProducerId) -> bool {
        self.leader
            .as_ref()
            .is_some_and(|leader| leader.producer == producer)
    }

    /// The leader, if others can ask it: the table vouches for its certificate. The table may have forgotten a leader, which
    /// nobody would otherwise replace.
    pub fn reachable_leader(&self) -> Option<&Leader> {
        let is_certified = |leader: &&Leader| {
            let row = self.producer(leader.producer);
            row.is_some_and(|row| row.certificate.is_some())
        };
        self.leader.as_ref().filter(is_certified)
    }

    /// Makes a producer the leader, in the state that follows this one.
    pub fn take_lead(&mut self, producer: ProducerId, address: &str) {
        self.leader = Some(Leader {
            producer,
            term: self.stamp.version.wrapping_add(1),
            shared: 0,
            address: address.to_owned(),
        });
    }

    /// Counts a commit that carries another producer's claim, if this producer leads.
    pub fn count_shared(&mut self, producer: ProducerId) {
        if let Some(leader) = self.leader.as_mut().filter(|leader| leader.producer == producer) {
            leader.shared = leader.shared.wrapping_add(1);
        }
    }

    /// Leaves the shard without a leader, if this producer leads.
    pub fn leave_lead(&mut self, producer: ProducerId) {
        if self.is_led_by(producer) {
            self.leader = None;
        }
    }

    /// Enters the certificate of a registered producer.
    pub fn certify(&mut self, producer: ProducerId, certificate: Option<Fingerprint>) {
        if let Ok(place) = self.producers.binary_search_by_key(&producer, |row| row.id) {
            self.producers[place].certificate = certificate;
        }
    }
}

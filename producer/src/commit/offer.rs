//! The check of a claim that another producer asks this one to commit.

use millpond_manifest::{Claim, ProducerId};
use thiserror::Error;

/// Why a claim cannot join the group. The claims that the group has are not affected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum OfferRefusal {
    /// It is this producer's own.
    #[error("the claim is of the producer that would commit it")]
    Own,
    /// The group has the same claim: the request was repeated, and its copy must not add records.
    #[error("the same claim waits for its commit already")]
    Repeated,
    /// The group has another claim of that producer.
    #[error("another claim of the producer waits for its commit")]
    Busy,
    /// The run has no number.
    #[error("a claim has numbers from 1 on, the first not after the last")]
    NoNumber,
}

/// Checks a claim that would join the held claims of a group. Registration and numbers are the table's matter.
///
/// # Errors
/// The claim must stay out of the group.
pub fn check_offer(own: ProducerId, held: &[Claim], offered: &Claim) -> Result<(), OfferRefusal> {
    if offered.first == 0 || offered.last < offered.first {
        return Err(OfferRefusal::NoNumber);
    }
    if offered.producer == own {
        return Err(OfferRefusal::Own);
    }
    let same = held.iter().find(|claim| claim.producer == offered.producer);
    match same {
        None => Ok(()),
        Some(claim) if (claim.first, claim.last) == (offered.first, offered.last) => {
            Err(OfferRefusal::Repeated)
        }
        Some(_) => Err(OfferRefusal::Busy),
    }
}

//! The numbered requests of a commit, in the order in which they are judged. Pure.

use std::collections::HashMap;

use millpond_manifest::{ClientClaim, ClientId, Numbers};

use crate::segment::EncodedWork;

/// A numbered request of a commit.
pub(crate) struct Judged {
    pub(crate) claim: ClientClaim,
    pub(crate) whose: Whose,
}

/// The records that a numbered request belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whose {
    /// This producer's.
    Own {
        /// The place of the segment among its works.
        work: usize,
        /// The place of the request among those of the segment.
        place: usize,
    },
    /// Those of this held claim.
    Held(usize),
}

/// The requests of this producer's segments.
pub(crate) fn own<'a>(works: impl Iterator<Item = &'a EncodedWork>) -> Vec<Judged> {
    let of_work = |(work, it): (usize, &'a EncodedWork)| {
        let clients = it.clients.iter().enumerate();
        clients.map(move |(place, client)| Judged {
            claim: client.ticket.claim(work),
            whose: Whose::Own { work, place },
        })
    };
    works.enumerate().flat_map(of_work).collect()
}

/// The claims of the requests of these segments, in the order in which they are judged.
pub(crate) fn claims_of<'a>(works: impl Iterator<Item = &'a EncodedWork>) -> Vec<ClientClaim> {
    let mut all = own(works);
    sort(&mut all);
    all.into_iter().map(|it| it.claim).collect()
}

/// Sorts requests into the order in which they are judged.
///
/// A client that counts its requests may see them overtake each other, so its numbers order them. Kafka's sequence numbers
/// start again at 0, and its requests keep their order: that of the segments. So do the offsets of a partition, whichever bridge
/// read them. This producer's copy of a request comes before another producer's: refused, that one spoils no segment.
pub(crate) fn sort(all: &mut [Judged]) {
    let is_own = |it: &&Judged| matches!(it.whose, Whose::Own { .. });
    let own: HashMap<(ClientId, Numbers), usize> = match all.iter().all(|it| is_own(&it)) {
        true => HashMap::new(),
        false => {
            let own = all.iter().filter(is_own).map(|it| &it.claim);
            own.map(|claim| ((claim.client, claim.numbers), claim.segment))
                .collect()
        }
    };
    all.sort_by_key(|it| {
        let claim = &it.claim;
        let is_held = !is_own(&it);
        match claim.numbers {
            Numbers::Counted { number } => (claim.client, number, 0, is_held),
            Numbers::Sequence { .. } | Numbers::Once => {
                let copy = own.get(&(claim.client, claim.numbers)).copied();
                (claim.client, 0, copy.unwrap_or(claim.segment), is_held)
            }
            Numbers::Offsets { .. } => (ClientId([0; 16]), 0, 0, false),
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: Whose = Whose::Own { work: 0, place: 0 };
    const HELD: Whose = Whose::Held(0);

    fn judged(client: u8, numbers: Numbers, segment: usize, whose: Whose) -> Judged {
        let claim = ClientClaim {
            client: ClientId([client; 16]),
            numbers,
            checksum: 0,
            segment,
            source: None,
        };
        Judged { claim, whose }
    }

    fn kafka(first: u32) -> Numbers {
        Numbers::Sequence {
            epoch: 0,
            first,
            count: 1,
        }
    }

    fn sorted(mut all: Vec<Judged>) -> Vec<(Numbers, usize, Whose)> {
        sort(&mut all);
        all.iter()
            .map(|it| (it.claim.numbers, it.claim.segment, it.whose))
            .collect()
    }

    #[test]
    fn counted_requests_follow_their_numbers_wherever_they_are() {
        let number = |number| Numbers::Counted { number };
        let all = vec![
            judged(1, number(2), 0, OWN),
            judged(1, number(1), 3, HELD),
            judged(1, number(2), 0, HELD),
        ];
        let expected = [(number(1), 3, HELD), (number(2), 0, OWN), (number(2), 0, HELD)];
        assert_eq!(sorted(all), expected);
    }

    #[test]
    fn kafkas_requests_keep_the_order_of_the_segments_and_the_own_copy_comes_first() {
        let all = vec![
            judged(1, kafka(1), 1, OWN),
            judged(1, kafka(2), 1, OWN),
            // A guest in an earlier segment: one request before, and a copy.
            judged(1, kafka(0), 0, HELD),
            judged(1, kafka(1), 0, HELD),
        ];
        let expected = [
            (kafka(0), 0, HELD),
            (kafka(1), 1, OWN),
            (kafka(2), 1, OWN),
            (kafka(1), 0, HELD),
        ];
        assert_eq!(sorted(all), expected);
    }
}

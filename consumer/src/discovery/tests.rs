use super::*;
use millpond_manifest::{Claim, Fingerprint, NewSegment};
use ulid::Ulid;

const LEADER: ProducerId = ProducerId([1; 16]);
const SECOND: Duration = Duration::from_secs(1);
const POLL: Duration = Duration::from_millis(250);

fn empty() -> Manifest {
    let mut manifest = Manifest::new(Uuid::nil(), 0).register(LEADER, 1);
    manifest.certify(LEADER, Some(Fingerprint([1; 32])));
    manifest.take_lead(LEADER, "10.0.0.1:4319");
    manifest.stamped(1)
}

/// The next state, with a segment of this name.
fn then(manifest: &Manifest, name: u128) -> Manifest {
    let number = manifest.producer(LEADER).unwrap().commit + 1;
    let segment = NewSegment {
        segment: Ulid::from_parts(1, name),
        size: 1,
        parts: Vec::new(),
    };
    let claims = [Claim::one(LEADER, number, 0..1)];
    let commit = manifest.commit(&claims, &[segment], 1).unwrap();
    commit.state.stamped(number)
}

/// The leader's version, and the state if it is to be taken over.
fn judged(newer_than: u64, known: &Manifest, sent: &Manifest) -> Result<(u64, Option<Manifest>), Fallback> {
    let asked = Asked {
        buffer_id: Uuid::nil(),
        shard: 0,
        newer_than,
    };
    let (version, news) = judge(asked, known, &sent.encode()).map_err(|(why, _)| why)?;
    let state = match news {
        News::State(state) => Some(*state),
        News::None | News::Hidden => None,
    };
    Ok((version, state))
}

#[test]
fn a_newer_state_is_taken_over_and_an_older_one_never() {
    let one = empty();
    let two = then(&one, 2);
    let three = then(&two, 3);
    assert_eq!(judged(1, &one, &two), Ok((2, Some(two.clone()))));
    assert_eq!(judged(1, &one, &three), Ok((3, Some(three.clone()))));
    // A poll was faster.
    assert_eq!(judged(1, &two, &two), Ok((2, None)));
    assert_eq!(judged(1, &three, &two), Ok((2, None)));
    // The first question has no version.
    assert_eq!(judged(0, &three, &one), Ok((1, None)));
    // It is no answer to the question.
    assert_eq!(judged(2, &two, &two), Err(Fallback::invalid));
    assert_eq!(judged(3, &three, &two), Err(Fallback::invalid));
}

#[test]
fn a_state_that_does_not_show_what_is_known_is_left_to_the_store() {
    let one = then(&empty(), 1);
    let two = then(&one, 2);
    let (_, sealed) = then(&two, 3).seal(Ulid::from_parts(1, 4), 2).unwrap();
    let after = then(&sealed, 5);
    assert_eq!(continuation(&two, &after), Continuation::Hidden);
    assert_eq!(judged(3, &two, &after), Ok((after.stamp.version, None)));
    let (_, sealed) = two.seal(Ulid::from_parts(1, 4), 0).unwrap();
    let shown = then(&sealed, 3);
    assert_eq!(judged(3, &two, &shown), Ok((4, Some(shown))));
}

#[test]
fn a_state_of_another_log_is_refused() {
    let one = then(&empty(), 1);
    let two = then(&one, 2);
    let mut nonce = two.clone();
    nonce.stamp.nonce ^= 1;
    assert_eq!(
        judged(3, &two, &nonce),
        Err(Fallback::invalid),
        "its version is not newer"
    );
    assert_eq!(judged(0, &two, &nonce), Err(Fallback::contradicted));
    let other = then(&then(&one, 9), 3);
    assert_eq!(judged(3, &two, &other), Err(Fallback::contradicted));
    let mut shorter = one.clone();
    shorter.stamp.version = 9;
    assert_eq!(judged(3, &two, &shorter), Err(Fallback::contradicted));
    let (mut shard, mut buffer) = (then(&two, 3), then(&two, 3));
    shard.shard = 1;
    buffer.buffer_id = Uuid::from_u128(1);
    for wrong in [shard, buffer] {
        assert_eq!(judged(3, &two, &wrong), Err(Fallback::invalid));
    }
    let bytes = then(&two, 3).encode();
    let asked = Asked {
        buffer_id: Uuid::nil(),
        shard: 0,
        newer_than: 3,
    };
    for cut in 0..bytes.len() {
        assert!(judge(asked, &two, &bytes[..cut]).is_err(), "cut at {cut}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_fails_is_avoided_for_a_minute_and_another_one_is_not() {
    let (mut discovery, start) = (Discovery::new(true, POLL), Instant::now());
    assert_eq!(discovery.see(&empty()), Lead::Changed);
    assert_eq!(discovery.see(&then(&empty(), 1)), Lead::Same);
    assert_eq!(discovery.asks(start).unwrap().address, "10.0.0.1:4319");
    assert_eq!(discovery.poll_interval(), POLL, "it has not answered");
    assert!(discovery.answered(1));
    assert!(!discovery.answered(2));
    assert_eq!(discovery.poll_interval(), 5 * SECOND);
    for (why, wait) in [
        (Fallback::failed, 60 * SECOND),
        (Fallback::not_leading, 5 * SECOND),
    ] {
        assert!(discovery.fall_back(why, start));
        assert!(!discovery.fall_back(why, start), "people have heard of it");
        assert_eq!(discovery.poll_interval(), POLL);
        assert_eq!(discovery.asks(start + wait - POLL), None);
        assert_eq!(discovery.wakes_at(start), Some(start + wait));
        assert!(discovery.asks(start + wait).is_some());
    }
    let mut again = empty();
    again.leader.as_mut().unwrap().term += 1;
    assert_eq!(discovery.see(&again), Lead::Changed);
    assert!(discovery.asks(start).is_some());
    let mut uncertified = empty();
    uncertified.certify(LEADER, None);
    assert_eq!(discovery.see(&uncertified), Lead::Changed);
    assert_eq!(discovery.asks(start), None, "the manifest does not vouch for it");
    let mut off = Discovery::new(false, POLL);
    assert_eq!(off.see(&empty()), Lead::Same);
    assert_eq!(off.asks(start), None);
}

#[tokio::test(start_paused = true)]
async fn a_leader_may_be_slower_than_a_poll_by_a_second() {
    let (mut discovery, start) = (Discovery::new(true, POLL), Instant::now());
    discovery.see(&empty());
    discovery.found_first(7, start);
    assert!(
        !discovery.is_overdue(start + 9 * SECOND),
        "nobody asked the leader"
    );
    discovery.answered(6);
    discovery.found_first(7, start);
    discovery.found_first(8, start + SECOND / 2);
    assert!(!discovery.is_overdue(start + SECOND - POLL));
    discovery.answered(6);
    assert!(
        discovery.is_overdue(start + SECOND),
        "an older version is no answer"
    );
    assert_eq!(
        discovery.newer_than(),
        6,
        "what a poll found is no reason not to tell of it"
    );
    discovery.answered(7);
    assert!(!discovery.is_overdue(start + 9 * SECOND));
    assert_eq!(discovery.newer_than(), 7);
    discovery.fall_back(Fallback::failed, start);
    assert_eq!(discovery.newer_than(), 0);
}

use super::*;
use uuid::Uuid;

const LEASE: Duration = Duration::from_secs(15);

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A list in which all of these have given one more sign of life than in `before`.
fn beat(before: &Members, who: &[&str]) -> Members {
    let beat = |members: Members, instance: &&str| members.beat(instance, []);
    who.iter().fold(before.clone(), beat)
}

fn nobody() -> Members {
    Members::new(Uuid::nil())
}

/// The view of `me` after the living members have given signs of life for so long.
fn settled(me: &str, shards: u32, living: &[&str], seconds: u64) -> (Division, Members) {
    let mut division = Division::new(me, LEASE);
    division.set_shards(shards, at(0));
    let mut members = nobody();
    for second in (0..=seconds).step_by(5) {
        members = beat(&members, living);
        division.observe(&members, at(second));
    }
    (division, members)
}

fn shares(members: &[&str], shards: u32) -> Vec<usize> {
    let assigned = assign(members, shards);
    let share = |place| assigned.iter().filter(|of| **of == place).count();
    (0..members.len()).map(share).collect()
}

#[test]
fn every_member_gets_its_share() {
    for count in 1..12 {
        let names: Vec<String> = (0..count).map(|i| format!("consumer-{i}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        for shards in 1..40 {
            let shares = shares(&names, shards);
            let (least, most) = (shares.iter().min().unwrap(), shares.iter().max().unwrap());
            assert!(most - least <= 1, "{count} members, {shards} shards: {shares:?}");
        }
    }
}

#[test]
fn a_member_that_joins_moves_few_shards_between_others() {
    let before = ["a", "b", "c"];
    let after = ["a", "b", "c", "d"];
    let (old, new) = (assign(&before, 48), assign(&after, 48));
    let moved = (0..48).filter(|shard| before[old[*shard]] != after[new[*shard]]);
    // Twelve go to the new member.
    assert!(moved.count() <= 20);
}

#[test]
fn all_members_agree() {
    let living = ["a", "b", "c"];
    let views = living.map(|me| settled(me, 7, &living, 30).0);
    for shard in 0..7 {
        let owners = views.iter().filter(|view| view.is_mine(shard));
        assert_eq!(owners.count(), 1, "shard {shard}");
    }
}

#[test]
fn one_shard_is_not_divided() {
    let (division, _) = settled("a", 1, &["a", "b"], 30);
    assert!(division.may_take(0, at(30), at(30)));
    assert_eq!(division.gives(0, at(30)), None);
}

#[test]
fn a_member_gets_its_shards_once_it_has_been_there_for_a_while() {
    let (mut division, mut members) = settled("a", 2, &["a"], 60);
    assert!(division.is_mine(0) && division.is_mine(1));
    for second in (65..=85).step_by(5) {
        members = beat(&members, &["a", "b"]);
        division.observe(&members, at(second));
        let given = (0..2).filter(|shard| division.gives(*shard, at(second)) == Some("b"));
        assert_eq!(given.count(), usize::from(second >= 75), "after {second} s");
    }
}

#[test]
fn a_member_that_is_silent_gets_nothing_and_leaves_the_list() {
    let (mut division, members) = settled("a", 2, &["a", "b"], 60);
    let theirs = (0..2).find(|shard| !division.is_mine(*shard)).unwrap();
    assert_eq!(division.gives(theirs, at(60)), Some("b"));
    let mut only_a = members;
    for second in (65..=300).step_by(5) {
        only_a = beat(&only_a, &["a"]);
        division.observe(&only_a, at(second));
        let silent = second - 60;
        assert_eq!(
            division.gives(theirs, at(second)).is_some(),
            silent < 10,
            "{silent} s"
        );
        assert_eq!(division.is_mine(theirs), silent >= 10, "{silent} s");
        assert_eq!(
            division.gone(at(second)),
            if silent > 150 { vec!["b"] } else { vec![] }
        );
    }
}

#[test]
fn a_free_shard_of_another_is_for_anybody_after_a_lease() {
    let (mut division, mut members) = settled("a", 2, &["a", "b"], 60);
    let theirs = (0..2).find(|shard| !division.is_mine(*shard)).unwrap();
    assert!(!division.may_take(theirs, at(60), at(74)));
    assert!(division.may_take(theirs, at(60), at(75)));
    assert!(division.may_take(1 - theirs, at(60), at(60)));
    // It keeps what it took: the other one would let it be again.
    division.took(theirs, at(75));
    for second in (65..=400).step_by(5) {
        members = beat(&members, &["a", "b"]);
        division.observe(&members, at(second));
        let given = division.gives(theirs, at(second)).is_some();
        assert_eq!(given, second >= 225, "{second} s");
    }
}

/// A process that cannot write the list is not a member, and takes what nobody else does.
#[test]
fn without_a_list_every_free_shard_is_taken_after_a_lease() {
    let mut division = Division::new("a", LEASE);
    division.set_shards(4, at(0));
    for shard in 0..4 {
        assert!(!division.may_take(shard, at(0), at(14)));
        assert!(division.may_take(shard, at(0), at(15)));
        assert_eq!(division.gives(shard, at(100)), None);
    }
}

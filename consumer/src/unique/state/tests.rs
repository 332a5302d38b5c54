use super::super::BYTES_PER_KEY;
use super::super::keys::PartTimes;
use super::*;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;
use ulid::Ulid;

/// Sixteen buckets of a second.
const WINDOW_MS: u64 = 16_000;
const SECOND: i64 = 1_000_000;
const SECRET: u128 = 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835;

fn of() -> Of {
    Of {
        buffer_id: Uuid::nil(),
        shard: 0,
        consumer: "default".into(),
        stream: "events".into(),
        setting: UniqueSetting {
            key: vec!["id".into()],
            window_ms: WINDOW_MS,
        },
        since: 0,
    }
}

const NAMED: usize = 3_072;

fn fresh() -> State {
    naming(NAMED)
}

fn naming(merges_from: usize) -> State {
    ruled(Some(0), merges_from)
}

/// A state with the rules of medians from this sequence on.
fn ruled(medians_from: Option<u64>, merges_from: usize) -> State {
    State::new(of(), medians_from, KeyLimit::new(u64::MAX), merges_from, SECRET)
}

fn times(rows: &[(u128, i64)]) -> PartTimes {
    let mut times: Vec<i64> = rows.iter().map(|(_, at_us)| *at_us).collect();
    PartTimes::of(&mut times)
}

/// A part with these keys, each in a message that was received at a time in microseconds.
fn part(sequence: u64, rows: &[(u128, i64)]) -> PartKeys {
    let keys = rows
        .iter()
        .zip(0..)
        .map(|(&(key, at_us), record)| RowKey { record, at_us, key });
    PartKeys {
        sequence,
        received: times(rows),
        keys: keys.collect(),
    }
}

/// The record numbers that a part drops.
fn drops(state: &mut State, sequence: u64, rows: &[(u128, i64)]) -> Vec<u32> {
    let decisions = state.part(&part(sequence, rows)).unwrap();
    (0..64)
        .filter(|record| decisions.dropped.contains((*record).into()))
        .collect()
}

#[test]
fn a_repetition_within_the_window_is_dropped_and_one_after_it_is_kept() {
    let mut state = fresh();
    assert_eq!(drops(&mut state, 0, &[(1, 0), (2, 0), (1, SECOND)]), [2]);
    assert_eq!(
        drops(&mut state, 1, &[(1, 16 * SECOND - 1), (2, 16 * SECOND)]),
        [0]
    );
    assert_eq!(
        drops(&mut state, 2, &[(1, 16 * SECOND), (2, 17 * SECOND)]),
        [1],
        "the first row of key 1 is a window older, whatever was dropped since"
    );
}

#[test]
fn a_row_that_was_received_earlier_than_its_first_occurrence_is_a_repetition_too() {
    let mut state = fresh();
    assert_eq!(drops(&mut state, 0, &[(1, 100 * SECOND)]), [0_u32; 0]);
    assert_eq!(
        drops(
            &mut state,
            1,
            &[(1, 85 * SECOND), (1, 84 * SECOND), (1, 84 * SECOND)]
        ),
        [0],
        "rows a window earlier are kept, and the later time stays"
    );
    assert_eq!(drops(&mut state, 2, &[(1, 115 * SECOND)]), [0]);
}

#[test]
fn a_gateway_with_a_wrong_clock_makes_the_stage_forget_nothing() {
    let mut state = fresh();
    let year = 365 * 24 * 3_600 * SECOND;
    for sequence in 0..40 {
        let at = i64::try_from(sequence).unwrap() * SECOND / 4;
        let (key, wrong) = (u128::from(sequence), sequence % 3 == 1);
        let at_us = if wrong { at + year } else { at };
        assert_eq!(drops(&mut state, sequence, &[(key, at_us)]), [0_u32; 0]);
    }
    assert_eq!(
        drops(
            &mut state,
            40,
            &[(0, 10 * SECOND), (3, 10 * SECOND), (1, 10 * SECOND)]
        ),
        [0, 1]
    );
}

/// Behind a leader each part has messages of all gateways.
#[test]
fn one_wrong_clock_of_three_in_every_part_lets_no_repetition_pass() {
    let mut state = fresh();
    let year = 365 * 24 * 3_600 * SECOND;
    for sequence in 0..60 {
        let (at, key) = (i64::try_from(sequence).unwrap() * SECOND, u128::from(sequence));
        let rows = [(1_000 + key, at + year), (key, at), (2_000 + key, at)];
        assert_eq!(drops(&mut state, 2 * sequence, &rows), [0_u32; 0]);
        let copies = [
            (key, at + SECOND),
            (1_000 + key, at + year),
            (2_000 + key, at + 15 * SECOND),
        ];
        assert_eq!(
            drops(&mut state, 2 * sequence + 1, &copies),
            [0, 1, 2],
            "copies of rows in part {sequence} pass"
        );
    }
}

/// Behind a leader a message may come through any gateway, and a part may have few.
#[test]
fn a_gateway_that_is_a_year_ahead_lets_no_copy_of_the_others_pass() {
    let (year, step) = (365 * 24 * 3_600 * SECOND, SECOND / 32);
    let cases: [(u64, u32); 6] = [(2, 1), (2, 3), (2, 20), (3, 1), (3, 3), (3, 20)];
    for (seed, (gateways, messages)) in (0..120).zip(cases.into_iter().cycle()) {
        let mut rng = StdRng::seed_from_u64(seed);
        let (mut state, mut known) = (fresh(), Vec::new());
        for sequence in 0..2_000 {
            let at = i64::try_from(sequence).unwrap() * step;
            let (mut rows, mut copies) = (Vec::new(), Vec::new());
            for number in 0..messages {
                let new = u128::from(sequence * 20 + u64::from(number));
                if rng.random_range(0..gateways) == 0 {
                    rows.push((new, at + year));
                    continue;
                }
                let earlier = known.len().saturating_sub(400)..known.len();
                let copied = rng.random_bool(0.5) && !earlier.is_empty();
                let (key, first) = if copied {
                    known[rng.random_range(earlier)]
                } else {
                    (new, at)
                };
                if copied && at - first < 15 * SECOND {
                    copies.push(number);
                    rows.push((key, at));
                } else {
                    known.push((new, at));
                    rows.push((new, at));
                }
            }
            assert_eq!(
                drops(&mut state, sequence, &rows),
                copies,
                "{gateways} gateways, {messages} messages a part, seed {seed}: copies pass in part {sequence}"
            );
        }
    }
}

/// The first part after a start may be from the gateway with the wrong clock.
#[test]
fn the_first_parts_may_all_have_a_wrong_clock() {
    let mut state = fresh();
    let year = 365 * 24 * 3_600 * SECOND;
    for sequence in 0..30 {
        assert_eq!(
            drops(&mut state, sequence, &[(sequence.into(), year)]),
            [0_u32; 0]
        );
    }
    for sequence in 30..60 {
        let row = [(100, i64::try_from(sequence).unwrap() * SECOND / 2)];
        let expected: &[u32] = if sequence == 30 { &[] } else { &[0] };
        assert_eq!(drops(&mut state, sequence, &row), expected, "part {sequence}");
    }
}

#[test]
fn a_row_below_the_floor_is_kept_and_not_remembered() {
    let mut state = fresh();
    for sequence in 0..31 {
        state.part(&part(sequence, &[(1, 100 * SECOND)])).unwrap();
    }
    let late = state
        .part(&part(31, &[(2, 80 * SECOND), (2, 80 * SECOND)]))
        .unwrap();
    assert!(late.dropped.is_empty());
    assert_eq!((late.late, state.keys()), (2, 1));
}

#[test]
fn a_limit_counts_the_keys_of_all_streams_and_gives_them_back() {
    let limit = KeyLimit::new(3);
    let mut one = State::new(of(), Some(0), limit.clone(), NAMED, SECRET);
    let mut other = State::new(of(), Some(0), limit.clone(), NAMED, SECRET);
    one.part(&part(0, &[(1, 0), (2, 0), (1, 0)])).unwrap();
    other.part(&part(0, &[(1, 0)])).unwrap();
    assert_eq!(other.part(&part(1, &[(2, 0)])), Err(TooManyKeys { max: 3 }));
    drop(one);
    assert_eq!(limit.used(), 1);
    other.part(&part(1, &[(2, 0), (3, 0)])).unwrap();
    // Forgotten keys give their memory back.
    for sequence in 2..33 {
        let keyless = PartKeys {
            sequence,
            received: PartTimes::of(&mut [1_000 * SECOND]),
            keys: Vec::new(),
        };
        other.part(&keyless).unwrap();
    }
    assert_eq!((other.keys(), limit.used()), (0, 0));
    other.part(&part(33, &[(4, 1_000 * SECOND)])).unwrap();
    assert_eq!(limit.used(), 1);
    drop(other);
    assert_eq!(limit.used(), 0);
}

/// The rules of the design, without buckets of keys or a table.
#[derive(Default)]
struct Naive {
    parts: u64,
    medians_from: Option<u64>,
    times: Vec<i64>,
    floor: Option<i64>,
    kept: BTreeMap<u128, Vec<i64>>,
}

impl Naive {
    fn part(&mut self, rows: &[(u128, i64)]) -> Vec<u32> {
        let medians = self.medians_from.is_some_and(|from| self.parts >= from);
        self.parts += 1;
        let middle = |times: &[i64]| times[(times.len() - 1) / 2];
        let mut times: Vec<i64> = rows.iter().map(|(_, at_us)| *at_us).collect();
        times.sort_unstable();
        if let Some(newest) = times.last() {
            self.times.push(if medians { middle(&times) } else { *newest });
            let parts = if medians { 31 } else { 15 };
            let from = self.times.len().saturating_sub(parts);
            self.times.drain(..from);
            let mut last = self.times.clone();
            last.sort_unstable();
            let now = if medians { last[0] } else { middle(&last) };
            if !medians || last.len() == 31 {
                let floor = (now - 16 * SECOND).div_euclid(SECOND) * SECOND;
                self.floor = self.floor.max(Some(floor));
            }
        }
        let floor = self.floor.unwrap_or(i64::MIN);
        let mut drops = Vec::new();
        for (&(key, at_us), record) in rows.iter().zip(0..) {
            let kept = self.kept.entry(key).or_default();
            let latest = kept.iter().copied().max().filter(|latest| *latest >= floor);
            if latest.is_some_and(|latest| (latest - at_us).abs() < 16 * SECOND) {
                drops.push(record);
            } else {
                kept.push(at_us);
            }
        }
        drops
    }
}

/// The place of a snapshot among all.
fn place_of(name: UniqueReference, all: &[UniqueSnapshot]) -> usize {
    let mut names = (0..).zip(all).map(|(place, snapshot)| UniqueReference {
        next: snapshot.next,
        id: Ulid::from_parts(1, place),
    });
    names.position(|other| other == name).expect("it is stored")
}

/// Stores the fresh keys under a name.
fn store(state: &mut State, all: &mut Vec<UniqueSnapshot>) {
    let merges = state.merges().into_iter();
    let merged: Vec<_> = merges.map(|name| all[place_of(name, all)].clone()).collect();
    let snapshot = state.snapshot(&merged);
    let name = UniqueReference {
        next: snapshot.next,
        id: Ulid::from_parts(1, all.len() as u128),
    };
    state.stored(&snapshot, name);
    all.push(snapshot);
}

/// The state after a snapshot, from the stored ones alone.
fn restored(last: usize, all: &[UniqueSnapshot], mut state: State) -> State {
    let name = |place: usize| UniqueReference {
        next: all[place].next,
        id: Ulid::from_parts(1, place as u128),
    };
    state.resume(&all[last], name(last));
    for earlier in &all[last].earlier {
        let place = place_of(earlier.reference, &all[..last]);
        state.load(&all[place].entries).unwrap();
    }
    state.load(&all[last].entries).unwrap();
    state
}

#[test]
fn the_decisions_are_those_of_the_rules_for_any_log_and_after_any_restart() {
    for seed in 0..400 {
        let mut rng = StdRng::seed_from_u64(seed);
        let merges_from = rng.random_range(1..8);
        let medians_from = [None, Some(0), Some(rng.random_range(0..120))][rng.random_range(0..3)];
        let (mut state, mut all) = (ruled(medians_from, merges_from), Vec::new());
        let mut naive = Naive {
            medians_from,
            ..Naive::default()
        };
        // Parts since each snapshot, which a successor reads again.
        let mut since: Vec<(u64, Vec<(u128, i64)>)> = Vec::new();
        let (mut clock, skew) = (0_i64, rng.random_range(1..40));
        for sequence in 0..120 {
            clock += rng.random_range(0..3 * SECOND);
            let rows = rng.random_range(0..6);
            let row = |rng: &mut StdRng| {
                let far = rng.random_range(0..50) == 0;
                let off = rng.random_range(-skew..=skew) * SECOND * if far { 1_000 } else { 1 };
                (rng.random_range(0..12_u128), clock + off / 2)
            };
            let rows: Vec<(u128, i64)> = (0..rows).map(|_| row(&mut rng)).collect();
            let expected = naive.part(&rows);
            assert_eq!(
                drops(&mut state, sequence, &rows),
                expected,
                "seed {seed}, part {sequence}"
            );
            since.push((sequence, rows));
            if rng.random_range(0..5) == 0 {
                store(&mut state, &mut all);
                since.clear();
            }
            if rng.random_range(0..10) == 0 && !all.is_empty() {
                state = restored(all.len() - 1, &all, ruled(medians_from, merges_from));
                for (sequence, rows) in &since {
                    drops(&mut state, *sequence, rows);
                }
            }
        }
    }
}

#[test]
fn a_key_takes_at_most_the_bytes_that_the_limit_counts() {
    let mut rng = StdRng::seed_from_u64(1);
    let (mut table, mut most) = (Table::new(SECRET), 0.0_f64);
    for keys in 1..1_500_000_u64 {
        table.raise(&table.look(rng.random()), 0);
        if keys > 200_000 && keys % 10_000 == 0 {
            most = most.max(table.bytes() as f64 / keys as f64);
        }
    }
    assert!(most < 39.0, "{most} bytes per key");
    // Besides, a 64th of them waits for the next snapshot, and is encoded.
    assert!(most + 2.0 * 24.0 / 64.0 < BYTES_PER_KEY as f64);
    let kept = table.retain(|_| true);
    assert_eq!(kept, 0);
    assert_eq!(table.retain(|at_us| at_us > 0), 1_499_999);
    assert!(table.len() == 0 && table.bytes() < 100_000);
}

/// A sender tries values until their hashes have the same bits, which once chose the places.
#[test]
fn chosen_keys_are_as_spread_as_others() {
    let mut rng = StdRng::seed_from_u64(3);
    let mut longest = |choose: fn(u128) -> u128| {
        let mut table = Table::new(SECRET);
        for _ in 0..50_000 {
            table.raise(&table.look(choose(rng.random())), 0);
        }
        table.longest()
    };
    let [run, most] = longest(|key| key);
    for choose in [
        |key: u128| key & !(1023 << 64),
        |key: u128| key & !(0xffff_ffff << 32),
        |key: u128| key & !((1023 << 64) | (0xf << 60)),
    ] {
        let [chosen_run, chosen_most] = longest(choose);
        assert!(
            chosen_run < 4 * run && chosen_most < 4 * most,
            "{chosen_run} {chosen_most}"
        );
    }
}

#[test]
fn a_table_finds_what_it_has_and_nothing_else_after_it_grew_and_shrank() {
    let mut rng = StdRng::seed_from_u64(2);
    let mut table = Table::new(SECRET);
    let keys: Vec<u128> = (0..50_000).map(|_| rng.random()).collect();
    for (key, at_us) in keys.iter().zip(0..) {
        let look = table.look(*key);
        assert_eq!(look.at_us, None);
        table.raise(&look, at_us);
    }
    table.raise(&table.look(keys[7]), 60_000);
    table.raise(&table.look(keys[8]), 3);
    assert_eq!(table.retain(|at_us| at_us % 3 == 0), 33_332);
    for (key, at_us) in keys.iter().zip(0_i64..) {
        let at_us = if at_us == 7 { 60_000 } else { at_us };
        assert_eq!(table.look(*key).at_us, (at_us % 3 == 0).then_some(at_us));
    }
}

#[test]
fn a_set_of_dropped_records_has_exactly_these() {
    let dropped = Dropped::of(&[0, 63, 64, 1_000]);
    let found: Vec<u64> = (0..2_000).filter(|record| dropped.contains(*record)).collect();
    assert_eq!((found, dropped.len()), (vec![0, 63, 64, 1_000], 4));
    assert!(!dropped.is_empty() && Dropped::of(&[]).is_empty() && !Dropped::default().contains(0));
}

#[test]
fn rows_before_the_beginning_are_kept_and_not_remembered() {
    let mut state = State::new(
        Of { since: 5, ..of() },
        Some(0),
        KeyLimit::new(u64::MAX),
        NAMED,
        SECRET,
    );
    assert_eq!(
        drops(&mut state, 4, &[(1, 0), (1, 0)]),
        [0_u32; 0],
        "nothing is compared"
    );
    assert_eq!((state.next(), state.keys()), (5, 0));
    assert_eq!(drops(&mut state, 5, &[(1, 0), (1, 0)]), [1]);
}

/// Stores a snapshot without a look at it.
fn store_blindly(state: &mut State) {
    let snapshot = state.snapshot(&[]);
    let name = UniqueReference {
        next: snapshot.next,
        id: Ulid::from_parts(0, 0),
    };
    state.stored(&snapshot, name);
}

/// A state whose list of snapshots is full, and is not replaced.
fn full() -> State {
    let mut state = naming(usize::MAX);
    for sequence in 0..EARLIER_MAX as u64 {
        assert!(state.may_snapshot(0), "before {sequence}");
        drops(&mut state, sequence, &[(sequence.into(), 0)]);
        store_blindly(&mut state);
    }
    assert!(!state.may_snapshot(0));
    state
}

#[test]
fn forgotten_snapshots_make_room_for_others() {
    let mut state = full();
    for sequence in (EARLIER_MAX as u64..).take(RECENT_MAX) {
        drops(&mut state, sequence, &[(1, 40 * SECOND)]);
    }
    assert!(state.may_snapshot(0));
    assert_eq!(state.snapshot(&[]).earlier, []);
}

#[test]
fn keys_that_wait_for_a_snapshot_are_forgotten_with_the_others() {
    let mut state = full();
    for sequence in (EARLIER_MAX as u64..).take(1_000) {
        let at_us = i64::try_from(sequence).unwrap() * SECOND;
        drops(&mut state, sequence, &[(sequence.into(), at_us)]);
    }
    let kept = state.keys();
    assert!(
        kept < 60 && state.fresh() == kept,
        "{} wait of {kept}",
        state.fresh()
    );
}

/// One key in each snapshot is from a gateway whose clock is far ahead, so none is forgotten.
#[test]
fn a_long_list_of_snapshots_is_merged_in_small_steps() {
    let merges_from = 300;
    let (mut state, mut all) = (naming(merges_from), Vec::new());
    let (year, mut most) = (365 * 24 * 3_600 * SECOND, 0);
    for number in 0..1_000 {
        for (sequence, is_ahead) in (3 * number..).zip([false, false, true]) {
            let at_us = if is_ahead {
                year
            } else {
                i64::try_from(number).unwrap() * SECOND
            };
            drops(&mut state, sequence, &[(sequence.into(), at_us)]);
        }
        store(&mut state, &mut all);
        let last = all.last().unwrap();
        let named = last.earlier.len();
        assert!(named <= merges_from, "{named} are named");
        most = most.max(last.entries.len());
    }
    assert!(most < 100, "a snapshot has {most} keys");
    let mut successor = restored(all.len() - 1, &all, naming(merges_from));
    assert_eq!(successor.keys(), state.keys());
    let end = state.next();
    for (sequence, key) in (end..).zip(0..end) {
        let row = [(key.into(), year)];
        let repeats = drops(&mut state, sequence, &row);
        assert_eq!(drops(&mut successor, sequence, &row), repeats, "key {key}");
        assert_eq!(repeats.len(), usize::from(key % 3 == 2), "key {key}");
    }
}

/// An earlier program may have filled the list.
#[test]
fn a_full_list_of_snapshots_is_merged_in_small_steps() {
    let mut state = full();
    state.merges_from = NAMED;
    let merges = state.merges();
    assert_eq!(merges.len(), MERGED_MAX, "snapshots are merged");
    assert!(state.may_snapshot(merges.len()), "for ever");
    assert!(!state.may_snapshot(0), "unless they cannot be read");
}

/// With much memory, snapshots have many keys.
#[test]
fn snapshots_with_many_keys_are_merged_two_at_a_time() {
    let mut state = naming(NAMED);
    for sequence in 0..4_000 {
        let earlier = EarlierSnapshot {
            reference: UniqueReference {
                next: sequence + 1,
                id: Ulid::from_parts(0, 0),
            },
            newest_us: 0,
            keys: 4 * MERGED_KEYS / (1 + sequence / 2_000),
        };
        state.stored.push(earlier);
    }
    let merges: Vec<u64> = state.merges().iter().map(|name| name.next).collect();
    assert_eq!(merges, [2_001, 2_002], "two of the smallest");
}

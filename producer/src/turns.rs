//! Decides how long a producer that lost a race for the manifest leaves it to others that have waited longer. Without
//! turns, each race has a random winner, and one of many producers may lose for half a minute. No promise depends on
//! turns, so the model leaves them out. Pure: the caller has the clock.

use std::time::Duration;

use millpond_manifest::{Manifest, ProducerId};

/// A producer counts as active if it has committed since the oldest of so many newest commits of this producer.
const ACTIVE_COMMITS: usize = 3;

/// The manifest is contended if the time between two commits, of whichever producers, is less than this many times what
/// one attempt takes. Otherwise a producer finds it free most of the time, and waits for nobody.
const CONTENDED: u32 = 2;

/// The maximum wait for one turn.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// A commit of this producer.
#[derive(Debug, Clone, Copy)]
struct Own {
    first_sequence: u64,
    /// Counts the states of the manifest.
    version: u64,
    at: Duration,
}

/// The turns of one producer.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    /// The newest commits of this producer, oldest first.
    own: Vec<Own>,
    /// How long a read and a swap take, smoothed.
    attempt: Duration,
    /// No attempt begins earlier.
    not_before: Option<Duration>,
}

impl Turns {
    /// Records the duration of an attempt that the store answered: a read and a swap.
    pub(crate) fn took(&mut self, attempt: Duration) {
        self.attempt = match self.attempt {
            Duration::ZERO => attempt,
            known => (known * 7 + attempt) / 8,
        };
    }

    /// Records that this producer committed, and that the manifest has this state now.
    pub(crate) fn committed(&mut self, manifest: &Manifest, producer: ProducerId, now: Duration) {
        let Some(row) = manifest.producer(producer) else {
            return;
        };
        self.own.push(Own {
            first_sequence: row.first_sequence,
            version: manifest.stamp.version,
            at: now,
        });
        if self.own.len() > ACTIVE_COMMITS {
            self.own.remove(0);
        }
    }

    /// Records that this producer lost a race, and that the manifest has this state now. The producer leaves every
    /// active producer whose last commit is older than its own the time of one commit. If its own commit has landed, it
    /// waits for nobody: its callers wait for the answer alone.
    pub(crate) fn lost(&mut self, manifest: &Manifest, producer: ProducerId, now: Duration) {
        self.not_before = None;
        if self.has_landed(manifest, producer) {
            return;
        }
        self.not_before = self.pace(manifest.stamp.version, now).map(|pace| {
            let older = self.older(manifest, producer);
            now + (pace * older).min(WAIT_MAX)
        });
    }

    /// Begins a group. The turn of the one before is over, whoever committed it.
    pub(crate) fn begin(&mut self) {
        self.not_before = None;
    }

    /// Records that the store did not answer. The time until it does is nobody's turn, so the pace is measured anew.
    pub(crate) fn held_up(&mut self) {
        self.own.clear();
        self.not_before = None;
    }

    /// Returns true if the manifest has a commit of this producer that it does not know of.
    fn has_landed(&self, manifest: &Manifest, producer: ProducerId) -> bool {
        let (Some(last), Some(row)) = (self.own.last(), manifest.producer(producer)) else {
            return false;
        };
        row.count > 0 && row.first_sequence > last.first_sequence
    }

    /// The wait before the next attempt, if there is one.
    pub(crate) fn wait(&mut self, now: Duration) -> Option<Duration> {
        let not_before = self.not_before.take()?;
        not_before.checked_sub(now).filter(|wait| !wait.is_zero())
    }

    /// The time between two commits, if the manifest is contended.
    fn pace(&self, version: u64, now: Duration) -> Option<Duration> {
        let first = self.own.first()?;
        let commits = u32::try_from(version.checked_sub(first.version)?).ok()?;
        let pace = now.checked_sub(first.at)?.checked_div(commits)?;
        (pace < self.attempt * CONTENDED).then_some(pace)
    }

    fn older(&self, manifest: &Manifest, producer: ProducerId) -> u32 {
        let (Some(first), Some(last)) = (self.own.first(), self.own.last()) else {
            return 0;
        };
        let Some(row) = manifest.producer(producer) else {
            return 0;
        };
        // A spent number is no commit.
        let own = if row.is_spent() {
            last.first_sequence
        } else {
            row.first_sequence
        };
        let active = first.first_sequence..own;
        let rows = manifest.producers.iter();
        let older = rows.filter(|row| row.count > 0 && active.contains(&row.first_sequence));
        u32::try_from(older.count()).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_manifest::manifest::ProducerRow;
    use uuid::Uuid;

    const SECOND: Duration = Duration::from_secs(1);
    const OWN: ProducerId = id(0);

    const fn id(number: u8) -> ProducerId {
        ProducerId([number; 16])
    }

    /// A manifest after so many commits of one segment, with these producers and the sequences of their last commits.
    fn manifest(version: u64, rows: &[(u8, u64)]) -> Manifest {
        let mut manifest = Manifest::new(Uuid::nil(), 0);
        manifest.stamp.version = version;
        manifest.producers = rows
            .iter()
            .map(|&(number, first_sequence)| ProducerRow {
                id: id(number),
                commit: 1,
                first_sequence,
                count: 1,
                seen_at_ms: 0,
                certificate: None,
            })
            .collect();
        manifest
    }

    /// A producer with commits at sequences 100 and 110, whose attempts take 100 ms, ten commits a second.
    fn contended() -> Turns {
        let mut turns = Turns::default();
        turns.took(SECOND / 10);
        turns.committed(&manifest(100, &[(0, 100)]), OWN, 10 * SECOND);
        turns.committed(&manifest(110, &[(0, 110)]), OWN, 11 * SECOND);
        turns
    }

    #[test]
    fn a_loser_leaves_each_active_producer_with_an_older_commit_one_commit() {
        let mut turns = contended();
        // 3 and 4 have waited longer; 1 and 2 have not; 5 has not committed for long.
        let rows = [(0, 110), (1, 118), (2, 119), (3, 109), (4, 101), (5, 99)];
        turns.lost(&manifest(120, &rows), OWN, 12 * SECOND);
        let half = SECOND / 2;
        assert_eq!(turns.wait(12 * SECOND), Some(SECOND / 5));
        assert_eq!(turns.wait(12 * SECOND), None, "one wait for one lost race");
        turns.lost(&manifest(120, &rows), OWN, 12 * SECOND);
        assert_eq!(turns.wait(12 * SECOND + half), None, "the time has passed");
    }

    #[test]
    fn the_producer_that_has_waited_longest_does_not_wait() {
        let mut turns = contended();
        let rows = [(0, 110), (1, 118), (2, 119)];
        turns.lost(&manifest(120, &rows), OWN, 12 * SECOND);
        assert_eq!(turns.wait(12 * SECOND), None);
    }

    #[test]
    fn a_manifest_that_is_mostly_free_has_no_turns() {
        let mut turns = contended();
        // Five commits a second: every other attempt finds nobody.
        turns.lost(&manifest(110, &[(0, 110), (1, 109)]), OWN, 12 * SECOND);
        assert_eq!(turns.wait(12 * SECOND), None);
    }

    #[test]
    fn a_producer_without_a_commit_and_one_that_was_forgotten_do_not_wait() {
        let mut turns = Turns::default();
        turns.took(SECOND);
        turns.lost(&manifest(120, &[(1, 100)]), OWN, SECOND);
        assert_eq!(turns.wait(SECOND), None);
        let mut turns = contended();
        turns.lost(&manifest(120, &[(1, 101)]), OWN, 12 * SECOND);
        assert_eq!(turns.wait(12 * SECOND), None);
    }

    #[test]
    fn a_wait_has_a_maximum_and_a_restored_manifest_none() {
        let mut turns = contended();
        let others = (1..=255).map(|number| (number, 101));
        let rows: Vec<(u8, u64)> = [(0, 110)].into_iter().chain(others).collect();
        turns.lost(&manifest(120, &rows), OWN, 12 * SECOND);
        assert_eq!(turns.wait(12 * SECOND), Some(WAIT_MAX));
        turns.lost(&manifest(7, &rows), OWN, 12 * SECOND);
        assert_eq!(turns.wait(12 * SECOND), None);
    }

    /// The store refuses the second copy of a swap of which the first landed. The own row is then the newest.
    #[test]
    fn a_commit_that_landed_and_was_reported_as_refused_waits_for_nobody() {
        let mut turns = contended();
        let others = (1..=40).map(|number| (number, 110 + u64::from(number)));
        let rows: Vec<(u8, u64)> = [(0, 200)].into_iter().chain(others).collect();
        turns.lost(&manifest(220, &rows), OWN, 12 * SECOND);
        assert_eq!(turns.wait(12 * SECOND), None);
    }

    /// A number that was spent without records stands at the end of the log.
    #[test]
    fn a_spent_number_is_no_commit() {
        let spent = |number: u8, rows: &[(u8, u64)]| {
            let mut manifest = manifest(120, rows);
            manifest.producers[usize::from(number)].count = 0;
            manifest
        };
        let mut turns = contended();
        turns.lost(&spent(0, &[(0, 119), (1, 109), (2, 118)]), OWN, 12 * SECOND);
        assert_eq!(turns.wait(12 * SECOND), Some(SECOND / 10), "its own");
        turns.lost(&spent(1, &[(0, 110), (1, 109)]), OWN, 12 * SECOND);
        assert_eq!(turns.wait(12 * SECOND), None, "another producer's");
    }

    #[test]
    fn a_turn_ends_with_its_group() {
        let mut turns = contended();
        turns.lost(&manifest(120, &[(0, 110), (1, 109)]), OWN, 12 * SECOND);
        turns.begin();
        assert_eq!(turns.wait(12 * SECOND), None);
    }

    #[test]
    fn an_outage_is_no_pace() {
        let mut turns = contended();
        turns.held_up();
        // The store is back since one second, and others have committed in it.
        let rows = [(0, 110), (1, 109), (2, 108), (3, 107), (4, 106), (5, 129)];
        turns.lost(&manifest(121, &rows), OWN, 72 * SECOND);
        assert_eq!(turns.wait(72 * SECOND), None);
    }
}

package producer

import (
	"time"

	"millpond.dev/otel-exporter/internal/manifest"
)

const (
	// A producer counts as active if it has committed since the oldest of so many newest commits of this producer.
	activeCommits = 3

	// The manifest is contended if the time between two commits, of whichever producers, is less than this many times
	// what one attempt takes. Otherwise a producer finds it free most of the time, and waits for nobody.
	contended = 2

	// The maximum wait for one turn.
	turnWaitMax = 10 * time.Second

	// The maximum pause after a lost race. The producers' turns spread out those that wait, so that a longer pause
	// would only give the turn away.
	raceWaitMax = 250 * time.Millisecond
)

// turns decides how long a producer that lost a race for the manifest leaves it to others that have waited longer.
// Without turns, each race has a random winner, and one of many producers may lose for half a minute. No promise depends
// on it.
type turns struct {
	own       []ownCommit   // the newest commits of this producer, oldest first
	attempt   time.Duration // how long a read and a swap take, smoothed
	notBefore time.Time     // no attempt begins earlier; zero: there is no wait
}

type ownCommit struct {
	firstSequence uint64
	version       uint64 // counts the states of the manifest
	at            time.Time
}

// took records the duration of an attempt that the store answered: a read and a swap.
func (t *turns) took(attempt time.Duration) {
	if t.attempt == 0 {
		t.attempt = attempt
		return
	}
	t.attempt = (t.attempt*7 + attempt) / 8
}

// committed records that this producer committed, and that the manifest has this state now.
func (t *turns) committed(state *manifest.Manifest, producer manifest.ProducerID, now time.Time) {
	row, found := state.Producer(producer)
	if !found {
		return
	}
	t.own = append(t.own, ownCommit{row.FirstSequence, state.Stamp.Version, now})
	if len(t.own) > activeCommits {
		t.own = t.own[1:]
	}
}

// begin begins a group. The turn of the one before is over, whoever committed it.
func (t *turns) begin() { t.notBefore = time.Time{} }

// heldUp records that the store did not answer. The time until it does is nobody's turn, so the pace is measured anew.
func (t *turns) heldUp() { t.own, t.notBefore = nil, time.Time{} }

// lost records that this producer lost a race, and that the manifest has this state now. The producer leaves every
// active producer whose last commit is older than its own the time of one commit. If its own commit has landed, it waits
// for nobody: its callers wait for the answer alone.
func (t *turns) lost(state *manifest.Manifest, producer manifest.ProducerID, now time.Time) {
	t.notBefore = time.Time{}
	own, found := state.Producer(producer)
	pace, isContended := t.pace(state.Stamp.Version, now)
	if !found || !isContended || own.FirstSequence > t.own[len(t.own)-1].firstSequence {
		return
	}
	var older time.Duration
	for _, row := range state.Producers {
		if row.Count > 0 && row.FirstSequence >= t.own[0].firstSequence && row.FirstSequence < own.FirstSequence {
			older++
		}
	}
	t.notBefore = now.Add(min(pace*older, turnWaitMax))
}

// wait returns the wait before the next attempt, or 0.
func (t *turns) wait(now time.Time) time.Duration {
	notBefore := t.notBefore
	t.notBefore = time.Time{}
	if notBefore.IsZero() {
		return 0
	}
	return max(notBefore.Sub(now), 0)
}

// pace returns the time between two commits, and whether the manifest is contended.
func (t *turns) pace(version uint64, now time.Time) (time.Duration, bool) {
	if len(t.own) == 0 || version <= t.own[0].version {
		return 0, false
	}
	commits := min(version-t.own[0].version, 1<<31)
	pace := now.Sub(t.own[0].at) / time.Duration(commits)
	return pace, pace < t.attempt*contended
}

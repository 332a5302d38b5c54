package producer

import (
	"time"

	"millpond.dev/otel-exporter/internal/manifest"
)

const (
	// A leader that serves neither this producer nor anybody else is replaced after this number of the producer's lingers, or
	// of the leader's intervals if those are longer and it shows signs of life.
	patienceLingers = 2
	// The shortest and the longest patience by the producer's linger, without takeovers.
	patienceLeast = time.Second
	patienceMost  = 5 * time.Second
	// The patience doubles with each takeover that a producer saw in this time: a lead that moves often is not worth much.
	takeoversRemembered = 10 * time.Minute
	// The longest patience after takeovers, and the number of them that double the shortest to more than that.
	patienceMax  = 80 * time.Second
	doublingsMax = 7
	// The time for which a producer avoids a leader that failed it once. It doubles with each further failure, to avoidMax.
	avoidFirst = time.Second
	avoidMax   = 8 * time.Second
)

// An election decides which producer another one asks to commit its records, and when it takes the lead itself. No
// promise depends on it: two leaders, or none, cost requests and no records. The caller has the clock.
// producer/src/election.rs decides the same in Rust.
type election struct {
	address  string        // where others reach this producer; empty: it never leads
	patience time.Duration // for a leader whose interval is unknown, before takeovers double it

	known       bool // the manifest names a leader that others can ask
	leader      manifest.Leader
	certificate manifest.Fingerprint
	since       time.Time     // the first time that the manifest had this leader with this count of shared commits
	failures    uint          // to serve this producer, since it last did
	failedAt    time.Time     // when the first of these failures was
	unreachable bool          // the last of these failures was one to reach it
	avoidUntil  time.Time     // nothing is sent to it before
	leaving     bool          // it said that it stops leading
	interval    time.Duration // of its segments, as its last answer had it

	takeovers []time.Time // when the last takeovers were seen, oldest first
	closing   bool        // this producer stops: it leads no more
}

func newElection(address string, linger time.Duration) election {
	patience := min(linger, patienceMost) * patienceLingers
	return election{address: address, patience: min(max(patience, patienceLeast), patienceMost)}
}

// see takes note of a manifest that is in force, or was when it was read. It reports whether another leader leads now.
func (e *election) see(state *manifest.Manifest, now time.Time) (changed bool) {
	leader, certificate, reachable := state.ReachableLeader()
	before := e.known
	if before && reachable && e.leader.Producer == leader.Producer && e.leader.Term == leader.Term {
		if e.leader.Shared != leader.Shared {
			e.since = now
		}
		e.leader, e.certificate = leader, certificate
		return false
	}
	*e = election{address: e.address, patience: e.patience, takeovers: e.takeovers, closing: e.closing}
	if !reachable {
		return before
	}
	e.known, e.leader, e.certificate, e.since = true, leader, certificate, now
	if before {
		e.takeovers = append(e.takeovers, now)
		e.takeovers = e.takeovers[max(len(e.takeovers)-doublingsMax, 0):]
	}
	return true
}

// leads reports whether this producer leads, as far as it knows.
func (e *election) leads(own manifest.ProducerID) bool { return e.known && e.leader.Producer == own }

// follows reports whether this producer asks the leader for its next commit.
func (e *election) follows(own manifest.ProducerID, now time.Time) bool {
	return e.known && e.leader.Producer != own && !e.leaving && !now.Before(e.avoidUntil)
}

// avoidedFor returns the time for which this producer still avoids the leader. asks is false if it asks that leader never,
// or at once.
func (e *election) avoidedFor(own manifest.ProducerID, now time.Time) (wait time.Duration, asks bool) {
	wait = e.avoidUntil.Sub(now)
	return wait, e.known && e.leader.Producer != own && !e.leaving && wait > 0
}

// is reports that the leader is still in this term.
func (e *election) is(term uint64) bool { return e.known && e.leader.Term == term }

// served records that the leader of this term served this producer, and closes a segment in each interval.
func (e *election) served(term uint64, interval time.Duration) {
	if e.is(term) {
		e.interval, e.failures, e.avoidUntil = interval, 0, time.Time{}
	}
}

// failed records that the leader of this term did not serve this producer. unreachable: nobody is there, or the connection
// broke. Otherwise it refuses, or it is slow and shows signs of life.
func (e *election) failed(term uint64, unreachable bool, now time.Time) {
	if !e.is(term) {
		return
	}
	if e.failures == 0 {
		e.failedAt = now
	}
	e.unreachable = unreachable
	e.avoidUntil = now.Add(min(avoidFirst<<min(e.failures, 16), avoidMax))
	e.failures++
}

// isLeaving records that the leader of this term stops leading.
func (e *election) isLeaving(term uint64) {
	if e.is(term) {
		e.leaving = true
	}
}

// close records that this producer stops.
func (e *election) close() { e.closing = true }

// office returns what the next commit of this producer does about the lead. The manifest that it replaces was the last to
// be seen.
func (e *election) office(own manifest.ProducerID, now time.Time) office {
	switch {
	case e.closing:
		return office{kind: leaveOffice}
	case e.address == "":
		return office{}
	case !e.known:
		return office{takeOffice, e.address}
	case e.leader.Producer == own:
		return office{}
	}
	still := e.since
	if e.failedAt.After(still) {
		still = e.failedAt
	}
	if e.leaving || (e.failures > 0 && now.Sub(still) >= e.patienceNow(now)) {
		return office{takeOffice, e.address}
	}
	return office{}
}

// patienceNow is the patience with the known leader. A living one may be busy with one segment for its whole interval,
// however short this producer's linger is.
func (e *election) patienceNow(now time.Time) time.Duration {
	doublings := 0
	for _, at := range e.takeovers {
		if now.Sub(at) < takeoversRemembered {
			doublings++
		}
	}
	patience := e.patience
	if !e.unreachable {
		patience = max(patience, min(e.interval, patienceMax)*patienceLingers)
	}
	return min(patience<<min(doublings, doublingsMax), patienceMax)
}

// An office is what a commit does about the lead.
type office struct {
	kind    officeKind
	address string // takeOffice: where others reach this producer
}

type officeKind int

const (
	keepOffice  officeKind = iota // it leaves the lead to whom it is
	takeOffice                    // this producer takes the lead
	leaveOffice                   // this producer stops leading, if it leads
)

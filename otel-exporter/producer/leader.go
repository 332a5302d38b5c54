package producer

import (
	"time"

	"millpond.dev/otel-exporter/internal/manifest"
)

const (
	// avoidFirst is the time for which a producer avoids a leader that failed it once. The time doubles with each further
	// failure, to avoidMax.
	avoidFirst = time.Second
	avoidMax   = 8 * time.Second
)

// A leaderView is what a follower knows about the lead of its shard: whom it asks, and whom it avoids. A follower never
// takes the lead, so this is the part of producer/src/election.rs that does not. No promise depends on it. The caller
// has the clock.
type leaderView struct {
	known       bool // the manifest names a leader that others can ask
	leader      manifest.Leader
	certificate manifest.Fingerprint
	failures    uint      // to serve this producer, since it last did
	avoidUntil  time.Time // nothing is sent to it before
	leaving     bool      // it said that it stops leading
}

// see takes note of a manifest that is in force, or was when it was read. It reports whether another leader leads now.
func (v *leaderView) see(state *manifest.Manifest) (changed bool) {
	leader, certificate, reachable := state.ReachableLeader()
	if !reachable {
		changed = v.known
		*v = leaderView{}
		return changed
	}
	if v.known && v.leader.Producer == leader.Producer && v.leader.Term == leader.Term {
		v.leader, v.certificate = leader, certificate
		return false
	}
	*v = leaderView{known: true, leader: leader, certificate: certificate}
	return true
}

// follows reports whether this producer asks the leader for its next commit.
func (v *leaderView) follows(own manifest.ProducerID, now time.Time) bool {
	return v.known && v.leader.Producer != own && !v.leaving && !now.Before(v.avoidUntil)
}

// avoidedFor returns the time for which this producer still avoids the leader. asks is false if it asks that leader never,
// or at once.
func (v *leaderView) avoidedFor(own manifest.ProducerID, now time.Time) (wait time.Duration, asks bool) {
	wait = v.avoidUntil.Sub(now)
	return wait, v.known && v.leader.Producer != own && !v.leaving && wait > 0
}

// served records that the leader of this term served this producer.
func (v *leaderView) served(term uint64) {
	if v.known && v.leader.Term == term {
		v.failures, v.avoidUntil = 0, time.Time{}
	}
}

// failed records that the leader of this term did not serve this producer.
func (v *leaderView) failed(term uint64, now time.Time) {
	if v.known && v.leader.Term == term {
		v.avoidUntil = now.Add(min(avoidFirst<<min(v.failures, 16), avoidMax))
		v.failures++
	}
}

// isLeaving records that the leader of this term stops leading.
func (v *leaderView) isLeaving(term uint64) {
	if v.known && v.leader.Term == term {
		v.leaving = true
	}
}

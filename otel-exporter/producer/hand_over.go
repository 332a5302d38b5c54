package producer

import (
	"time"

	"millpond.dev/otel-exporter/internal/peer"
)

// This file hands a group that lost a race over to the leader: it commits the uploaded segments, in place of another race.
// The rules of forward.go hold for the number. producer/src/hand_over.rs does the same in Rust.

// turnLook is how often a producer that waits for its turn looks at the manifest.
const turnLook = time.Second

// handOver has the leader commit the group, if there is one to ask. It reports whether the leader was asked: the group is
// empty if the records are in the log, and waits for its own commit otherwise.
func (c *committer) handOver(members *members) (asked bool) {
	// An older manifest may name a leader that leads no more.
	if c.commits.knows != current || !c.mayHandOver(members) || !c.election.follows(c.commits.producer, time.Now()) {
		return false
	}
	works := members.works
	first, landed := c.ask(&peer.Request{Producer: c.commits.producer, Segments: describe(works)})
	if !landed {
		return true
	}
	for i := range works {
		c.counters.delegatedBytes.Add(int64(works[i].encoded.Size))
		c.answerUploaded(&works[i].encodedWork, first+uint64(i))
	}
	members.works = nil
	return true
}

// mayHandOver reports whether another producer may commit the group: nothing of it may have landed yet, and all of it is
// this producer's. If its records were sent before, the leader may have put them into one segment, so that it could not
// tell the sequences of several.
func (c *committer) mayHandOver(members *members) bool {
	most := batchMax
	if !c.commits.mayGrow() {
		most = 1
	}
	works := len(members.works)
	return c.peering != nil && c.commits.mayForward() && members.mayBeForwarded() && works > 0 && works <= most
}

// waitForTurn waits after a lost race as long as others have waited longer. The leader waits for nobody: they may all wait
// for it. A group that the leader may commit waits only until there is a leader to ask: waitForTurn reports that. The turn
// also ends when those that have waited longer have committed.
func (c *committer) waitForTurn(members *members) (mayAsk bool) {
	until := time.Now().Add(c.turns.wait(time.Now()))
	if c.election.leads(c.commits.producer) {
		return false
	}
	for {
		pause := min(time.Until(until), turnLook)
		if pause <= 0 {
			return false
		}
		if c.mayHandOver(members) {
			if avoided, asks := c.election.avoidedFor(c.commits.producer, time.Now()); asks {
				pause = min(pause, max(avoided, 0))
			}
		}
		time.Sleep(pause)
		if c.readManifest() == heldUp {
			// The step has the pauses for a store that does not answer.
			c.turns.heldUp()
			return false
		}
		if c.mayHandOver(members) && c.election.follows(c.commits.producer, time.Now()) {
			return true
		}
		if c.commits.knows == current {
			now := time.Now()
			c.turns.lost(c.commits.known.State, c.commits.producer, now)
			if left := now.Add(c.turns.wait(now)); left.Before(until) {
				until = left
			}
		}
	}
}

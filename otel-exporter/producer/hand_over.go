package producer

import (
	"time"

	"millpond.dev/otel-exporter/internal/peer"
)

// This file hands a group that lost a race over to the leader: it commits the uploaded segments, in place of another race.
// The rules of forward.go hold for the number. producer/src/hand_over.rs does the same in Rust.

// turnLook is how often a producer that waits for its turn looks at the manifest.
const turnLook = time.Second

// handOver has the leader commit the group, if there is one to ask. It returns what is left of the group, and reports
// whether the leader was asked.
func (c *committer) handOver(group []uploadedWork) (left []uploadedWork, asked bool) {
	// An older manifest may name a leader that leads no more.
	if c.commits.knows != current || !c.mayHandOver(group) || !c.view.follows(c.commits.producer, time.Now()) {
		return group, false
	}
	first, landed := c.ask(&peer.Request{Producer: c.commits.producer, Segments: describe(group)})
	if !landed {
		return group, true
	}
	for i := range group {
		c.counters.delegatedBytes.Add(int64(group[i].encoded.Size))
		c.answerUploaded(&group[i].encodedWork, first+uint64(i))
	}
	return nil, true
}

// mayHandOver reports whether another producer may commit the group: nothing of it may have landed yet. If its records were
// sent before, the leader may have put them into one segment, so that it could not tell the sequences of several.
func (c *committer) mayHandOver(group []uploadedWork) bool {
	most := batchMax
	if !c.commits.mayGrow() {
		most = 1
	}
	return c.peering != nil && c.commits.mayForward() && len(group) > 0 && len(group) <= most
}

// waitForTurn waits after a lost race as long as others have waited longer. A group that the leader may commit waits only
// until there is a leader to ask: waitForTurn reports that. The turn also ends when those that have waited longer have
// committed.
func (c *committer) waitForTurn(group []uploadedWork) (mayAsk bool) {
	until := time.Now().Add(c.turns.wait(time.Now()))
	for {
		pause := min(time.Until(until), turnLook)
		if pause <= 0 {
			return false
		}
		if c.mayHandOver(group) {
			if avoided, asks := c.view.avoidedFor(c.commits.producer, time.Now()); asks {
				pause = min(pause, max(avoided, 0))
			}
		}
		time.Sleep(pause)
		if c.readManifest() == heldUp {
			// The step has the pauses for a store that does not answer.
			c.turns.heldUp()
			return false
		}
		if c.mayHandOver(group) && c.view.follows(c.commits.producer, time.Now()) {
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

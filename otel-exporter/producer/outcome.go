package producer

import (
	"fmt"
	"slices"
	"time"

	"millpond.dev/otel-exporter/internal/peer"
)

// This file tells callers and other producers what became of a group, and prepares what is left of it for the next
// attempt. producer/src/committer/outcome.rs does the same in Rust.

// succeed handles the first segments of the group, which are in the log.
func (c *committer) succeed(members *members, landed landed) {
	works := min(landed.count, len(members.works))
	for i := range members.works[:works] {
		c.answerUploaded(&members.works[i].encodedWork, landed.firstSequence+uint64(i))
	}
	members.works = members.works[works:]
	if landed.count == works {
		return
	}
	// All of them are, and so are the foreign segments.
	sequence := landed.firstSequence + uint64(works)
	for _, foreign := range members.foreign {
		c.budget.release(foreign.cost)
		foreign.ticket.committed(sequence)
		sequence += uint64(len(foreign.segments))
	}
	members.foreign = nil
}

// answerUploaded tells everybody who waits for a segment of this producer that it is in the log.
func (c *committer) answerUploaded(work *encodedWork, sequence uint64) {
	c.counters.segments.Add(1)
	c.counters.storedBytes.Add(int64(work.encoded.Size))
	c.answer(work, sequence)
}

// answer tells everybody who waits for these records that they are in the log.
func (c *committer) answer(work *encodedWork, sequence uint64) {
	c.counters.segmentsUncommitted.Add(-1)
	for i := range work.own {
		block := &work.own[i]
		c.counters.blocks.Add(1)
		c.counters.messages.Add(int64(block.Messages))
		c.counters.records.Add(int64(block.Records))
		c.counters.rawBytes.Add(int64(block.RawLen))
	}
	c.budget.release(work.cost)
	committed := Committed{Shard: c.shard, Sequence: sequence}
	for _, waiter := range work.waiters {
		waiter <- result{committed: committed}
	}
	for _, guest := range work.guests {
		c.budget.release(guest.cost)
		guest.ticket.committed(sequence)
	}
}

// settle handles what the table shows about the group.
func (c *committer) settle(members *members, described *described, settlement settleStep) {
	changed := make([]bool, len(members.works))
	// From the last on, so that the places of the others stay.
	for _, held := range slices.Backward(settlement.held) {
		place := described.places[held.place]
		if place.work >= 0 {
			changed[place.work] = true
		}
		answerHeld(members.take(place, c.budget), held)
	}
	landed := 0
	if own := settlement.own; own != nil {
		landed = c.settleOwn(members, described.own, own)
	}
	var left []uploadedWork
	for i, work := range members.works[landed:] {
		if !changed[landed+i] {
			left = append(left, work)
		} else if again, there := c.rebuild(work.encodedWork); there {
			left = append(left, again)
		}
	}
	members.works = left
}

// settleOwn handles the table's answer that this producer's records are in the log. It returns the number of works that
// have their answer.
func (c *committer) settleOwn(members *members, own int, outcome *ownOutcome) (settled int) {
	settled = own
	if !outcome.elsewhere {
		c.turns.committed(c.commits.known.State, c.commits.producer, time.Now())
		settled = outcome.count
	}
	for i := range members.works[:settled] {
		work := &members.works[i].encodedWork
		if outcome.elsewhere {
			// Another producer's segments have this producer's records, and nothing else of the group.
			work.refuseGuests(c.budget, peer.NotCommitted, "the records were given up")
		}
		sequence := outcome.firstSequence
		if outcome.count == settled {
			sequence += uint64(i)
		} // Otherwise the leader has put the blocks of several segments into one.
		c.answerUploaded(work, sequence)
	}
	return settled
}

// rebuild builds and uploads a segment anew, without the blocks of claims that left it. It reports false if that leaves
// nothing.
func (c *committer) rebuild(work encodedWork) (again uploadedWork, there bool) {
	if work.isEmpty() {
		c.counters.segmentsUncommitted.Add(-1)
		c.budget.release(work.cost)
		return uploadedWork{}, false
	}
	if err := work.assemble(c.budget); err != nil {
		// A part of what fitted before fits.
		c.log.Error("millpond: a segment could not be built anew", "reason", err)
		c.failed(&work, &NotCommittedError{err.Error()})
		return uploadedWork{}, false
	}
	return c.upload(work, 0), true
}

// failed tells everybody who waits for a segment that it will not be committed, or that nobody knows.
func (c *committer) failed(work *encodedWork, err error) {
	c.counters.segmentsUncommitted.Add(-1)
	work.fail(c.budget, err)
}

// uploadAgain uploads segments under names above the orphan floor: the objects under the present names may be deleted
// at any time. Others do that for their segments.
func (c *committer) uploadAgain(members *members, again uploadAgainStep) {
	c.log.Warn("millpond: uploading segments again that are named before the orphan floor",
		"segments", len(again.places), "floor_ms", again.floorMs)
	var old []int // of the foreign
	for _, place := range again.places {
		if place < len(members.works) {
			c.counters.reuploads.Add(1)
			members.works[place] = c.upload(members.works[place].encodedWork, again.floorMs)
		} else if foreign := members.foreignAt(place); foreign >= 0 && !slices.Contains(old, foreign) {
			old = append(old, foreign)
		}
	}
	// From the last on, so that the places of the others stay.
	for _, foreign := range slices.Backward(old) {
		ticket := members.take(heldPlace{work: -1, foreign: foreign}, c.budget)
		ticket.refuse(peer.NotCommitted, fmt.Sprintf("segments are named before the orphan floor %d", again.floorMs))
	}
}

// dropInvalid takes a segment that the manifest refuses out of the group and tells its callers. If others have blocks in
// it, they are the first suspects: it is tried again without them.
func (c *committer) dropInvalid(members *members, drop dropStep) {
	if foreign := members.foreignAt(drop.place); foreign >= 0 {
		members.take(heldPlace{work: -1, foreign: foreign}, c.budget).refuse(peer.Invalid, drop.reason)
		return
	}
	if drop.place >= len(members.works) {
		return
	}
	work := members.works[drop.place]
	rest := append(members.works[:drop.place:drop.place], members.works[drop.place+1:]...)
	if len(work.guests) == 0 {
		c.log.Error("millpond: a segment cannot be committed", "segment", work.name.String(), "reason", drop.reason)
		c.failed(&work.encodedWork, &NotCommittedError{drop.reason})
		members.works = rest
		return
	}
	work.refuseGuests(c.budget, peer.Invalid, drop.reason)
	if again, there := c.rebuild(work.encodedWork); there {
		// In its place: a producer's records stay in order.
		members.works[drop.place] = again
		return
	}
	members.works = rest
}

// goOnAnew tells the callers of the group, if the outcome is in doubt, that it is unknown.
func (c *committer) goOnAnew(members *members, renew renewStep) {
	c.counters.expired.Add(1)
	if renew.contradicted {
		c.log.Error("millpond: was the buffer restored from a copy?", "reason", renew.reason)
	}
	if !renew.inDoubt {
		c.log.Warn("millpond: going on under a new producer id", "reason", renew.reason)
		return
	}
	c.log.Error("millpond: the outcome of a commit is unknown", "segments", members.len(), "reason", renew.reason)
	for i := range members.works {
		c.failed(&members.works[i].encodedWork, &OutcomeUnknownError{Reason: renew.reason})
	}
	members.works = nil
	// Others ask the table themselves.
	for _, foreign := range members.foreign {
		c.budget.release(foreign.cost)
		foreign.ticket.refuse(peer.NotCommitted, "the records were given up: "+renew.reason)
	}
	members.foreign = nil
}

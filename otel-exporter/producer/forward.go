package producer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"millpond.dev/otel-exporter/internal/manifest"
	"millpond.dev/otel-exporter/internal/peer"
)

// This file asks the leader to commit this producer's next segments. Whatever the leader answers or does not, the
// number belongs to these records from then on, and the table shows what became of it. producer/src/forward.rs does the
// same in Rust.

const (
	// askMax is the maximum wait for a leader that shows signs of life.
	askMax = 30 * time.Second
	// batchMax is the maximum number of segments of one request.
	batchMax = 64
)

// peers reaches other producers. After an error the request may or may not be committed.
type peers interface {
	Ask(context.Context, peer.Leader, *peer.Request) (*peer.Answer, error)
	Close()
}

// A peering is how a producer takes part in shared commits.
type peering struct {
	peers        peers
	certificate  manifest.Fingerprint // that it presents
	forwardBelow uint64               // smaller data, in compressed bytes, is sent to the leader
	address      string               // where others reach this producer; empty: it never leads
}

// A batch is segments that are next in order, uploaded or not.
type batch []arrival

// kept returns the compressed size if no segment is uploaded.
func (b batch) kept() (size uint64, kept bool) {
	for i := range b {
		if b[i].kept == nil {
			return 0, false
		}
		size += b[i].kept.encoded.Size
	}
	return size, true
}

// blocks returns the blocks of segments that are not uploaded.
func (b batch) blocks() (blocks []peer.Block) {
	for i := range b {
		blocks = append(blocks, b[i].kept.own...)
	}
	return blocks
}

// uploadAll uploads the segments that are not uploaded.
func (c *committer) uploadAll(batch batch) []uploadedWork {
	works := make([]uploadedWork, len(batch))
	var uploads sync.WaitGroup
	for i := range batch {
		if batch[i].uploaded != nil {
			works[i] = *batch[i].uploaded
			continue
		}
		uploads.Go(func() { works[i] = c.upload(*batch[i].kept, 0) })
	}
	uploads.Wait()
	return works
}

// forwardNext sends the next segments to the leader, if there is one. It reports whether there was something to do. The
// segments that the leader did not commit, as far as this producer knows, are the next group, which must not grow.
func (c *committer) forwardNext(members *members, arrivals <-chan arrival) (did bool) {
	if c.peering == nil {
		return false
	}
	c.drain(arrivals)
	follows := c.election.follows(c.commits.producer, time.Now())
	c.following.follow(c.peering.forwardBelow, follows)
	if !follows || !members.empty() {
		return false
	}
	c.waitForTheLeader(arrivals)
	batch := c.nextBatch(batchMax, arrival.mayBeForwarded)
	if len(batch) == 0 {
		return false
	}
	members.works = c.forward(batch)
	return true
}

// mayBeForwarded reports that another producer may commit the segment: it has no records of others.
func (a arrival) mayBeForwarded() bool { return a.uploaded == nil || len(a.uploaded.guests) == 0 }

// waitForTheLeader lets what is ready wait for the time to send it.
func (c *committer) waitForTheLeader(arrivals <-chan arrival) {
	c.pace.begin()
	look := time.NewTimer(time.Hour)
	defer look.Stop()
	for {
		until, isTime, wait := c.sendLater()
		if !wait {
			return
		}
		look.Reset(time.Until(until))
		select {
		case arrival, open := <-arrivals:
			if !open {
				return // The producer stops.
			}
			c.arrive(arrival)
		case <-look.C:
			if isTime {
				return
			}
		}
	}
}

// sendLater returns until when what is ready waits, and whether it is sent then, even if that time has passed. wait is
// false if it is sent now, or if there is nothing.
func (c *committer) sendLater() (until time.Time, isTime, wait bool) {
	next, there := c.waiting[c.nextNumber]
	switch {
	case !there:
		return time.Time{}, false, false
	case next.kept != nil:
		// Between two segments of the leader. Sent at once, the blocks would be in flight when the next ones are ready, which
		// would then miss their segment, and so on.
		until, wait = c.following.sendAt(time.Now())
		return until, true, wait
	case next.uploaded != nil && next.mayBeForwarded():
		// Segments that filled before the end of their linger share a request, as they would share a commit.
		until, wait = c.pace.waitUntil(next.uploaded.commitBy)
	}
	return until, false, wait
}

// forward sends a batch to the leader and waits for the answer. It returns the segments, uploaded, unless they are in the
// log.
func (c *committer) forward(batch batch) []uploadedWork {
	request := &peer.Request{Producer: c.commits.producer}
	size, kept := batch.kept()
	appended := kept && size < c.peering.forwardBelow
	var works []uploadedWork
	if appended {
		request.Blocks = batch.blocks()
	} else {
		works = c.uploadAll(batch)
		request.Segments = describe(works)
	}
	first, landed := c.ask(request)
	switch {
	case landed && appended:
		for i := range batch {
			c.counters.appendedBytes.Add(int64(batch[i].kept.encoded.Size))
			c.answer(batch[i].kept, first)
		}
		return nil
	case landed:
		for i := range works {
			c.counters.delegatedBytes.Add(int64(works[i].encoded.Size))
			c.answerUploaded(&works[i].encodedWork, first+uint64(i))
		}
		return nil
	case appended:
		// The number belongs to exactly these records: nothing joins them.
		return c.uploadAll(batch)
	}
	return works
}

// ask sends the leader a request under the next number. landed is true if the records are in the log, from sequence
// first on. Otherwise they may or may not be, now or later.
func (c *committer) ask(request *peer.Request) (first uint64, landed bool) {
	number, may := c.commits.forward()
	if !may {
		return 0, false
	}
	request.Number = number
	leader, certificate := c.election.leader, c.election.certificate
	ctx, end := context.WithTimeoutCause(c.ctx, askMax, errSlow)
	defer end()
	answer, err := c.peering.peers.Ask(ctx, peer.Leader{Address: leader.Address, Certificate: certificate}, request)
	fallback, reason := unreachable, err
	switch {
	case err != nil:
	case answer.Refused != nil:
		fallback, reason = refusedFor(answer.Refused.Reason), answer.Refused
		if answer.Refused.Reason == peer.Leaving {
			c.election.isLeaving(leader.Term)
		}
	case c.commits.landedElsewhere(number):
		c.election.served(leader.Term, answer.ClosesEvery)
		c.following.keepRhythm(time.Now(), answer.ClosesAfter, answer.ClosesEvery)
		return answer.FirstSequence, true
	default:
		fallback, reason = stale, errStale
	}
	// Pings would have ended a request to a leader that stands still.
	c.election.failed(leader.Term, fallback == unreachable && !errors.Is(err, errSlow), time.Now())
	// Its answer may say that the known manifest is old.
	c.commits.doubtKnown()
	c.following.follow(0, false)
	c.counters.fallbacks[fallback].Add(1)
	c.log.Warn("millpond: the leader did not commit; committing without it", "leader", leader.Address, "reason", reason)
	return 0, false
}

// see takes note of who leads.
func (c *committer) see() {
	if c.peering == nil || c.commits.knows != current {
		return
	}
	state, own := c.commits.known.State, c.commits.producer
	changed := c.election.see(state, time.Now())
	c.lead.learn(state, own)
	if !changed {
		return
	}
	leader := &c.election.leader
	switch {
	case !c.election.known:
		c.log.Info("millpond: nobody leads", "shard", c.shard)
	case leader.Producer == own:
		c.log.Info("millpond: this producer leads", "shard", c.shard, "term", leader.Term)
	default:
		c.log.Info("millpond: another producer leads", "shard", c.shard,
			"producer", leader.Producer.String(), "address", leader.Address, "term", leader.Term)
	}
	c.countLead(c.election.leads(own))
}

// countLead counts this producer among those that lead, or no more.
func (c *committer) countLead(leads bool) {
	switch {
	case leads && !c.isLeader:
		c.counters.leads.Add(1)
	case !leads && c.isLeader:
		c.counters.leads.Add(-1)
	}
	c.isLeader = leads
}

// A fallback is the reason of a commit that was made without the leader.
type fallback int

const (
	unreachable fallback = iota
	stale
	notLeading
	leaving
	overBudget
	leaderHeldUp
	busy
	notCommitted
	invalid
	fallbackCount
)

// FallbackReasons are the reasons of Stats.Fallbacks, in its order.
var FallbackReasons = [fallbackCount]string{
	"unreachable", "stale", "not_leading", "leaving", "over_budget", "held_up", "busy", "not_committed", "invalid",
}

var (
	errStale = errors.New("it answered for another number")
	errSlow  = fmt.Errorf("no answer for %s", askMax)
)

func refusedFor(reason peer.Reason) fallback {
	switch reason {
	case peer.NotLeading:
		return notLeading
	case peer.Leaving:
		return leaving
	case peer.OverBudget:
		return overBudget
	case peer.HeldUp:
		return leaderHeldUp
	case peer.Busy:
		return busy
	case peer.NotCommitted:
		return notCommitted
	}
	return invalid
}

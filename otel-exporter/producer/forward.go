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

// A peering is how a producer takes part in shared commits, as a follower.
type peering struct {
	peers        peers
	certificate  manifest.Fingerprint // that it presents
	forwardBelow uint64               // smaller data, in compressed bytes, is sent to the leader
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

// forwardNext sends the next segments to the leader, if there is one. It reports whether there was something to do, and
// returns the segments that the leader did not commit, as far as this producer knows: they are the next group, which must
// not grow.
func (c *committer) forwardNext(arrivals <-chan arrival) (group []uploadedWork, did bool) {
	if c.peering == nil {
		return nil, false
	}
	c.drain(arrivals)
	leads := c.view.follows(c.commits.producer, time.Now())
	c.following.follow(c.peering.forwardBelow, leads)
	if !leads {
		return nil, false
	}
	c.waitForTheLeader(arrivals)
	batch := c.nextBatch(batchMax)
	if len(batch) == 0 {
		return nil, false
	}
	return c.forward(batch), true
}

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
	case next.uploaded != nil:
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
	leader, certificate := c.view.leader, c.view.certificate
	ctx, end := context.WithTimeoutCause(c.ctx, askMax, fmt.Errorf("no answer for %s", askMax))
	defer end()
	answer, err := c.peering.peers.Ask(ctx, peer.Leader{Address: leader.Address, Certificate: certificate}, request)
	fallback, reason := unreachable, err
	switch {
	case err != nil:
	case answer.Refused != nil:
		fallback, reason = refusedFor(answer.Refused.Reason), answer.Refused
		if answer.Refused.Reason == peer.Leaving {
			c.view.isLeaving(leader.Term)
		}
	case c.commits.landedElsewhere(number):
		c.view.served(leader.Term)
		c.following.keepRhythm(time.Now(), answer.ClosesAfter, answer.ClosesEvery)
		return answer.FirstSequence, true
	default:
		fallback, reason = stale, errStale
	}
	c.view.failed(leader.Term, time.Now())
	// Its answer may say that the known manifest is old.
	c.commits.doubtKnown()
	c.following.follow(0, false)
	c.counters.fallbacks[fallback].Add(1)
	c.log.Warn("millpond: the leader did not commit; committing without it", "leader", leader.Address, "reason", reason)
	return 0, false
}

// settleOwn handles the table's answer that the group's first segments are in the log. It returns the segments that are
// left to commit.
func (c *committer) settleOwn(group []uploadedWork, own *ownOutcome) []uploadedWork {
	if !own.elsewhere {
		c.turns.committed(c.commits.known.State, c.commits.producer, time.Now())
		return c.succeed(group, own.landed)
	}
	// The whole group was forwarded under this number, and nothing has joined it since.
	for i := range group {
		sequence := own.firstSequence
		if own.count == len(group) {
			sequence += uint64(i)
		} // Otherwise the leader has put the blocks of several segments into one.
		c.answerUploaded(&group[i].encodedWork, sequence)
	}
	return nil
}

// see takes note of who leads.
func (c *committer) see() {
	if c.peering == nil || c.commits.knows != current || !c.view.see(c.commits.known.State) {
		return
	}
	if !c.view.known {
		c.log.Info("millpond: nobody leads", "shard", c.shard)
		return
	}
	leader := &c.view.leader
	c.log.Info("millpond: another producer leads", "shard", c.shard,
		"producer", leader.Producer.String(), "address", leader.Address, "term", leader.Term)
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

var errStale = errors.New("it answered for another number")

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

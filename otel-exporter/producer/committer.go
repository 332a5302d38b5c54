package producer

import (
	"fmt"
	"time"

	"github.com/google/uuid"

	"millpond.dev/otel-exporter/internal/manifest"
	"millpond.dev/otel-exporter/internal/storage"
)

// The committer is one goroutine that commits uploaded segments in order, as many as are ready with one
// compare-and-set, never two at a time. commit.go decides the next step, and package manifest defines a commit. This
// file makes the requests, waits and answers the callers. It never gives up.
type committer struct {
	*pipeline
	bufferID   uuid.UUID
	streams    *streams
	commits    commitState
	readsFirst readsFirst

	nextNumber int
	waiting    map[int]arrival
	pace       pace

	peering *peering // nil: it commits for itself
	view    leaderView

	turns    turns
	lostLast bool          // another producer was first, and this one has not read the manifest since
	refused  *refusedState // the store refused to replace it, and may still show it
	behind   bool          // the store showed that again
	past     *past         // the store shows earlier states than before; nil: it does not
	readTook time.Duration // how long the last read of the manifest took
}

// A refusedState is a version that the store refused to replace. nil: no manifest.
type refusedState struct{ version *storage.Version }

// isShownBy reports whether the store shows that state.
func (r *refusedState) isShownBy(found *manifest.Snapshot) bool {
	switch {
	case r == nil:
		return false
	case found == nil || r.version == nil:
		return found == nil && r.version == nil
	}
	return found.Version == *r.version
}

// past is the time in which the store has shown earlier states, without a later one in between.
type past struct{ since, last time.Time }

// pastMax: a store that has shown earlier states for so long goes on doing so, because somebody restored the manifest.
const pastMax = 30 * time.Second

// pastGap: after a longer time without a read of an earlier state, nobody knows what the store has shown meanwhile.
const pastGap = 10 * time.Second

// progress is the result of a step.
type progress int

const (
	committed progress = iota // segments are in the log
	made                      // the next step can follow at once
	heldUp                    // the store did not do it: the same follows after a wait
	lostRace                  // another producer was first
)

func newCommitter(pipeline *pipeline, bufferID uuid.UUID, tailMax int, streams *streams, peering *peering) *committer {
	c := &committer{
		pipeline: pipeline,
		bufferID: bufferID,
		streams:  streams,
		commits: commitState{
			bufferID: bufferID,
			shard:    pipeline.shard,
			tailMax:  tailMax,
			producer: pipeline.environment.producerID(),
		},
		waiting: make(map[int]arrival),
		pace:    pace{flow: pipeline.flow, budget: pipeline.budget},
		peering: peering,
	}
	if peering != nil {
		c.commits.certificate = peering.certificate
	}
	return c
}

// run commits until the uploaders have ended and all their segments are committed.
func (c *committer) run(arrivals <-chan arrival) {
	for arrival := range arrivals {
		c.arrive(arrival)
		for c.commitNext(arrivals) {
		}
	}
	if c.peering != nil {
		c.peering.peers.Close()
	}
}

// commitNext commits the next segments, or has the leader commit them. It reports whether there were any.
func (c *committer) commitNext(arrivals <-chan arrival) bool {
	group, did := c.forwardNext(arrivals)
	if did && len(group) == 0 {
		return true
	}
	if c.commits.mayGrow() {
		if group = c.extend(group, arrivals); len(group) > 0 {
			group = c.gather(group, arrivals)
		}
	}
	if len(group) == 0 {
		return false
	}
	c.commit(group, arrivals)
	return true
}

func (c *committer) arrive(arrival arrival) {
	c.pace.arrive()
	if arrival.uploaded != nil || arrival.kept != nil {
		c.counters.segmentsUncommitted.Add(1)
	}
	c.waiting[arrival.number] = arrival
}

// extend moves the segments that have arrived and are next in order into the group.
func (c *committer) extend(group []uploadedWork, arrivals <-chan arrival) []uploadedWork {
	c.drain(arrivals)
	return append(group, c.uploadAll(c.nextBatch(commitSegmentsMax-len(group)))...)
}

// drain takes what has arrived.
func (c *committer) drain(arrivals <-chan arrival) {
	for {
		select {
		case arrival, open := <-arrivals:
			if !open {
				return
			}
			c.arrive(arrival)
		default:
			return
		}
	}
}

// nextBatch takes the segments that are next in order.
func (c *committer) nextBatch(most int) (batch batch) {
	for len(batch) < most {
		arrival, found := c.waiting[c.nextNumber]
		if !found {
			break
		}
		delete(c.waiting, c.nextNumber)
		c.nextNumber++
		if arrival.kept != nil || arrival.uploaded != nil {
			batch = append(batch, arrival)
		}
	}
	return batch
}

// gather lets segments that filled before the end of their linger wait for others to share their commit, as long as
// that is worthwhile.
func (c *committer) gather(group []uploadedWork, arrivals <-chan arrival) []uploadedWork {
	c.pace.begin()
	look := time.NewTimer(time.Hour)
	defer look.Stop()
	for len(group) < commitSegmentsMax {
		nextLook, wait := c.pace.waitUntil(due(group))
		if !wait {
			break
		}
		look.Reset(time.Until(nextLook))
		select {
		case arrival, open := <-arrivals:
			if !open {
				return group
			}
			c.arrive(arrival)
		case <-look.C:
		}
		group = c.extend(group, arrivals)
	}
	return group
}

// due is the latest time at which the commit of a group starts.
func due(group []uploadedWork) time.Time {
	due := group[0].commitBy
	for i := range group {
		if by := group[i].commitBy; by.Before(due) {
			due = by
		}
	}
	return due
}

// commit commits a group of segments. It retries without limit.
func (c *committer) commit(group []uploadedWork, arrivals <-chan arrival) {
	started := time.Now()
	backoff := storage.Backoff{Initial: 20 * time.Millisecond, Max: 3 * time.Second}
	races := storage.Backoff{Initial: 20 * time.Millisecond, Max: raceWaitMax}
	c.readsFirst.begin(&c.commits)
	c.turns.begin()
	c.lostLast = false
	hasLost := false
	for len(group) > 0 {
		if hasLost {
			if left, asked := c.handOver(group); asked {
				group = left
				continue
			}
		}
		if c.waitForTurn(group) {
			hasLost = true
			continue
		}
		if c.commits.mayGrow() {
			group = c.extend(group, arrivals)
		}
		left, progress := c.step(group)
		switch progress {
		case committed:
			c.caughtUp()
			c.health.gotOn(committing)
			if c.hooks.Committed != nil {
				c.hooks.Committed(time.Since(started), len(group)-len(left))
			}
		case made:
		case heldUp:
			c.turns.heldUp()
			time.Sleep(c.environment.wait(&backoff))
		case lostRace:
			c.lostLast, hasLost = true, true
			if !c.behind {
				c.health.gotOn(committing) // A lost race is an answer of the store.
			}
			time.Sleep(c.environment.wait(&races))
		}
		group = left
	}
	// Nothing waits for the store any more, whoever committed the group.
	c.health.gotOn(committing)
}

// step takes one step of the group's commit. It returns the segments that are left to commit.
func (c *committer) step(group []uploadedWork) ([]uploadedWork, progress) {
	switch next := c.commits.next(groupOf(describe(group)), c.environment).(type) {
	case readStep:
		return group, c.readManifest()
	case storePageStep:
		return group, c.storePage(next.page)
	case swapStep:
		return c.swap(group, next)
	case registeredStep:
		c.log.Info("millpond: registered", "producer", c.commits.producer.String(), "shard", c.shard)
	case settleStep:
		// This producer holds nobody's records: a settlement is about its own.
		c.counters.commitsFound.Add(1)
		if next.own != nil {
			group = c.settleOwn(group, next.own)
		}
		return group, committed
	case uploadAgainStep:
		c.uploadAgain(group, next)
	case dropStep:
		return c.dropInvalid(group, next), made
	case renewStep:
		return c.goOnAnew(group, next), made
	}
	return group, made
}

func describe(group []uploadedWork) []manifest.NewSegment {
	segments := make([]manifest.NewSegment, len(group))
	for i := range group {
		segments[i] = group[i].describe()
	}
	return segments
}

// storePage puts the page of a full tail into the store.
func (c *committer) storePage(new *newPage) progress {
	body, err := new.page.Encode()
	if err == nil {
		key := manifest.PageKey(c.shard, new.page.First, new.name)
		_, err = c.store.PutIfAbsent(c.ctx, key, storage.Body{body})
	}
	c.commits.stored(err == nil)
	if err != nil {
		c.health.heldUp(committing, err)
		return heldUp
	}
	return made
}

// readManifest reads the manifest.
func (c *committer) readManifest() progress {
	began := time.Now()
	found, err := manifest.Read(c.ctx, c.store, c.shard)
	c.readTook = time.Since(began)
	if err == nil && found != nil && found.State.BufferID != c.bufferID {
		err = fmt.Errorf("%s belongs to buffer %s, not to %s", manifest.Key(c.shard), found.State.BufferID, c.bufferID)
	}
	if err != nil {
		c.health.heldUp(committing, err)
		return heldUp
	}
	news := c.commits.read(found)
	if news.isPast {
		c.health.heldUp(committing, fmt.Errorf("the store shows an earlier version of %s than before", manifest.Key(c.shard)))
		c.waitForLater()
		return heldUp
	}
	if c.past != nil {
		c.past = nil
		c.health.gotOn(committing)
	}
	if found != nil {
		c.streams.learn(found.State.Streams)
	}
	c.hear(news)
	if c.refused.isShownBy(found) {
		c.behind = true
		c.health.heldUp(committing, fmt.Errorf("the store shows a version of %s that it refused to replace", manifest.Key(c.shard)))
		return heldUp
	}
	c.caughtUp()
	if c.lostLast && found != nil {
		c.turns.lost(found.State, c.commits.producer, time.Now())
	}
	c.lostLast = false
	return made
}

// waitForLater gives up the wait for a later state after a while.
func (c *committer) waitForLater() {
	now := time.Now()
	if c.past == nil || now.Sub(c.past.last) > pastGap {
		c.past = &past{since: now}
	}
	c.past.last = now
	if now.Sub(c.past.since) >= pastMax {
		c.commits.isRestored()
	}
}

// caughtUp records that the store shows what others committed.
func (c *committer) caughtUp() {
	c.refused = nil
	if c.behind {
		c.behind = false
		c.health.gotOn(committing)
	}
}

func (c *committer) hear(news news) {
	c.see()
	c.readsFirst.hear(news)
	if news.pageJoined {
		c.counters.pages.Add(1)
	}
}

// swap makes one compare-and-set.
func (c *committer) swap(group []uploadedWork, swap swapStep) ([]uploadedWork, progress) {
	if swap.expected == nil {
		if err := c.checkBuffer(); err != nil {
			c.health.heldUp(committing, err)
			return group, heldUp
		}
	}
	began := time.Now()
	outcome, snapshot, err := manifest.Swap(c.ctx, c.store, c.shard, swap.expected, swap.next)
	if outcome != storage.Unknown {
		c.turns.took(c.readTook + time.Since(began))
	}
	c.counters.commits[outcome].Add(1)
	if err != nil {
		c.health.heldUp(committing, err)
	}
	if outcome == storage.Committed {
		c.past = nil // The store has the latest state.
	}
	news := c.commits.swapped(outcome, snapshot)
	c.hear(news)
	switch {
	case news.landed != nil:
		c.turns.committed(snapshot.State, c.commits.producer, time.Now())
		return c.succeed(group, *news.landed), committed
	case outcome == storage.Committed:
		return group, made
	case outcome == storage.Mismatch:
		c.refused = &refusedState{swap.expected}
		return group, lostRace
	}
	return group, heldUp
}

// checkBuffer returns why this producer may not create the manifest: somebody deleted the buffer, and perhaps created
// another one, whose producers would wait for ever at the manifest of the old one.
func (c *committer) checkBuffer() error {
	key := manifest.Key(c.shard)
	found, err := manifest.ReadBuffer(c.ctx, c.store)
	switch {
	case err != nil:
		return err
	case found == nil:
		return fmt.Errorf("%s and the object %q are gone", key, manifest.BufferKey)
	case found.ID != c.bufferID:
		return fmt.Errorf("%s is gone, and buffer %s has taken the place of %s: restart this process", key, found.ID, c.bufferID)
	}
	return nil
}

// tryRegister registers before the first segment is there. It reports whether the producer is registered now.
func (c *committer) tryRegister() bool {
	for !c.commits.registered {
		if _, progress := c.step(nil); progress == heldUp || progress == lostRace {
			return false
		}
	}
	c.health.gotOn(committing)
	return true
}

// succeed tells the callers of the group's first segments that they are in the log. It returns the segments that are
// left to commit.
func (c *committer) succeed(group []uploadedWork, landed landed) []uploadedWork {
	for i := range group[:landed.count] {
		c.answerUploaded(&group[i].encodedWork, landed.firstSequence+uint64(i))
	}
	return group[landed.count:]
}

// answerUploaded tells the callers of a segment of this producer that it is in the log.
func (c *committer) answerUploaded(work *encodedWork, sequence uint64) {
	c.counters.segments.Add(1)
	c.counters.storedBytes.Add(int64(work.encoded.Size))
	c.answer(work, sequence)
}

// answer tells the callers of these records that they are in the log.
func (c *committer) answer(work *encodedWork, sequence uint64) {
	c.counters.segmentsUncommitted.Add(-1)
	for _, part := range work.encoded.Streams {
		c.counters.blocks.Add(int64(part.Blocks))
		c.counters.messages.Add(int64(part.Messages))
		c.counters.records.Add(int64(part.Records))
		c.counters.rawBytes.Add(int64(part.RawLen))
	}
	c.budget.release(work.cost)
	committed := Committed{Shard: c.shard, Sequence: sequence}
	for _, waiter := range work.waiters {
		waiter <- result{committed: committed}
	}
}

// failed tells the callers of a segment that it will not be committed.
func (c *committer) failed(work *uploadedWork, err error) {
	c.counters.segmentsUncommitted.Add(-1)
	c.budget.release(work.cost)
	fail(work.waiters, err)
}

// uploadAgain uploads segments under names above the orphan floor: the objects under the present names may be deleted
// at any time.
func (c *committer) uploadAgain(group []uploadedWork, again uploadAgainStep) {
	c.log.Warn("millpond: uploading segments again that are named before the orphan floor",
		"segments", len(again.places), "floor_ms", again.floorMs)
	for _, place := range again.places {
		c.counters.reuploads.Add(1)
		group[place] = c.upload(group[place].encodedWork, again.floorMs)
	}
}

// dropInvalid takes a segment that the manifest refuses out of the group and tells its callers.
func (c *committer) dropInvalid(group []uploadedWork, drop dropStep) []uploadedWork {
	work := &group[drop.place]
	c.log.Error("millpond: a segment cannot be committed", "segment", work.name.String(), "reason", drop.reason)
	c.failed(work, &NotCommittedError{drop.reason})
	return append(group[:drop.place:drop.place], group[drop.place+1:]...)
}

// goOnAnew tells the callers of the group, if the outcome is in doubt, that it is unknown.
func (c *committer) goOnAnew(group []uploadedWork, renew renewStep) []uploadedWork {
	c.counters.expired.Add(1)
	if renew.contradicted {
		c.log.Error("millpond: was the buffer restored from a copy?", "reason", renew.reason)
	}
	if !renew.inDoubt {
		c.log.Warn("millpond: going on under a new producer id", "reason", renew.reason)
		return group
	}
	c.log.Error("millpond: the outcome of a commit is unknown", "segments", len(group), "reason", renew.reason)
	for i := range group {
		c.failed(&group[i], &OutcomeUnknownError{Reason: renew.reason})
	}
	return nil
}

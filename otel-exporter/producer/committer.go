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

	peering  *peering       // nil: it commits for itself
	others   <-chan foreign // segments that other producers have uploaded
	election election
	lookedAt time.Time // when others last made this producer read the manifest
	isLeader bool      // the statistics count it as one

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
	settling                  // claims of others have left the group, and the next step can follow at once
	heldUp                    // the store did not do it: the same follows after a wait
	lostRace                  // another producer was first
)

const (
	// lookInterval: others make a producer read the manifest at most this often.
	lookInterval = time.Second
	// leaveAttempts is the number of attempts of a producer that stops to leave the lead to others.
	leaveAttempts = 3
)

func newCommitter(
	pipeline *pipeline, bufferID uuid.UUID, tailMax int, streams *streams, peering *peering, others <-chan foreign,
) *committer {
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
		others:  others,
	}
	if peering != nil {
		c.commits.certificate = peering.certificate
		c.election = newElection(peering.address, pipeline.following.linger)
	}
	return c
}

// run commits until the uploaders have ended and all their segments are committed. Then it leaves the lead to others.
func (c *committer) run(arrivals <-chan arrival) {
	members := new(members)
	for open := true; open; {
		select {
		case arrival, more := <-arrivals:
			if open = more; more {
				c.arrive(arrival)
			}
		case foreign := <-c.others:
			members.foreign = append(members.foreign, foreign)
		case <-c.lead.look:
			c.look()
		}
		for c.commitNext(members, arrivals) {
		}
	}
	c.leave()
	c.countLead(false)
	if c.peering != nil {
		c.peering.peers.Close()
	}
}

// commitNext commits the next segments, or has the leader commit them. It reports whether there were any.
func (c *committer) commitNext(members *members, arrivals <-chan arrival) bool {
	if c.forwardNext(members, arrivals) && members.empty() {
		return true
	}
	if c.commits.mayGrow() {
		c.extend(members, arrivals)
		if !members.empty() {
			c.gather(members, arrivals)
		}
	}
	if members.empty() {
		return false
	}
	c.commit(members, arrivals)
	return true
}

// look reads the manifest because of producers that are new in it, or of consumers that watch.
func (c *committer) look() {
	now := time.Now()
	if now.Sub(c.lookedAt) >= lookInterval && c.commits.mayGrow() {
		c.lookedAt = now
		c.readManifest()
		// Nothing of this producer waits for it.
		c.health.gotOn(committing)
	}
}

// leave stops leading, so that another producer takes over at once. If it does not succeed, others notice later.
func (c *committer) leave() {
	c.election.close()
	for range leaveAttempts {
		if !c.election.leads(c.commits.producer) {
			return
		}
		switch next := c.commits.leave(c.environment).(type) {
		case readStep:
			c.readManifest()
		case swapStep:
			c.swap(new(members), next)
		default:
			return
		}
	}
	// The lead may be left to a timeout.
	c.health.gotOn(committing)
}

func (c *committer) arrive(arrival arrival) {
	c.pace.arrive()
	if arrival.uploaded != nil || arrival.kept != nil {
		c.counters.segmentsUncommitted.Add(1)
	}
	c.waiting[arrival.number] = arrival
}

// extend moves the segments that have arrived and are next in order into the group, and those of others.
func (c *committer) extend(members *members, arrivals <-chan arrival) {
	c.drain(arrivals)
	next := c.nextBatch(commitSegmentsMax-members.len(), func(arrival) bool { return true })
	members.works = append(members.works, c.uploadAll(next)...)
	for members.len()+batchMax <= commitSegmentsMax {
		select {
		case foreign := <-c.others:
			members.foreign = append(members.foreign, foreign)
		default:
			return
		}
	}
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

// nextBatch takes the segments that are next in order, as long as they may be taken.
func (c *committer) nextBatch(most int, may func(arrival) bool) (batch batch) {
	for len(batch) < most {
		arrival, found := c.waiting[c.nextNumber]
		if !found || !may(arrival) {
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
func (c *committer) gather(members *members, arrivals <-chan arrival) {
	c.pace.begin()
	look := time.NewTimer(time.Hour)
	defer look.Stop()
	// Segments of others do not wait.
	for len(members.foreign) == 0 && members.len() < commitSegmentsMax {
		nextLook, wait := c.pace.waitUntil(due(members.works))
		if !wait {
			break
		}
		look.Reset(time.Until(nextLook))
		select {
		case arrival, open := <-arrivals:
			if !open {
				return
			}
			c.arrive(arrival)
		case foreign := <-c.others:
			members.foreign = append(members.foreign, foreign)
		case <-look.C:
		}
		c.extend(members, arrivals)
	}
}

// due is the latest time at which the commit of these segments starts.
func due(works []uploadedWork) time.Time {
	due := works[0].commitBy
	for i := range works {
		if by := works[i].commitBy; by.Before(due) {
			due = by
		}
	}
	return due
}

// commit commits a group of segments. It retries without limit.
func (c *committer) commit(members *members, arrivals <-chan arrival) {
	started := time.Now()
	backoff := storage.Backoff{Initial: 20 * time.Millisecond, Max: 3 * time.Second}
	races := storage.Backoff{Initial: 20 * time.Millisecond, Max: raceWaitMax}
	c.readsFirst.begin(&c.commits)
	c.turns.begin()
	c.lostLast = false
	// Each segment that joins may bring claims that have to leave it, which takes an upload. The others do not wait for all
	// that arrive meanwhile, also after a lost race.
	isSettling, hasLost := false, false
	for !members.empty() {
		if hasLost && c.handOver(members) {
			continue
		}
		if c.waitForTurn(members) {
			hasLost = true
			continue
		}
		if c.commits.mayGrow() && !isSettling {
			c.extend(members, arrivals)
		}
		before := members.len()
		switch c.step(members) {
		case committed:
			isSettling = false
			c.caughtUp()
			c.lead.answered(time.Now())
			c.health.gotOn(committing)
			if c.hooks.Committed != nil {
				c.hooks.Committed(time.Since(started), before-members.len())
			}
		case made:
		case settling:
			isSettling = true
		case heldUp:
			c.turns.heldUp()
			time.Sleep(c.environment.wait(&backoff))
		case lostRace:
			c.lostLast, hasLost = true, true
			if !c.behind {
				c.health.gotOn(committing) // A lost race is an answer of the store.
			}
			if !c.election.leads(c.commits.producer) {
				time.Sleep(c.environment.wait(&races))
			}
		}
	}
	// Nothing waits for the store any more, whoever committed the group.
	c.health.gotOn(committing)
}

// step takes one step of the group's commit.
func (c *committer) step(members *members) progress {
	described := members.describe()
	c.commits.office = c.election.office(c.commits.producer, time.Now())
	switch next := c.commits.next(described.group, c.environment).(type) {
	case readStep:
		return c.readManifest()
	case storePageStep:
		return c.storePage(next.page)
	case swapStep:
		return c.swap(members, next)
	case registeredStep:
		c.log.Info("millpond: registered", "producer", c.commits.producer.String(), "shard", c.shard)
	case settleStep:
		c.counters.commitsFound.Add(1)
		c.settle(members, &described, next)
		if next.own == nil {
			return settling
		}
		return committed
	case uploadAgainStep:
		c.uploadAgain(members, next)
	case dropStep:
		c.dropInvalid(members, next)
	case renewStep:
		c.goOnAnew(members, next)
	}
	return made
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
	if c.refused != nil {
		c.refused = nil
		c.lead.answered(time.Now())
	}
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
func (c *committer) swap(members *members, swap swapStep) progress {
	if swap.expected == nil {
		if err := c.checkBuffer(); err != nil {
			c.health.heldUp(committing, err)
			return heldUp
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
		c.succeed(members, *news.landed)
		return committed
	case outcome == storage.Committed:
		return made
	case outcome == storage.Mismatch:
		c.refused = &refusedState{swap.expected}
		return lostRace
	}
	return heldUp
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
		if progress := c.step(new(members)); progress == heldUp || progress == lostRace {
			return false
		}
	}
	c.health.gotOn(committing)
	return true
}

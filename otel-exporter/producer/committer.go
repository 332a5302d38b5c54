package producer

import (
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/oklog/ulid/v2"

	"millpond.dev/otel-exporter/internal/manifest"
	"millpond.dev/otel-exporter/internal/storage"
)

// commitSegmentsMax is the most segments in one commit: the manifest's tail has room for so many at a time.
const commitSegmentsMax = 512

// readsFirst is how many commits read the manifest before they swap it, once another producer has committed between two
// of ours. 12: a read costs a twelfth of a swap that is refused.
const readsFirst = 12

// The committer is one goroutine that commits uploaded segments in their order, as many as there are with one
// compare-and-set, never two at a time. What a commit means is decided by package manifest; here is only what to do
// about its outcomes. It never gives up.
type committer struct {
	*pipeline
	bufferID uuid.UUID
	tailMax  int
	streams  *streams

	page       *newPage
	producer   manifest.ProducerID
	registered bool
	last       uint64 // the number of this producer's last commit

	isKnown bool               // else the manifest must be read again
	known   *manifest.Snapshot // nil: there is none

	readsFirst int              // so many commits more read the manifest first, though they know one
	outdated   *storage.Version // of the one that they knew

	unresolved *attempt // more segments join the group only when there is none

	nextNumber int
	waiting    map[int]arrival
	pace       pace
}

// A newPage is a page on its way into the manifest.
type newPage struct {
	name   ulid.ULID
	page   *manifest.Page
	stored bool // a manifest may refer to it
}

// An attempt is a commit that was sent and not confirmed. While the manifest still has the version that it expected, the
// write may yet land. Once the manifest has another version, either the table shows the commit, or the write never happened
// and never will. A mismatch proves no more than an unknown outcome: where a proxy repeats a request, the store refuses the
// second copy because the first landed.
type attempt struct {
	expected      storage.Version
	number        uint64
	firstSequence uint64      // what its first segment gets if it lands
	segments      []ulid.ULID // the names, in their order
	refused       bool        // the store answered that it refused the write
}

// isConfirmed reports whether the table's answer is about this attempt, and the group still begins with what it named.
func (a *attempt) isConfirmed(state *manifest.Manifest, number uint64, found manifest.Commit, group []uploadedWork) bool {
	if a.number != number || a.firstSequence != found.FirstSequence || uint64(len(a.segments)) != found.Count ||
		len(a.segments) > len(group) {
		return false
	}
	for i, name := range a.segments {
		if group[i].name != name {
			return false
		}
	}
	return state.MayHave(a.firstSequence, a.segments)
}

// isDisproved reports whether the state, which replaced the expected one, certainly does not have the segments. A refusal
// is worth the look: it nearly always means that another producer was first.
func (a *attempt) isDisproved(state *manifest.Manifest) bool {
	return a.refused && state.Lacks(a.firstSequence, a.segments)
}

// next is what to do after an attempt.
type next int

const (
	done next = iota
	atOnce
	afterAWait
)

func newCommitter(pipeline *pipeline, bufferID uuid.UUID, tailMax int, streams *streams) *committer {
	return &committer{
		pipeline: pipeline,
		bufferID: bufferID,
		tailMax:  tailMax,
		streams:  streams,
		producer: pipeline.environment.producerID(),
		waiting:  make(map[int]arrival),
		pace:     pace{flow: pipeline.flow, budget: pipeline.budget},
	}
}

// run goes on until the uploaders are gone and everything that they brought is committed.
func (c *committer) run(arrivals <-chan arrival) {
	for arrival := range arrivals {
		c.arrive(arrival)
		for group := c.extend(nil, arrivals); len(group) > 0; group = c.extend(nil, arrivals) {
			c.commit(c.gather(group, arrivals), arrivals)
		}
	}
}

func (c *committer) arrive(arrival arrival) {
	c.pace.arrive()
	if arrival.uploaded != nil {
		c.counters.segmentsUncommitted.Add(1)
	}
	c.waiting[arrival.number] = arrival
}

// extend moves what has arrived and is next in order into the group.
func (c *committer) extend(group []uploadedWork, arrivals <-chan arrival) []uploadedWork {
	for more := true; more; {
		select {
		case arrival, open := <-arrivals:
			if more = open; open {
				c.arrive(arrival)
			}
		default:
			more = false
		}
	}
	for len(group) < commitSegmentsMax {
		arrival, found := c.waiting[c.nextNumber]
		if !found {
			break
		}
		delete(c.waiting, c.nextNumber)
		c.nextNumber++
		if arrival.uploaded != nil {
			group = append(group, *arrival.uploaded)
		}
	}
	return group
}

// gather lets segments that were full before their linger was over wait for others to share their commit, as long as
// that is worth it.
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

// due is when the commit of a group begins at the latest.
func due(group []uploadedWork) time.Time {
	due := group[0].commitBy
	for i := range group {
		if by := group[i].commitBy; by.Before(due) {
			due = by
		}
	}
	return due
}

// commit commits a group of segments, however long it takes.
func (c *committer) commit(group []uploadedWork, arrivals <-chan arrival) {
	started := time.Now()
	backoff := storage.Backoff{Initial: 20 * time.Millisecond, Max: 3 * time.Second}
	c.invalidate()
	for len(group) > 0 {
		// What an unresolved attempt named must not change, or its landing would be misread. Reading comes first: it may
		// show that the attempt is lost.
		isRead := c.readManifest()
		if c.unresolved == nil {
			group = c.extend(group, arrivals)
		}
		segments, next := len(group), afterAWait
		if isRead {
			group, next = c.attempt(group)
		}
		switch next {
		case done:
			c.health.gotOn(committing)
			if c.hooks.Committed != nil {
				c.hooks.Committed(time.Since(started), segments-len(group))
			}
		case afterAWait:
			time.Sleep(c.environment.wait(&backoff))
		}
	}
}

// invalidate forgets a manifest that others have probably changed: to swap it would be in vain.
func (c *committer) invalidate() {
	if c.readsFirst == 0 || !c.isKnown {
		return
	}
	c.readsFirst--
	if c.known != nil {
		c.outdated = &c.known.Version
	}
	c.isKnown, c.known = false, nil
}

// attempt makes sure that the manifest, which was read, knows this producer; then it tries to commit. It gives what is left
// to commit.
func (c *committer) attempt(group []uploadedWork) ([]uploadedWork, next) {
	if !c.registered {
		return group, c.register()
	}
	if c.known == nil {
		// It was registered, and the manifest is gone: as if it had been forgotten.
		return c.forgotten(group, "the manifest is gone"), atOnce
	}
	if !c.storePage() {
		return group, afterAWait
	}
	base, number := c.known.State, c.last+1
	sealed := c.sealed(base)
	if sealed != nil {
		base = sealed
	}
	segments := describe(group)
	commit, err := base.Commit(c.producer, number, segments, c.environment.unixMs())
	if err != nil {
		return c.refused(group, number, err)
	}
	if commit.State == nil {
		return c.found(group, number, commit)
	}
	expected := c.known.Version
	if outcome := c.swap(&expected, commit.State.Stamped(c.environment.nonce())); outcome != storage.Committed {
		names := make([]ulid.ULID, len(segments))
		for i := range segments {
			names[i] = segments[i].Segment
		}
		c.unresolved = &attempt{expected, number, commit.FirstSequence, names, outcome == storage.Mismatch}
		return group, afterAWait
	}
	if sealed != nil {
		c.page = nil
		c.counters.pages.Add(1)
	}
	c.succeed(group, number, commit)
	return nil, done
}

// found acknowledges what the table confirms: the attempt that carried this number, and nothing else of the group.
func (c *committer) found(group []uploadedWork, number uint64, commit manifest.Commit) ([]uploadedWork, next) {
	if c.unresolved == nil || !c.unresolved.isConfirmed(c.known.State, number, commit, group) {
		reason := fmt.Sprintf("the manifest has a commit %d of producer %s that this producer did not make: "+
			"%d segments from sequence %d on", number, c.producer, commit.Count, commit.FirstSequence)
		c.log.Error("millpond: was the buffer restored from a copy?", "reason", reason)
		return c.goOnAnew(group, reason, true), atOnce
	}
	c.counters.commitsFound.Add(1)
	confirmed := len(c.unresolved.segments)
	c.succeed(group[:confirmed], number, commit)
	return group[confirmed:], done
}

func describe(group []uploadedWork) []manifest.NewSegment {
	segments := make([]manifest.NewSegment, len(group))
	for i := range group {
		segments[i] = group[i].describe()
	}
	return segments
}

// refused does what a refusal of the manifest asks for.
func (c *committer) refused(group []uploadedWork, number uint64, err error) ([]uploadedWork, next) {
	var below *manifest.BelowFloorError
	var notRegistered *manifest.NotRegisteredError
	var wrongNumber *manifest.NumberError
	switch {
	case errors.As(err, &below):
		c.uploadAgain(group, below)
		return group, atOnce
	case errors.As(err, &notRegistered):
		return c.forgotten(group, err.Error()), atOnce
	case errors.As(err, &wrongNumber):
		c.log.Error("millpond: was the buffer restored from a copy?", "reason", err)
		return c.goOnAnew(group, err.Error(), true), atOnce
	}
	return c.dropInvalid(group, number), atOnce
}

// storePage puts the page of a full tail into the store, before any manifest refers to it. It reports whether a commit
// can go on.
func (c *committer) storePage() bool {
	state := c.known.State
	if c.page != nil {
		for _, page := range state.Pages {
			if page.Page == c.page.name {
				// The swap that brought it in has landed unreported.
				c.page = nil
				c.counters.pages.Add(1)
				break
			}
		}
	}
	if len(state.Tail) < c.tailMax {
		c.page = nil
		return true
	}
	if c.sealed(state) != nil {
		return true
	}
	// One that was begun is gone on with as long as the log does: its name is our own.
	if c.page == nil || !c.seals(state) {
		name := c.environment.ulid(state.OrphanFloorMs)
		page, _, _ := state.Seal(name, state.NextSequence-1)
		c.page = &newPage{name: name, page: page}
	}
	body, err := c.page.page.Encode()
	if err == nil {
		key := manifest.PageKey(c.shard, c.page.page.First, c.page.name)
		_, err = c.store.PutIfAbsent(c.ctx, key, storage.Body{body})
	}
	if err != nil {
		c.health.heldUp(committing, err)
	}
	c.page.stored = err == nil
	return c.page.stored
}

// seals reports whether the page that was begun still is what it would be if it were begun now.
func (c *committer) seals(state *manifest.Manifest) bool {
	page, _, ok := state.Seal(c.page.name, c.page.page.Last())
	return ok && page.Equal(c.page.page)
}

// sealed is the state with its full tail sealed, once that page is in the store.
func (c *committer) sealed(state *manifest.Manifest) *manifest.Manifest {
	if c.page == nil || !c.page.stored || !c.seals(state) {
		return nil
	}
	_, sealed, _ := state.Seal(c.page.name, c.page.page.Last())
	return sealed
}

// readManifest reads the manifest unless it is known. It reports whether it is known now.
func (c *committer) readManifest() bool {
	if c.isKnown {
		return true
	}
	found, err := manifest.Read(c.ctx, c.store, c.shard)
	if err == nil && found != nil && found.State.BufferID != c.bufferID {
		err = fmt.Errorf("%s belongs to buffer %s, not to %s", manifest.Key(c.shard), found.State.BufferID, c.bufferID)
	}
	if err != nil {
		c.health.heldUp(committing, err)
		return false
	}
	if found != nil {
		c.streams.learn(found.State.Streams)
	}
	c.resolve(found)
	if c.outdated != nil && (found == nil || found.Version != *c.outdated) {
		c.readsFirst = readsFirst
	}
	c.outdated = nil
	c.isKnown, c.known = true, found
	return true
}

// resolve forgets an unresolved attempt once it is certain that it did not land and never will. One that did land is
// found in the table by Commit itself.
func (c *committer) resolve(found *manifest.Snapshot) {
	if c.unresolved == nil || found == nil {
		return
	}
	changed := c.unresolved.expected != found.Version
	if row, there := found.State.Producer(c.producer); changed && there && row.Commit <= c.last {
		c.unresolved = nil
	}
}

// swap makes one compare-and-set.
func (c *committer) swap(expected *storage.Version, next *manifest.Manifest) storage.Outcome {
	c.isKnown, c.known = false, nil
	outcome, snapshot, err := manifest.Swap(c.ctx, c.store, c.shard, expected, next)
	c.counters.commits[outcome].Add(1)
	if err != nil {
		c.health.heldUp(committing, err)
	}
	switch outcome {
	case storage.Committed:
		c.isKnown, c.known = true, snapshot
	case storage.Mismatch:
		c.readsFirst = readsFirst
	}
	return outcome
}

// register enters this producer into the manifest's table, which is its commit number 0.
func (c *committer) register() next {
	state, version := manifest.New(c.bufferID, c.shard), (*storage.Version)(nil)
	if c.known != nil {
		state, version = c.known.State, &c.known.Version
	}
	if _, there := state.Producer(c.producer); !there {
		next := state.Register(c.producer, c.environment.unixMs()).Stamped(c.environment.nonce())
		if c.swap(version, next) != storage.Committed {
			// Whether it landed is seen in the table; there is nothing else to resolve.
			return afterAWait
		}
	}
	c.log.Info("millpond: registered", "producer", c.producer.String(), "shard", c.shard)
	c.registered = true
	return atOnce
}

// tryRegister registers before the first segment is there. It reports whether it is registered now.
func (c *committer) tryRegister() bool {
	if !c.registered && c.readManifest() {
		c.register()
	}
	if c.registered {
		c.health.gotOn(committing)
	}
	return c.registered
}

// succeed tells the callers of a group that it is in the log.
func (c *committer) succeed(group []uploadedWork, number uint64, commit manifest.Commit) {
	c.last = number
	c.unresolved = nil
	for i := range group {
		work := &group[i]
		c.counters.segmentsUncommitted.Add(-1)
		c.counters.segments.Add(1)
		c.counters.storedBytes.Add(int64(work.encoded.Size))
		for _, part := range work.encoded.Streams {
			c.counters.blocks.Add(int64(part.Blocks))
			c.counters.messages.Add(int64(part.Messages))
			c.counters.records.Add(int64(part.Records))
			c.counters.rawBytes.Add(int64(part.RawLen))
		}
		c.budget.release(work.cost)
		committed := Committed{Shard: c.shard, Sequence: commit.FirstSequence + uint64(i)}
		for _, waiter := range work.waiters {
			waiter <- result{committed: committed}
		}
	}
}

// failed tells the callers of a segment that it is not going to be committed.
func (c *committer) failed(work *uploadedWork, err error) {
	c.counters.segmentsUncommitted.Add(-1)
	c.budget.release(work.cost)
	fail(work.waiters, err)
}

// uploadAgain uploads segments under names above the orphan floor: those they had may be deleted any moment.
func (c *committer) uploadAgain(group []uploadedWork, below *manifest.BelowFloorError) {
	c.log.Warn("millpond: uploading again", "reason", below)
	for _, place := range below.Places {
		c.counters.reuploads.Add(1)
		group[place] = c.upload(group[place].encodedWork, below.FloorMs)
	}
}

// dropInvalid takes the first segment that the manifest refuses out of the group and tells its callers. The state that
// refuses it is not the one that an earlier attempt was made on, so it is certain that it did not land.
func (c *committer) dropInvalid(group []uploadedWork, number uint64) []uploadedWork {
	segments := describe(group)
	for place := range segments {
		_, err := c.known.State.Commit(c.producer, number, segments[:place+1], c.environment.unixMs())
		var invalid *manifest.InvalidError
		if errors.As(err, &invalid) {
			c.log.Error("millpond: a segment cannot be committed", "segment", group[place].name.String(), "reason", invalid.Reason)
			c.failed(&group[place], &NotCommittedError{invalid.Reason})
			return append(group[:place:place], group[place+1:]...)
		}
	}
	return group
}

// forgotten: the manifest does not know this producer (any more), so its table cannot resolve an attempt. The end of the log
// may.
func (c *committer) forgotten(group []uploadedWork, reason string) []uploadedWork {
	inDoubt := c.unresolved != nil && (c.known == nil || !c.unresolved.isDisproved(c.known.State))
	return c.goOnAnew(group, reason, inDoubt)
}

// goOnAnew goes on under a new id. Where it is in doubt whether the group is in the log, its callers are told just that.
func (c *committer) goOnAnew(group []uploadedWork, reason string, inDoubt bool) []uploadedWork {
	c.counters.expired.Add(1)
	if inDoubt {
		c.log.Error("millpond: the outcome of a commit is unknown", "segments", len(group), "reason", reason)
		for i := range group {
			c.failed(&group[i], &OutcomeUnknownError{Reason: reason})
		}
		group = nil
	} else {
		c.log.Warn("millpond: going on under a new producer id", "reason", reason)
	}
	c.unresolved = nil
	c.producer = c.environment.producerID()
	c.registered = false
	c.last = 0
	return group
}

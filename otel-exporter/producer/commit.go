package producer

import (
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/oklog/ulid/v2"

	"millpond.dev/otel-exporter/internal/manifest"
	"millpond.dev/otel-exporter/internal/storage"
)

// This file decides the producer's next request for a commit. The inputs are the manifest that it knows, its group of
// uploaded segments, its page and its unresolved attempt. It has no clock, no store and no waiting: committer.go makes
// the requests and reports the answers. producer/src/commit.rs decides the same in Rust, and both run the scripts in
// producer/testdata.

// commitSegmentsMax is the maximum number of segments in one commit: the tail of the manifest has room for this many at
// a time.
const commitSegmentsMax = 512

// readsFirstMax is the number of commits that read the manifest first after another producer has committed between two
// of ours. 12: a read costs a twelfth of a refused swap.
const readsFirstMax = 12

// A drawer gives decisions the time and the random numbers.
type drawer interface {
	unixMs() uint64
	nonce() uint64
	ulid(notBeforeMs uint64) ulid.ULID
	producerID() manifest.ProducerID
}

// knowledge is the producer's knowledge of the manifest in force.
type knowledge int

const (
	unread   knowledge = iota // nothing: the producer must read it
	outdated                  // another producer has probably replaced the known one: the producer must read it
	absent                    // there is no manifest
	current                   // the known one was in force when the producer last looked
)

// doubt is the store's answer to the unresolved attempt.
type doubt int

const (
	resolved doubt = iota // there is no unresolved attempt
	unknown               // the store has not answered
	refused               // the store answered that it refused the swap
)

// An attempt is a commit that was sent. Its outcome is unresolved from that moment. While the manifest still has the
// expected version, the write may yet land. Once the manifest has another version, either the table shows the commit,
// or the write never happened and never will. A refusal proves no more than a lost answer: if a proxy repeats a
// request, the store refuses the second copy because the first landed.
type attempt struct {
	expected      storage.Version
	number        uint64
	firstSequence uint64      // what its first segment gets if it lands
	segments      []ulid.ULID // the names, in their order
}

// A newPage is a page that the next swap adds to the manifest.
type newPage struct {
	name   ulid.ULID
	page   *manifest.Page
	stored bool // a manifest may refer to it
}

// sealed returns the state with the page's entries sealed; nil if the log is no longer the one that the page was made
// from.
func (p *newPage) sealed(state *manifest.Manifest) *manifest.Manifest {
	page, sealed, ok := state.Seal(p.name, p.page.Last())
	if !ok || !page.Equal(p.page) {
		return nil
	}
	return sealed
}

// A step is the next step of a commit: one of the types below.
type step interface{}

type (
	// readStep: read the manifest, and report it to read.
	readStep struct{}
	// storePageStep: put this page into the store, and report to stored.
	storePageStep struct{ page *newPage }
	// swapStep: swap the manifest, and report to swapped.
	swapStep struct {
		expected *storage.Version // nil: there must be no manifest
		next     *manifest.Manifest
		attempt  *attempt // nil: the swap registers the producer
	}
	// registeredStep: no request is needed, the manifest has this producer in its table.
	registeredStep struct{}
	// acknowledgeStep: tell callers that their segments are in the log, because an earlier attempt landed unreported.
	acknowledgeStep landed
	// uploadAgainStep: upload these segments again under names with a time of at least floorMs. The objects under the
	// present names may be deleted at any time.
	uploadAgainStep struct {
		places  []int
		floorMs uint64
	}
	// dropStep: take a segment that the manifest refuses for good out of the group. It has certainly not landed.
	dropStep struct {
		place  int
		reason string
	}
	// renewStep: the producer continues under a new id, because the manifest does not show the outcome of the commits
	// under the old one.
	renewStep struct {
		producer manifest.ProducerID
		reason   string
		// True if the whole group may or may not be in the log, so callers learn that the outcome is unknown. Otherwise no
		// segment of it is in the log, and the producer commits it under the new id.
		inDoubt bool
		// True if the manifest contradicts this producer: another one has its id, or somebody restored an older state.
		contradicted bool
	}
)

// landed are the first segments of the group, which are in the log.
type landed struct {
	firstSequence uint64
	count         int
}

// news is the news from an answer or from a manifest that was read.
type news struct {
	landed     *landed // tell callers that their segments are in the log
	pageJoined bool    // the manifest refers to this producer's page
	metAnother bool    // another producer has committed since this one last knew the manifest
}

// commitState is the state of one producer in one shard, which makes one commit at a time.
type commitState struct {
	bufferID   uuid.UUID
	shard      uint32
	tailMax    int
	producer   manifest.ProducerID
	registered bool
	last       uint64 // the number of this producer's last commit

	knows knowledge
	known *manifest.Snapshot // when it is current or outdated

	doubt      doubt
	unresolved *attempt // unless it is resolved

	page *newPage // of a full tail, on its way; nil: none
}

// mayGrow reports whether more segments may join the group. The segments of an unresolved attempt must not change, or
// the producer would misread its landing.
func (c *commitState) mayGrow() bool { return c.doubt == resolved }

// doubtKnown forgets a manifest that others have probably replaced: the store would refuse the swap. It reports whether
// one was known.
func (c *commitState) doubtKnown() bool {
	switch c.knows {
	case current:
		c.knows = outdated
	case absent:
		c.knows = unread
	case unread, outdated:
		return false
	}
	return true
}

// next returns the next step for a group of segments, which must not change until the step is reported. An empty group
// only registers the producer.
func (c *commitState) next(group []manifest.NewSegment, draw drawer) step {
	next := c.decide(group, draw)
	switch next := next.(type) {
	case storePageStep:
		c.page = next.page
	case swapStep:
		c.knows, c.known = unread, nil
		if next.attempt != nil {
			c.doubt, c.unresolved = unknown, next.attempt
		}
	case registeredStep:
		c.registered = true
	case acknowledgeStep:
		c.succeed()
	case renewStep:
		c.producer, c.registered, c.last = next.producer, false, 0
		c.resolve()
	}
	return next
}

// read reports a manifest that was read. nil: there is none.
func (c *commitState) read(found *manifest.Snapshot) news {
	if c.doubt != resolved && found != nil && c.unresolved.expected != found.Version {
		// The table shows an attempt that landed.
		if row, there := found.State.Producer(c.producer); there && row.Commit <= c.last {
			c.resolve()
		}
	}
	metAnother := c.knows == outdated && (found == nil || found.Version != c.known.Version)
	if found == nil {
		c.knows, c.known = absent, nil
		return news{metAnother: metAnother}
	}
	return news{pageJoined: c.learn(found), metAnother: metAnother}
}

// stored reports the end of the page's upload. isStored: the page is certainly in the store.
func (c *commitState) stored(isStored bool) {
	c.page.stored = c.page.stored || isStored
}

// swapped reports the answer to a swap, with the state in force if it landed, or the absence of an answer.
func (c *commitState) swapped(outcome storage.Outcome, found *manifest.Snapshot) (news news) {
	switch outcome {
	case storage.Committed:
		news.pageJoined = c.learn(found)
		if c.doubt != resolved {
			news.landed = &landed{c.unresolved.firstSequence, len(c.unresolved.segments)}
			c.succeed()
		}
	case storage.Mismatch:
		news.metAnother = true
		if c.doubt != resolved {
			c.doubt = refused
		}
	case storage.Unknown:
		// The attempt has been unresolved since it was sent. The table shows whether a registration landed.
	}
	return news
}

func (c *commitState) resolve() { c.doubt, c.unresolved = resolved, nil }

// succeed records that the commit after the last one has landed.
func (c *commitState) succeed() {
	c.last++
	c.resolve()
}

// learn takes over the state in force. It reports whether that state refers to the page: the swap that added the page
// may have landed unreported.
func (c *commitState) learn(found *manifest.Snapshot) (joined bool) {
	if c.page != nil {
		for _, page := range found.State.Pages {
			joined = joined || page.Page == c.page.name
		}
	}
	if joined || len(found.State.Tail) < c.tailMax {
		c.page = nil
	}
	c.knows, c.known = current, found
	return joined
}

func (c *commitState) decide(group []manifest.NewSegment, draw drawer) step {
	switch {
	case c.knows == unread || c.knows == outdated:
		return readStep{}
	case !c.registered:
		return c.register(draw)
	case c.knows == absent:
		// The producer was registered, and the manifest no longer exists: treat it as if the manifest had forgotten the
		// producer.
		return c.forgotten(nil, "the manifest is gone", draw)
	}
	if page := c.pageToStore(c.known.State, draw); page != nil {
		return storePageStep{page}
	}
	return c.commit(group, draw)
}

// register enters this producer into the manifest's table as its commit number 0.
func (c *commitState) register(draw drawer) step {
	state, expected := manifest.New(c.bufferID, c.shard), (*storage.Version)(nil)
	if c.known != nil {
		state, expected = c.known.State, &c.known.Version
	}
	if _, there := state.Producer(c.producer); there {
		return registeredStep{}
	}
	return swapStep{expected, state.Register(c.producer, draw.unixMs()).Stamped(draw.nonce()), nil}
}

// pageToStore returns the page of a full tail. The store must have the page before any manifest refers to it.
func (c *commitState) pageToStore(state *manifest.Manifest, draw drawer) *newPage {
	if len(state.Tail) < c.tailMax || c.sealed(state) != nil {
		return nil
	}
	// As long as the log is the same, repeat an upload that was started: only this producer has the name.
	if c.page != nil && c.page.sealed(state) != nil {
		return c.page
	}
	name := draw.ulid(state.OrphanFloorMs)
	page, _, ok := state.Seal(name, state.NextSequence-1)
	if !ok {
		return nil
	}
	return &newPage{name: name, page: page}
}

// sealed returns the state with its full tail sealed, once that page is in the store.
func (c *commitState) sealed(state *manifest.Manifest) *manifest.Manifest {
	if c.page == nil || !c.page.stored {
		return nil
	}
	return c.page.sealed(state)
}

func (c *commitState) commit(group []manifest.NewSegment, draw drawer) step {
	base, number, nowMs := c.known.State, c.last+1, draw.unixMs()
	if sealed := c.sealed(base); sealed != nil {
		base = sealed
	}
	commit, err := base.Commit([]manifest.Claim{manifest.One(c.producer, number, len(group))}, group, nowMs)
	var below *manifest.BelowFloorError
	var claims *manifest.ClaimsError
	switch {
	case errors.As(err, &claims):
		return c.refused(number, claims.Unusable[0].Reason, group, draw)
	case errors.As(err, &below):
		return uploadAgainStep{below.Places, below.FloorMs}
	case err != nil:
		return c.dropInvalid(group, nowMs, err)
	}
	names := make([]ulid.ULID, len(group))
	for i := range group {
		names[i] = group[i].Segment
	}
	expected := c.known.Version
	attempt := &attempt{expected, number, commit.FirstSequence, names}
	return swapStep{&expected, commit.State.Stamped(draw.nonce()), attempt}
}

// refused handles a table that refuses the next number.
func (c *commitState) refused(number uint64, reason error, group []manifest.NewSegment, draw drawer) step {
	var taken *manifest.TakenError
	var notRegistered *manifest.NotRegisteredError
	switch {
	case errors.As(reason, &taken) && taken.Row.Commit == number:
		return c.already(taken.Row, group, draw)
	case errors.As(reason, &notRegistered):
		return c.forgotten(c.known.State, reason.Error(), draw)
	}
	return contradicted(reason.Error(), draw)
}

// already handles a table that shows a commit of the next number. That commit acknowledges the attempt with this
// number, and nothing else of the group.
func (c *commitState) already(found manifest.ProducerRow, group []manifest.NewSegment, draw drawer) step {
	number := c.last + 1
	if c.doubt == resolved || !c.unresolved.isConfirmed(c.known.State, number, found, group) {
		return contradicted(fmt.Sprintf("the manifest has a commit %d of producer %s that this producer did not make: "+
			"%d segments from sequence %d on", number, c.producer, found.Count, found.FirstSequence), draw)
	}
	return acknowledgeStep{found.FirstSequence, len(c.unresolved.segments)}
}

// isConfirmed reports whether the table's answer is about this attempt, and the group still begins with its segments.
func (a *attempt) isConfirmed(state *manifest.Manifest, number uint64, found manifest.ProducerRow, group []manifest.NewSegment) bool {
	if a.number != number || a.firstSequence != found.FirstSequence || uint64(len(a.segments)) != found.Count ||
		len(a.segments) > len(group) {
		return false
	}
	for i, name := range a.segments {
		if group[i].Segment != name {
			return false
		}
	}
	return state.MayHave(a.firstSequence, a.segments)
}

// dropInvalid drops the first segment that the manifest refuses. An earlier attempt was made on another state than this
// one, so that attempt certainly did not land.
func (c *commitState) dropInvalid(group []manifest.NewSegment, nowMs uint64, err error) step {
	var invalid *manifest.InvalidError
	for place := range group {
		claims := []manifest.Claim{manifest.One(c.producer, c.last+1, place+1)}
		if _, err := c.known.State.Commit(claims, group[:place+1], nowMs); errors.As(err, &invalid) {
			return dropStep{place, invalid.Reason}
		}
	}
	// The unsealed state refuses every segment that the sealed one refuses.
	return dropStep{len(group) - 1, err.Error()}
}

// forgotten handles a manifest that does not know this producer (any more), so its table cannot resolve an attempt. The
// end of the log may: after a refusal it is worth a look, because another producer nearly always was first.
func (c *commitState) forgotten(state *manifest.Manifest, reason string, draw drawer) step {
	disproved := c.doubt == refused && state != nil && state.Lacks(c.unresolved.firstSequence, c.unresolved.segments)
	return renewStep{draw.producerID(), reason, c.doubt != resolved && !disproved, false}
}

// contradicted handles a manifest that contradicts this producer: another process uses the id, or somebody restored an
// older manifest. Its statements about the group are not trustworthy.
func contradicted(reason string, draw drawer) step {
	return renewStep{draw.producerID(), reason, true, true}
}

// readsFirst is the number of further groups that read the manifest before they swap it, although the producer knows
// one. It saves refused swaps, and no promise depends on it.
type readsFirst int

// hear takes note of news.
func (r *readsFirst) hear(news news) {
	if news.metAnother {
		*r = readsFirstMax
	}
}

// begin starts a group.
func (r *readsFirst) begin(commits *commitState) {
	if *r > 0 && commits.doubtKnown() {
		*r--
	}
}

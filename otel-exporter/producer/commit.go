package producer

import (
	"errors"
	"fmt"
	"slices"

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

	newest uint64 // the number of the latest state that this producer has seen
	// The number of the latest state before the store showed earlier ones for good, as far as is known; 0: it does not.
	restoredFrom uint64

	doubt      doubt
	unresolved *attempt // unless it is resolved

	forwarded bool // the records of the next number were sent to another producer, which may commit them
	// The held claims that were there before the manifest was last read. What it lacks says nothing about later ones.
	asked []claimName

	page *newPage // of a full tail, on its way; nil: none

	certificate manifest.Fingerprint // what this producer presents to others
	office      office               // what the next commits do about the lead
}

// A claimName is the producer of a claim, and the first of its numbers.
type claimName struct {
	producer manifest.ProducerID
	first    uint64
}

func nameOf(claim manifest.Claim) claimName { return claimName{claim.Producer, claim.First} }

// mayGrow reports whether the group may change. The segments and claims of an unresolved attempt must not, or the
// producer would misread its landing, nor the records of a number that was sent to another producer.
func (c *commitState) mayGrow() bool { return c.doubt == resolved && !c.forwarded }

// forward returns the number under which another producer may commit the group of this one. From now on the number
// belongs to exactly these records, whatever the other one answers, until the table shows it. It reports false while an
// attempt is unresolved, and before the producer is registered.
func (c *commitState) forward() (number uint64, may bool) {
	if !c.mayForward() {
		return 0, false
	}
	c.forwarded = true
	return c.last + 1, true
}

// mayForward reports whether forward has a number. A restored manifest may lack what this producer has sent.
func (c *commitState) mayForward() bool {
	return c.registered && c.restoredFrom == 0 && c.doubt == resolved
}

// landedElsewhere reports, between two steps, another producer's answer that this number is in the log. It returns
// false if the number is not the one that was sent: an old answer came late or twice.
func (c *commitState) landedElsewhere(number uint64) bool {
	if !c.forwarded || number != c.last+1 {
		return false
	}
	c.succeed()
	// The known state may be older than that commit.
	c.doubtKnown()
	return true
}

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

// leave returns the step towards a manifest without this producer as the leader, without any segment; nil: it does not
// lead.
func (c *commitState) leave(draw drawer) step {
	switch {
	case c.knows == unread || c.knows == outdated:
		return readStep{}
	case c.knows == absent || !c.known.State.IsLedBy(c.producer):
		return nil
	}
	expected := c.known.Version
	next := c.known.State.WithoutLeader(c.producer).Stamped(draw.nonce())
	c.knows, c.known = unread, nil
	return swapStep{&expected, next, nil}
}

// next returns the next step for a group, which must not change until the step is reported. An empty group only
// registers the producer.
func (c *commitState) next(group group, draw drawer) step {
	c.asked = slices.DeleteFunc(c.asked, func(asked claimName) bool {
		return !slices.ContainsFunc(group.held, func(claim manifest.Claim) bool { return nameOf(claim) == asked })
	})
	next := c.decide(group, draw)
	switch next := next.(type) {
	case readStep:
		c.asked = nil
		for _, claim := range group.held {
			c.asked = append(c.asked, nameOf(claim))
		}
		// A state that was read earlier must not pass for the answer if the read fails.
		c.doubtKnown()
	case storePageStep:
		c.page = next.page
	case swapStep:
		c.knows, c.known = unread, nil
		if next.attempt != nil {
			c.doubt, c.unresolved = unknown, next.attempt
		}
	case dropStep:
		// The table lacks every claim of the group, so an earlier attempt did not land. Nothing may wait for its outcome: the
		// group may be empty now.
		c.resolve()
	case registeredStep:
		c.registered = true
	case settleStep:
		c.asked = nil
		// The table shows a claim of the attempt, so another state than the expected one is in force. Each claim that it does
		// not show was settled with the others, or has disproved the attempt.
		c.resolve()
		if next.own != nil {
			c.succeed()
		}
	case renewStep:
		c.producer, c.registered, c.last, c.forwarded, c.restoredFrom = next.producer, false, 0, false, 0
		c.resolve()
	}
	return next
}

// read reports a manifest that was read. nil: there is none.
//
// A store, or a cache before it, may show earlier states again. Nothing follows from them, so one is not taken, and the
// next step is another read.
func (c *commitState) read(found *manifest.Snapshot) news {
	var number uint64
	if found != nil {
		number = found.State.Stamp.Version
	}
	if number < c.newest {
		return news{isPast: true}
	}
	if number >= c.restoredFrom {
		c.restoredFrom = 0 // The store has caught up after all.
	}
	if c.doubt != resolved && found != nil && c.unresolved.isDisproved(found.State) {
		c.resolve()
	}
	metAnother := c.knows == outdated && (found == nil || found.Version != c.known.Version)
	if found == nil {
		c.knows, c.known = absent, nil
		return news{metAnother: metAnother}
	}
	return news{pageJoined: c.learn(found), metAnother: metAnother}
}

// isRestored takes the earlier states that the store shows for those of a restored manifest. The producer goes on with
// them under a new id, unless the store shows a later one before that. The outcome of a commit on its way is unknown.
func (c *commitState) isRestored() {
	if c.registered {
		c.restoredFrom = max(c.restoredFrom, c.newest)
	}
	c.newest = 0
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
			if c.unresolved.own(c.producer) == nil {
				c.resolve()
			} else {
				c.succeed()
			}
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
	c.forwarded = false
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
	c.knows, c.known, c.newest = current, found, found.State.Stamp.Version
	return joined
}

func (c *commitState) decide(group group, draw drawer) step {
	switch {
	case c.knows == unread || c.knows == outdated:
		return readStep{}
	case !c.registered:
		return c.register(draw)
	case c.restoredFrom > 0 || c.knows == absent:
		// A producer that has registered takes a missing manifest only as a restored one.
		return renewStep{draw.producerID(), "the store shows earlier states of the manifest for good", !c.mayGrow(), true}
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
	registered := state.Register(c.producer, draw.unixMs()).Certified(c.producer, c.certificate)
	return swapStep{expected, registered.Stamped(draw.nonce()), nil}
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

func (c *commitState) commit(group group, draw drawer) step {
	base, nowMs, claims := c.known.State, draw.unixMs(), c.claims(group)
	if sealed := c.sealed(base); sealed != nil {
		base = sealed
	}
	commit, err := base.Commit(claims, group.segments, nowMs)
	var below *manifest.BelowFloorError
	var unusable *manifest.ClaimsError
	switch {
	case errors.As(err, &unusable):
		return c.settle(group, unusable.Unusable, draw)
	case errors.As(err, &below):
		return uploadAgainStep{below.Places, below.FloorMs}
	case err != nil:
		place, reason := firstInvalid(base, claims, group, nowMs, err)
		return c.dropInvalid(place, reason, group, draw)
	}
	names := make([]ulid.ULID, len(group.segments))
	for i := range group.segments {
		names[i] = group.segments[i].Segment
	}
	expected := c.known.Version
	attempt := &attempt{c.known.State.Stamp.Version, c.last + 1, claims, commit.FirstSequence, names}
	return swapStep{&expected, c.inOffice(commit.State, group).Stamped(draw.nonce()), attempt}
}

// inOffice adds to a commit what is not part of the log: this producer's certificate, and who leads.
func (c *commitState) inOffice(next *manifest.Manifest, group group) *manifest.Manifest {
	next = next.Certified(c.producer, c.certificate)
	switch c.office.kind {
	case keepOffice:
	case takeOffice:
		next = next.WithLeader(c.producer, c.office.address)
	case leaveOffice:
		next = next.WithoutLeader(c.producer)
	}
	if len(group.held) > 0 {
		next = next.WithShared(c.producer)
	}
	return next
}

// claims returns the claims of a group, this producer's first. The group may change while they are unresolved.
func (c *commitState) claims(group group) []manifest.Claim {
	if group.own == 0 {
		return slices.Clone(group.held)
	}
	return append([]manifest.Claim{manifest.One(c.producer, c.last+1, group.own)}, group.held...)
}

// settle handles claims that the table refuses. Each is judged by its own producer's row, because any of them may have
// entered the log without the others.
func (c *commitState) settle(group group, unusable []manifest.Unusable, draw drawer) step {
	var settlement settleStep
	for _, claim := range unusable {
		place := claim.Claim
		if group.own > 0 {
			place--
		}
		if place < 0 {
			own, renew := c.own(group, claim.Reason, draw)
			if renew != nil {
				return *renew
			}
			settlement.own = own
			continue
		}
		held := judged(place, group.held[place], claim.Reason)
		lacks := held.verdict == gapVerdict || held.verdict == forgottenVerdict
		if !lacks || slices.Contains(c.asked, nameOf(group.held[place])) {
			settlement.held = append(settlement.held, held)
		}
	}
	if settlement.own == nil && settlement.held == nil {
		return readStep{}
	}
	return settlement
}

// judged is what the table says about a held claim that it refuses.
func judged(place int, claim manifest.Claim, reason error) settled {
	var taken *manifest.TakenError
	var gap *manifest.GapError
	var notRegistered *manifest.NotRegisteredError
	switch {
	case errors.As(reason, &taken) && taken.Row.Commit == claim.Last && taken.Row.IsSpent():
		return settled{place: place, verdict: spentVerdict}
	case errors.As(reason, &taken) && taken.Row.Commit >= claim.Last:
		return settled{
			place: place, verdict: committedVerdict,
			firstSequence: taken.Row.FirstSequence, known: taken.Row.Commit == claim.Last,
		}
	case errors.As(reason, &taken):
		return settled{place: place, verdict: partlyVerdict, last: taken.Row.Commit}
	case errors.As(reason, &gap):
		return settled{place: place, verdict: gapVerdict, last: gap.Last}
	case errors.As(reason, &notRegistered):
		return settled{place: place, verdict: forgottenVerdict}
	}
	return settled{place: place, verdict: invalidVerdict}
}

// own handles a table that refuses the next number of this producer.
func (c *commitState) own(group group, reason error, draw drawer) (*ownOutcome, *renewStep) {
	var taken *manifest.TakenError
	var notRegistered *manifest.NotRegisteredError
	switch {
	case errors.As(reason, &taken) && taken.Row.Commit == c.last+1:
		return c.already(taken.Row, group, draw)
	case errors.As(reason, &notRegistered):
		renew := c.forgotten(reason.Error(), draw)
		return nil, &renew
	}
	renew := contradicted(reason.Error(), draw)
	return nil, &renew
}

// already handles a table that shows a commit of the next number. That commit acknowledges the attempt with this
// number, or the records that were sent to another producer under it, and nothing else of the group.
func (c *commitState) already(row manifest.ProducerRow, group group, draw drawer) (*ownOutcome, *renewStep) {
	if row.IsSpent() {
		// Only this producer may spend its numbers, and it spends none.
		renew := contradicted(fmt.Sprintf("the manifest has commit %d of producer %s without its records", row.Commit, c.producer), draw)
		return nil, &renew
	}
	if c.doubt != resolved && c.unresolved.isConfirmed(c.known.State, row, group) {
		return &ownOutcome{landed: landed{row.FirstSequence, int(row.Count)}}, nil
	}
	if c.forwarded {
		return &ownOutcome{landed{row.FirstSequence, int(row.Count)}, true}, nil
	}
	renew := contradicted(fmt.Sprintf("the manifest has a commit %d of producer %s that this producer did not make: "+
		"%d segments from sequence %d on", row.Commit, c.producer, row.Count, row.FirstSequence), draw)
	return nil, &renew
}

// isConfirmed reports whether the table's answer is about this attempt, and the group still begins with its segments.
func (a *attempt) isConfirmed(state *manifest.Manifest, row manifest.ProducerRow, group group) bool {
	own := a.own(row.ID)
	if a.number != row.Commit || a.firstSequence != row.FirstSequence || uint64(len(own)) != row.Count || len(own) > group.own {
		return false
	}
	for i, name := range own {
		if group.segments[i].Segment != name {
			return false
		}
	}
	return state.MayHave(a.firstSequence, own)
}

// firstInvalid returns the place of the first segment that the manifest refuses, and the reason.
func firstInvalid(base *manifest.Manifest, claims []manifest.Claim, group group, nowMs uint64, err error) (place int, reason string) {
	var invalid *manifest.InvalidError
	for place := range group.segments {
		var within []manifest.Claim
		for _, claim := range claims {
			if claim.End = min(claim.End, place+1); claim.Start < claim.End {
				within = append(within, claim)
			}
		}
		if _, err := base.Commit(within, group.segments[:place+1], nowMs); errors.As(err, &invalid) {
			return place, invalid.Reason
		}
	}
	// The state refuses all of them, and so the first of them that it cannot have with those before it.
	return max(len(group.segments)-1, 0), err.Error()
}

// dropInvalid drops a segment that the manifest refuses. An earlier attempt was made on another state than this one, so
// that attempt certainly did not land. But if another producer has the same number, it may commit these records yet.
func (c *commitState) dropInvalid(place int, reason string, group group, draw drawer) step {
	if c.forwarded && place < group.own {
		return renewStep{draw.producerID(), reason, true, false}
	}
	return dropStep{place, reason}
}

// forgotten handles a manifest that does not know this producer (any more), so its table cannot resolve an attempt. The
// end of the log may: after a refusal it is worth a look, because another producer nearly always was first.
func (c *commitState) forgotten(reason string, draw drawer) renewStep {
	disproved := c.doubt == refused && c.known.State.Lacks(c.unresolved.firstSequence, c.unresolved.segments)
	return renewStep{draw.producerID(), reason, c.doubt != resolved && !disproved || c.forwarded, false}
}

// contradicted handles a manifest that contradicts this producer: another process uses the id, or somebody restored an
// older manifest. Its statements about the group are not trustworthy.
func contradicted(reason string, draw drawer) renewStep {
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

package producer

import (
	"slices"

	"github.com/oklog/ulid/v2"

	"millpond.dev/otel-exporter/internal/manifest"
	"millpond.dev/otel-exporter/internal/storage"
)

// This file has the inputs and outputs of the decisions in commit.go.

// An attempt is a commit that was sent. Its outcome is unresolved from that moment. While the manifest still has the
// expected version, the write may yet land. Once the manifest has another version, either the table shows the commit,
// or the write never happened and never will. A refusal proves no more than a lost answer: if a proxy repeats a
// request, the store refuses the second copy because the first landed.
type attempt struct {
	version uint64 // counts the states: of the one that the swap replaces
	number  uint64 // of this producer's own records
	// The claims of everybody whose records are in the segments. This producer's claim is the first one, unless the commit
	// has none of its records.
	claims        []manifest.Claim
	firstSequence uint64      // what its first segment gets if it lands
	segments      []ulid.ULID // the names, in their order
}

// own returns the names of the segments with records of this producer.
func (a *attempt) own(producer manifest.ProducerID) []ulid.ULID {
	if len(a.claims) == 0 || a.claims[0].Producer != producer {
		return nil
	}
	return a.segments[a.claims[0].Start:a.claims[0].End]
}

// isDisproved reports whether this state proves that the attempt did not land and never will. A commit enters all of its
// claims or none, so any of them is proof, in a later state than the one that the attempt replaces. An earlier one, from a
// store that shows old states again, says nothing.
func (a *attempt) isDisproved(state *manifest.Manifest) bool {
	return state.Stamp.Version > a.version && slices.ContainsFunc(a.claims, func(claim manifest.Claim) bool {
		row, there := state.Producer(claim.Producer)
		return there && row.Commit < claim.First
	})
}

// A group is the next commit of a producer.
type group struct {
	segments []manifest.NewSegment // uploaded, in the order of the log
	own      int                   // the number of segments, from the first one on, with records of this producer
	// The claims of other producers whose records this one holds, at most one for each. They say which segments have the
	// records. The bytes of a segment hold the records of its claims, and no others.
	held []manifest.Claim
}

// groupOf is a commit without records of others.
func groupOf(segments []manifest.NewSegment) group {
	return group{segments: segments, own: len(segments)}
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
		attempt  *attempt // nil: the swap registers the producer, or leaves the lead
	}
	// registeredStep: no request is needed, the manifest has this producer in its table.
	registeredStep struct{}
	// settleStep: tell callers what the table shows. The claims leave the group, and segments that also hold records of
	// other claims are built anew without theirs.
	settleStep struct {
		own  *ownOutcome // of this producer's own records: they are in the log
		held []settled
	}
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

// An ownOutcome says where this producer's own records are in the log.
type ownOutcome struct {
	landed
	elsewhere bool // in segments of another producer, to which they were forwarded
}

// settled is the outcome of a claim that this producer held for another. It follows from that producer's row alone.
type settled struct {
	place         int // of the claim in the group
	verdict       verdict
	firstSequence uint64 // committedVerdict: of the first segment with its records, if known
	known         bool   // the table still has firstSequence
	last          uint64 // partlyVerdict, gapVerdict: the last number in the log
}

type verdict int

const (
	committedVerdict verdict = iota // all of its numbers are in the log
	partlyVerdict                   // its numbers up to `last` are in the log; the others may come again
	gapVerdict                      // numbers between `last` and it are missing
	// The manifest does not know its producer. Nobody can tell any more what became of a number that was sent before.
	forgottenVerdict
	spentVerdict   // its producer has spent the number without the records
	invalidVerdict // the claim breaks a rule
)

// news is the news from an answer or from a manifest that was read.
type news struct {
	landed     *landed // tell callers that all segments of the group, and with them all held claims, are in the log
	pageJoined bool    // the manifest refers to this producer's page
	metAnother bool    // another producer has committed since this one last knew the manifest
	isPast     bool    // the store showed an earlier state than before; it was not taken
}

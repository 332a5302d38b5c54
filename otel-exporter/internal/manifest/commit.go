package manifest

import (
	"fmt"
	"math"
	"slices"

	"github.com/oklog/ulid/v2"

	"millpond.dev/otel-exporter/internal/segment"
)

// This file appends segments to the log. The claims make it exactly once. manifest/src/manifest/commit.rs does the same
// in Rust.

// A NewSegment is a segment that a producer wants to commit.
type NewSegment struct {
	Segment ulid.ULID
	Size    uint64
	Parts   []NewPart
}

// A NewPart is a part that refers to its stream by name instead of by index.
type NewPart struct {
	Stream   string
	Encoding segment.Encoding
	Part     Part // its Stream is ignored
}

// A Claim is a run of one producer's numbers and the place of their records in the commit. Whoever commits them, each
// number enters the log at most once.
type Claim struct {
	Producer    ProducerID // of the records, which need not be the one that commits them
	First, Last uint64     // numbers of the run
	Start, End  int        // the records are in the commit's segments from Start to before End; claims may share a segment
}

// One is the claim of a single number whose records are in the first `segments` segments.
func One(producer ProducerID, number uint64, segments int) Claim {
	return Claim{producer, number, number, 0, segments}
}

// A Commit is the result of Manifest.Commit.
type Commit struct {
	State         *Manifest // to swap in, not yet stamped
	FirstSequence uint64    // of the first segment; the others follow in order
}

// A ClaimsError names all unusable claims of a commit. The others may be usable without them.
type ClaimsError struct{ Unusable []Unusable }

// Unusable is a claim that prevents its commit.
type Unusable struct {
	Claim  int   // its index in the commit
	Reason error // one of the errors below
}

func (e *ClaimsError) Error() string {
	return fmt.Sprintf("%d claims of the commit are unusable; the first: %v", len(e.Unusable), e.Unusable[0].Reason)
}

// A NotRegisteredError means that the manifest has forgotten the producer, or never knew it. An unknown outcome cannot
// be resolved.
type NotRegisteredError struct{ Producer ProducerID }

func (e *NotRegisteredError) Error() string {
	return fmt.Sprintf("producer %s is not registered in this shard", e.Producer)
}

// A TakenError means that the log has the first number of the run, and perhaps more of them.
type TakenError struct {
	First uint64
	Row   ProducerRow // has the place of the last commit only
}

func (e *TakenError) Error() string {
	return fmt.Sprintf("commit %d of producer %s is in the log already: its last commit is %d",
		e.First, e.Row.ID, e.Row.Commit)
}

// A GapError means that a number is missing: the producer has a bug.
type GapError struct {
	Producer    ProducerID
	First, Last uint64 // of the run, and the producer's last commit
}

func (e *GapError) Error() string {
	return fmt.Sprintf("commit %d of producer %s does not follow its last commit %d", e.First, e.Producer, e.Last)
}

// A TwiceError means that the commit has several claims of the producer. Two copies of one request would otherwise both
// enter the log.
type TwiceError struct{ Producer ProducerID }

func (e *TwiceError) Error() string {
	return fmt.Sprintf("producer %s occurs twice in the commit", e.Producer)
}

// An InvalidClaimError means a run without numbers or without segments.
type InvalidClaimError struct {
	Producer ProducerID
	Reason   string
}

func (e *InvalidClaimError) Error() string {
	return fmt.Sprintf("claim of producer %s is not valid: %s", e.Producer, e.Reason)
}

// A BelowFloorError names segments from before the orphan floor, which may be deleted at any moment. Upload them again.
type BelowFloorError struct {
	Places  []int // indexes in the commit
	FloorMs uint64
}

func (e *BelowFloorError) Error() string {
	return fmt.Sprintf("%d segments are named before the orphan floor %d", len(e.Places), e.FloorMs)
}

// An InvalidError means that the commit breaks a rule: no segments, a duplicate segment or stream, an invalid name, …
type InvalidError struct{ Reason string }

func (e *InvalidError) Error() string { return "commit is not valid: " + e.Reason }

func invalid(format string, arguments ...any) error {
	return &InvalidError{fmt.Sprintf(format, arguments...)}
}

// Commit appends the segments to the log in order and records the claims: all of them, or none. The error is a
// ClaimsError, a BelowFloorError or an InvalidError.
func (m *Manifest) Commit(claims []Claim, segments []NewSegment, nowMs uint64) (Commit, error) {
	if err := m.checkClaims(claims, len(segments)); err != nil {
		return Commit{}, err
	}
	if err := m.checkSegments(claims, segments); err != nil {
		return Commit{}, err
	}
	next, count := *m, uint64(len(segments))
	next.Tail = make([]Entry, len(m.Tail), len(m.Tail)+len(segments))
	copy(next.Tail, m.Tail)
	next.Streams = slices.Clip(m.Streams)
	for i := range segments {
		entry, err := next.entry(&segments[i], nowMs)
		if err != nil {
			return Commit{}, err
		}
		next.Tail = append(next.Tail, entry)
	}
	if err := next.checkSize(); err != nil {
		return Commit{}, err
	}
	if m.NextSequence > math.MaxUint64-count {
		return Commit{}, invalid("the log has no sequences left")
	}
	next.NextSequence += count
	next.Producers = slices.Clone(m.Producers)
	for _, claim := range claims {
		place, _ := m.producer(claim.Producer)
		first, held := m.NextSequence+uint64(claim.Start), uint64(claim.End-claim.Start)
		next.Producers[place] = ProducerRow{claim.Producer, claim.Last, first, held, nowMs, m.Producers[place].Certificate}
	}
	return Commit{State: &next, FirstSequence: m.NextSequence}, nil
}

// checkSize refuses a log that readers would refuse: nobody could read what is in it, or repair it.
func (m *Manifest) checkSize() error {
	for _, size := range []struct {
		of         string
		found, max int
	}{
		{"entries in the manifest", len(m.Tail), EntriesMax},
		{"pages", len(m.Pages), pagesMax},
	} {
		if size.found > size.max {
			return invalid("the log would have %d %s, and readers accept %d", size.found, size.of, size.max)
		}
	}
	return nil
}

func (m *Manifest) checkClaims(claims []Claim, segments int) error {
	occurs := make(map[ProducerID]int, len(claims))
	for _, claim := range claims {
		occurs[claim.Producer]++
	}
	var unusable []Unusable
	for place, claim := range claims {
		reason := m.checkClaim(claim, segments)
		if occurs[claim.Producer] > 1 {
			reason = &TwiceError{claim.Producer}
		}
		if reason != nil {
			unusable = append(unusable, Unusable{place, reason})
		}
	}
	if unusable != nil {
		return &ClaimsError{unusable}
	}
	return nil
}

func (m *Manifest) checkClaim(claim Claim, segments int) error {
	if claim.First == 0 || claim.Last < claim.First {
		return &InvalidClaimError{claim.Producer, "it has no number"}
	}
	if claim.Start < 0 || claim.Start >= claim.End || claim.End > segments {
		return &InvalidClaimError{claim.Producer, "its segments are not in the commit"}
	}
	row, found := m.Producer(claim.Producer)
	switch {
	case !found:
		return &NotRegisteredError{claim.Producer}
	case claim.First <= row.Commit:
		return &TakenError{claim.First, row}
	case claim.First > row.Commit+1:
		return &GapError{claim.Producer, claim.First, row.Commit}
	}
	return nil
}

func (m *Manifest) checkSegments(claims []Claim, segments []NewSegment) error {
	if len(segments) == 0 {
		return invalid("it has no segments")
	}
	for i := range segments {
		if !slices.ContainsFunc(claims, func(claim Claim) bool { return claim.Start <= i && i < claim.End }) {
			return invalid("segment %s belongs to no claim", segments[i].Segment)
		}
	}
	var below []int
	names := make(map[ulid.ULID]bool, len(segments))
	twice := func(name ulid.ULID) error { return invalid("segment %s is in the log already", name) }
	for i := range segments {
		name := segments[i].Segment
		if name.Time() < m.OrphanFloorMs {
			below = append(below, i)
		}
	}
	if below != nil {
		return &BelowFloorError{below, m.OrphanFloorMs}
	}
	for i := range segments {
		if names[segments[i].Segment] {
			return twice(segments[i].Segment)
		}
		names[segments[i].Segment] = true
	}
	for i := range m.Tail {
		if names[m.Tail[i].Segment] {
			return twice(m.Tail[i].Segment)
		}
	}
	return nil
}

// entry assigns indexes to a new segment's streams, and adds new ones to the table.
func (m *Manifest) entry(new *NewSegment, nowMs uint64) (Entry, error) {
	entry := Entry{new.Segment, new.Size, nowMs, make([]Part, 0, len(new.Parts))}
	for i := range new.Parts {
		part := &new.Parts[i]
		index := slices.IndexFunc(m.Streams, func(stream Stream) bool { return stream.Name == part.Stream })
		if index < 0 {
			if err := segment.CheckStreamName(part.Stream); err != nil {
				return Entry{}, invalid("segment %s: %v", new.Segment, err)
			}
			if len(m.Streams) >= StreamsMax {
				return Entry{}, invalid("segment %s: the shard has its %d streams already", new.Segment, StreamsMax)
			}
			index = len(m.Streams)
			m.Streams = append(m.Streams, Stream{part.Stream, part.Encoding})
		}
		if known := m.Streams[index].Encoding; known != part.Encoding {
			return Entry{}, invalid("segment %s: stream %s holds %s messages, not %s",
				new.Segment, part.Stream, known, part.Encoding)
		}
		numbered := part.Part
		numbered.Stream = uint32(index)
		entry.Parts = append(entry.Parts, numbered)
	}
	if reason := entry.check(len(m.Streams)); reason != "" {
		return Entry{}, invalid("segment %s: %s", new.Segment, reason)
	}
	return entry, nil
}

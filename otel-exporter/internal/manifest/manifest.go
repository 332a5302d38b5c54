package manifest

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/google/uuid"
	"github.com/oklog/ulid/v2"

	"millpond.dev/otel-exporter/internal/segment"
)

const (
	// StreamsMax is the maximum number of streams in a shard: every commit carries each name.
	StreamsMax = 1_024
	// ProducersMax is the maximum number of producers remembered. Beyond it, the manifest forgets the producer whose last
	// commit is furthest back in the log.
	ProducersMax = 4_096
	// ProducersKept is the number of producers, by newest commit in the log, that the manifest remembers whatever any
	// clock shows.
	ProducersKept = 256
	// TailMax is the number of tail entries at which the next commit seals them into a page. It bounds the bytes of a
	// commit whatever the backlog.
	TailMax = 2_048
	// ProducerExpiryMs is the expiry of producers beyond ProducersKept: a registration forgets those last seen this long
	// before or after the median producer.
	ProducerExpiryMs = 24 * 3_600 * 1_000
)

// A ProducerID is a random ID that a producer draws when it starts.
type ProducerID [16]byte

func (id ProducerID) String() string { return uuid.UUID(id).String() }

// A Stamp distinguishes two states of an object even if their ETags are equal. An ETag may depend on the content alone,
// so every state carries a counter and its writer's nonce.
type Stamp struct{ Version, Nonce uint64 }

// A Stream is one row of the shard's stream table. Entries refer to it by index.
type Stream struct {
	Name     string
	Encoding segment.Encoding
}

// A Part is the run of one stream's blocks in a segment.
type Part struct {
	Stream          uint32 // index into the manifest's streams
	Offset, Length  uint64 // in the segment object, in bytes
	RawLen          uint64 // uncompressed, in bytes
	Messages        uint64
	Records         uint64
	FirstUs, LastUs int64 // receive times of its first and last message, unix microseconds
}

// An Entry is a committed segment.
type Entry struct {
	Segment       ulid.ULID
	Size          uint64 // of the object, in bytes
	CommittedAtMs uint64 // unix, at the committing producer
	Parts         []Part // at most one for each stream
}

// A ProducerRow is the manifest's record of a producer: enough to recognise its last commit.
type ProducerRow struct {
	ID            ProducerID
	Commit        uint64 // number of its last commit; 0: registered, nothing committed yet
	FirstSequence uint64 // of that commit
	Count         uint64 // of that commit's segments
	SeenAtMs      uint64 // unix
}

// A Manifest is the state of a shard's log. It is immutable: every transition returns a new state, which shares
// unchanged parts with the old one.
type Manifest struct {
	BufferID      uuid.UUID
	Shard         uint32
	Stamp         Stamp
	FirstSequence uint64 // the oldest retained
	NextSequence  uint64 // of the next committed segment
	OrphanFloorMs uint64 // no segment named before this time (unix) can be committed anymore
	Streams       []Stream
	Pages         []PageReference // sealed runs, oldest first
	Tail          []Entry         // the newest entries; the last one has sequence NextSequence - 1
	Producers     []ProducerRow   // ordered by ID
}

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

// New is a shard before its first commit.
func New(bufferID uuid.UUID, shard uint32) *Manifest {
	return &Manifest{BufferID: bufferID, Shard: shard}
}

// Stamped returns a copy with the next counter and the nonce, which distinguish it from every other state. Call it once
// per state.
func (m *Manifest) Stamped(nonce uint64) *Manifest {
	next := *m
	next.Stamp = Stamp{m.Stamp.Version + 1, nonce}
	return &next
}

// TailStart is the sequence of the tail's first entry.
func (m *Manifest) TailStart() uint64 { return m.NextSequence - uint64(len(m.Tail)) }

func (m *Manifest) producer(id ProducerID) (int, bool) {
	return slices.BinarySearchFunc(m.Producers, id, func(row ProducerRow, id ProducerID) int {
		return slices.Compare(row.ID[:], id[:])
	})
}

// Producer returns the row of a producer, if the manifest remembers it.
func (m *Manifest) Producer(id ProducerID) (ProducerRow, bool) {
	place, found := m.producer(id)
	if !found {
		return ProducerRow{}, false
	}
	return m.Producers[place], true
}

// Register adds a producer with commit number 0, and forgets others if the table grows too large. Only the new row uses
// nowMs: the registering producer's clock never decides who is forgotten.
func (m *Manifest) Register(id ProducerID, nowMs uint64) *Manifest {
	next := *m
	if _, found := m.producer(id); found {
		return &next
	}
	next.Producers = remembered(slices.Clone(m.Producers))
	place, _ := next.producer(id)
	next.Producers = slices.Insert(next.Producers, place, ProducerRow{ID: id, SeenAtMs: nowMs})
	return &next
}

// remembered makes room for one more producer. A forgotten producer cannot resolve an unknown outcome, so no single
// clock decides which one goes. The log's order ranks the rows; the median of their times is the reference.
func remembered(rows []ProducerRow) []ProducerRow {
	if len(rows) < ProducersKept {
		return rows
	}
	var seen []uint64
	for i := range rows {
		if rows[i].Commit > 0 {
			seen = append(seen, rows[i].SeenAtMs)
		}
	}
	slices.Sort(seen)
	// A row without a commit ends at 0 and sorts after every row that the log depends on.
	slices.SortStableFunc(rows, func(a, b ProducerRow) int { return cmp.Compare(b.end(), a.end()) })
	if len(seen) > 0 {
		median := seen[(len(seen)-1)/2]
		old := slices.DeleteFunc(rows[ProducersKept:], func(row ProducerRow) bool {
			return max(row.SeenAtMs, median)-min(row.SeenAtMs, median) >= ProducerExpiryMs
		})
		rows = rows[:ProducersKept+len(old)]
	}
	rows = rows[:min(len(rows), ProducersMax-1)]
	slices.SortFunc(rows, func(a, b ProducerRow) int { return slices.Compare(a.ID[:], b.ID[:]) })
	return rows
}

// end is the sequence after the producer's last commit.
func (r ProducerRow) end() uint64 {
	if r.FirstSequence > math.MaxUint64-r.Count {
		return math.MaxUint64
	}
	return r.FirstSequence + r.Count
}

// A Commit is the result of Manifest.Commit.
type Commit struct {
	// State is the state to swap in, not yet stamped. It is nil if an earlier attempt already put this commit in the log.
	State         *Manifest
	FirstSequence uint64
	Count         uint64
}

// A NotRegisteredError means that the manifest has forgotten the producer, or never knew it. An unknown outcome cannot
// be resolved.
type NotRegisteredError struct{ Producer ProducerID }

func (e *NotRegisteredError) Error() string {
	return fmt.Sprintf("producer %s is not registered in this shard", e.Producer)
}

// A BelowFloorError names segments from before the orphan floor, which may be deleted at any moment. Upload them again.
type BelowFloorError struct {
	Places  []int // indexes in the commit
	FloorMs uint64
}

func (e *BelowFloorError) Error() string {
	return fmt.Sprintf("%d segments are named before the orphan floor %d", len(e.Places), e.FloorMs)
}

// A NumberError means that the commit number does not follow the producer's last one. Either its bookkeeping is wrong,
// another producer uses its ID, or somebody restored an older manifest.
type NumberError struct {
	Producer     ProducerID
	Commit, Last uint64
}

func (e *NumberError) Error() string {
	how := "does not follow"
	if e.Commit <= e.Last {
		how = "is older than"
	}
	return fmt.Sprintf("commit %d of producer %s %s its last commit %d", e.Commit, e.Producer, how, e.Last)
}

// An InvalidError means that the commit breaks a rule: no segments, a duplicate segment or stream, an invalid name, …
type InvalidError struct{ Reason string }

func (e *InvalidError) Error() string { return "commit is not valid: " + e.Reason }

func invalid(format string, arguments ...any) error {
	return &InvalidError{fmt.Sprintf(format, arguments...)}
}

// Commit appends the segments to the log in order, as commit `number` of the producer. The error is one of the four
// above.
func (m *Manifest) Commit(producer ProducerID, number uint64, segments []NewSegment, nowMs uint64) (Commit, error) {
	place, found := m.producer(producer)
	if !found {
		return Commit{}, &NotRegisteredError{producer}
	}
	row := m.Producers[place]
	if number == row.Commit && number > 0 {
		return Commit{FirstSequence: row.FirstSequence, Count: row.Count}, nil
	}
	if number != row.Commit+1 {
		return Commit{}, &NumberError{producer, number, row.Commit}
	}
	if err := m.checkSegments(segments); err != nil {
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
	next.NextSequence += count
	next.Producers = slices.Clone(m.Producers)
	next.Producers[place] = ProducerRow{producer, number, m.NextSequence, count, nowMs}
	return Commit{State: &next, FirstSequence: m.NextSequence, Count: count}, nil
}

func (m *Manifest) checkSegments(segments []NewSegment) error {
	if len(segments) == 0 {
		return invalid("it has no segments")
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

// check returns the first rule that the entry breaks. It runs before every write and after every read.
func (e *Entry) check(streams int) string {
	for i := range e.Parts {
		part := &e.Parts[i]
		if uint64(part.Stream) >= uint64(streams) {
			return fmt.Sprintf("stream %d is not in the table of %d", part.Stream, streams)
		}
		// A quadratic search is fine: most entries have one to three parts.
		for j := range i {
			if e.Parts[j].Stream == part.Stream {
				return fmt.Sprintf("stream %d occurs twice", part.Stream)
			}
		}
		if end := part.Offset + part.Length; end < part.Offset || end > e.Size {
			return fmt.Sprintf("the part at %d+%d lies outside its %d bytes", part.Offset, part.Length, e.Size)
		}
		if part.LastUs < part.FirstUs {
			return "a part's last message was received before its first"
		}
	}
	return ""
}

// MayHave reports whether the log has exactly these segments from sequence first on, as far as the tail shows. It
// ignores pages and trimmed entries.
func (m *Manifest) MayHave(first uint64, segments []ulid.ULID) bool {
	start := m.TailStart()
	for i, segment := range segments {
		sequence := first + uint64(i)
		if sequence < start {
			continue
		}
		if sequence >= m.NextSequence || m.Tail[sequence-start].Segment != segment {
			return false
		}
	}
	return true
}

// Lacks reports whether the tail proves that the log does not have these segments from sequence first on.
func (m *Manifest) Lacks(first uint64, segments []ulid.ULID) bool {
	return m.TailStart() <= first && !m.MayHave(first, segments)
}

// Seal moves the tail's entries up to and including sequence last into a page of that name. It reports false if the
// tail does not have that sequence, or if the page's name is before the orphan floor: such a page may be deleted at any
// moment.
func (m *Manifest) Seal(name ulid.ULID, last uint64) (*Page, *Manifest, bool) {
	first := m.TailStart()
	if name.Time() < m.OrphanFloorMs || last < first || last >= m.NextSequence {
		return nil, nil, false
	}
	count := last - first + 1
	page := &Page{m.BufferID, m.Shard, first, m.Tail[:count:count]}
	next := *m
	next.Tail = m.Tail[count:]
	next.Pages = append(slices.Clip(m.Pages), page.Reference(name))
	return page, &next, true
}

// Check returns the first rule of the format that this state breaks, or "".
func (m *Manifest) Check() string {
	at := m.FirstSequence
	if len(m.Pages) > 0 {
		// Garbage collection drops the oldest page only as a whole; until then the log may begin inside it.
		oldest := m.Pages[0]
		at = oldest.First
		if m.FirstSequence < oldest.First || m.FirstSequence > oldest.Last {
			return fmt.Sprintf("first_sequence %d is not in the oldest page", m.FirstSequence)
		}
	}
	for _, page := range m.Pages {
		if page.First != at || page.Last < page.First {
			return fmt.Sprintf("page %d to %d does not begin at %d", page.First, page.Last, at)
		}
		if page.Last == math.MaxUint64 {
			return "a page ends past the last sequence"
		}
		at = page.Last + 1
	}
	if end := at + uint64(len(m.Tail)); end < at || end != m.NextSequence {
		return fmt.Sprintf("%d entries from sequence %d do not end at next_sequence %d", len(m.Tail), at, m.NextSequence)
	}
	for i := range m.Tail {
		if reason := m.Tail[i].check(len(m.Streams)); reason != "" {
			return fmt.Sprintf("sequence %d: %s", at+uint64(i), reason)
		}
	}
	for i := 1; i < len(m.Producers); i++ {
		if slices.Compare(m.Producers[i-1].ID[:], m.Producers[i].ID[:]) >= 0 {
			return "the producer table is not in order"
		}
	}
	return ""
}

package manifest

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode"

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
	// EntriesMax is the maximum number of entries to write into a tail: a commit adds its segments before the tail is
	// sealed.
	EntriesMax = 2 * TailMax
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
	FirstSequence uint64 // of the segments with records of that commit, or of the run that ends with it
	Count         uint64 // of these segments
	SeenAtMs      uint64 // unix
	Certificate   Fingerprint
}

// A Fingerprint is the SHA-256 of the certificate that a producer presents to other producers. Zeros: it has none.
type Fingerprint [32]byte

// ClientsMax is the maximum number of clients in the table, and of idempotency keys.
const ClientsMax = 4096

// A ClientRow is the manifest's record of a client that numbers its requests, or of an idempotency key. Gateways write
// it. This package only keeps it.
type ClientRow struct {
	ID       [16]byte
	Epoch    uint32 // of a Kafka producer
	Last     uint64 // the number of its last request in the log
	Sequence uint64 // of the segment that holds its last request
	SeenAtMs uint64 // unix
	Checksum uint32 // CRC32C of its last message; 0: not recorded
}

// SourcesMax is the maximum number of partitions with a position in a shard.
const SourcesMax = 4096

// A SourcePartition is a partition of another log, such as Kafka's, on its way into a stream.
type SourcePartition struct {
	Source    string // for Kafka, the id of the cluster
	Topic     string
	Partition uint32
	Stream    string // takes the records
}

func (p SourcePartition) compare(other SourcePartition) int {
	return cmp.Or(
		cmp.Compare(p.Source, other.Source),
		cmp.Compare(p.Topic, other.Topic),
		cmp.Compare(p.Partition, other.Partition),
		cmp.Compare(p.Stream, other.Stream),
	)
}

// A SourceRow is the position of a bridge in a partition. Bridges write it. This package only keeps it.
type SourceRow struct {
	Of          SourcePartition
	Shard       uint32 // with the position; another than the manifest's only in shard 0
	Incarnation uint64 // how many times the position was set without records
	Next        uint64 // the offset of the next record
	SeenAtMs    uint64 // unix
}

// AddressMax is the maximum number of bytes of a leader's address: a DNS name has 253, a port five more and a colon.
const AddressMax = 259

// A Leader is the producer that commits for others. No promise depends on it.
type Leader struct {
	Producer ProducerID
	Term     uint64 // version of the manifest when it took the lead
	Shared   uint64 // commits since then that carried another producer's claim
	Address  string // host:port for the other producers
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
	Leader        *Leader         // nil: every producer commits for itself
	Clients       []ClientRow     // ordered by ID
	Keys          []ClientRow     // idempotency keys, ordered by ID
	Sources       []SourceRow     // positions of bridges, ordered by what they read; nothing forgets one
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

// ReachableLeader returns the leader and its certificate, if others can ask it: the table vouches for its certificate.
func (m *Manifest) ReachableLeader() (Leader, Fingerprint, bool) {
	if m.Leader == nil {
		return Leader{}, Fingerprint{}, false
	}
	row, found := m.Producer(m.Leader.Producer)
	if !found || row.Certificate == (Fingerprint{}) {
		return Leader{}, Fingerprint{}, false
	}
	return *m.Leader, row.Certificate, true
}

// Certified returns a copy with the certificate of a registered producer. Zeros: it has none.
func (m *Manifest) Certified(id ProducerID, certificate Fingerprint) *Manifest {
	place, found := m.producer(id)
	if !found || m.Producers[place].Certificate == certificate {
		return m
	}
	next := *m
	next.Producers = slices.Clone(m.Producers)
	next.Producers[place].Certificate = certificate
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
	for _, table := range [][]ClientRow{m.Clients, m.Keys} {
		for i := 1; i < len(table); i++ {
			if slices.Compare(table[i-1].ID[:], table[i].ID[:]) >= 0 {
				return "a table of clients is not in order"
			}
		}
	}
	if reason := m.checkSources(); reason != "" {
		return reason
	}
	if m.Leader != nil && len(m.Leader.Address) > AddressMax {
		return fmt.Sprintf("the leader's address has %d bytes, the limit is %d", len(m.Leader.Address), AddressMax)
	}
	return ""
}

func (m *Manifest) checkSources() string {
	for i, row := range m.Sources {
		if i > 0 && m.Sources[i-1].Of.compare(row.Of) >= 0 {
			return "the table of sources is not in order"
		}
		if row.Of.Partition > math.MaxInt32 {
			return fmt.Sprintf("partition %d is above %d", row.Of.Partition, math.MaxInt32)
		}
		for _, name := range []struct {
			text string
			max  int
		}{{row.Of.Source, 128}, {row.Of.Topic, 249}} {
			if name.text == "" || len(name.text) > name.max || strings.ContainsFunc(name.text, unicode.IsControl) {
				return fmt.Sprintf("the name %q of a source is not valid", name.text)
			}
		}
		if err := segment.CheckStreamName(row.Of.Stream); err != nil {
			return err.Error()
		}
		if row.Shard != m.Shard && (m.Shard != 0 || row.Next != 0) {
			return fmt.Sprintf("a row for shard %d must be in shard 0 without a position", row.Shard)
		}
	}
	return ""
}

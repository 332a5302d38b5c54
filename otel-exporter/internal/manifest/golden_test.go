package manifest

import (
	"bytes"
	"encoding/binary"
	"os"
	"slices"
	"testing"

	"github.com/google/uuid"
	"github.com/oklog/ulid/v2"

	"millpond.dev/otel-exporter/internal/manifest/manifestpb"
	"millpond.dev/otel-exporter/internal/segment"
)

// The Rust crate writes the golden files (manifest/testdata) from the same states through its own API and reads them
// back: manifest/tests/all/manifest.rs, manifest/tests/all/pages.rs. Go covers both directions too: it decodes each file to
// the state, and encodes the state to the same bytes.
func goldenFile(t *testing.T, name string) []byte {
	t.Helper()
	bytes, err := os.ReadFile("../../../manifest/testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return bytes
}

func checkGolden(t *testing.T, name string, encode func() ([]byte, error)) {
	t.Helper()
	encoded, err := encode()
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(encoded, goldenFile(t, name)) {
		t.Errorf("Go writes %s differently from Rust:\n%x\n%x", name, encoded, goldenFile(t, name))
	}
}

var (
	producerA = ProducerID(bytes.Repeat([]byte{1}, 16))
	producerB = ProducerID(bytes.Repeat([]byte{2}, 16))
	bufferID  = uuid.UUID{15: 9}
)

// named builds a ULID from a time and a small random number.
func named(timeMs uint64, random uint64) ulid.ULID {
	var name ulid.ULID
	if err := name.SetTime(timeMs); err != nil {
		panic(err)
	}
	binary.BigEndian.PutUint64(name[8:], random)
	return name
}

func newSegment(timeMs uint64, random uint64) NewSegment {
	return NewSegment{named(timeMs, random), 100, []NewPart{{"otlp.logs", segment.OTLP, Part{
		Offset: 5, Length: 90, RawLen: 400, Messages: 2, Records: 20, FirstUs: 1_000, LastUs: 2_000,
	}}}}
}

func TestGoldenManifest(t *testing.T) {
	two := newSegment(1_700_000_000_000, 0xfeed)
	traces := two.Parts[0]
	traces.Stream, traces.Part.Offset, traces.Part.Length = "otlp.traces", 95, 5
	two.Parts = append(two.Parts, traces)
	log := New(bufferID, 0).Register(producerA, 10).Register(producerB, 20)
	segments := []NewSegment{two, newSegment(1_700_000_000_001, 2)}
	commit, err := log.Commit([]Claim{One(producerA, 1, 2)}, segments, 1_700_000_000_002)
	if err != nil {
		t.Fatal(err)
	}
	golden := commit.State.Stamped(0x0123_4567_89ab_cdef)
	checkGolden(t, "manifest-v1", golden.Encode)
	read, err := Decode(goldenFile(t, "manifest-v1"))
	if err != nil {
		t.Fatal(err)
	}
	checkSame(t, read, golden)
}

func TestGoldenManifestWithALeader(t *testing.T) {
	golden := New(bufferID, 0).Register(producerA, 10).Register(producerB, 20)
	for i := range golden.Producers[0].Certificate {
		golden.Producers[0].Certificate[i] = 0xab
	}
	golden.Leader = &Leader{producerA, 7, 3, "10.0.0.7:4319"}
	golden = golden.Stamped(0x0123_4567_89ab_cdef)
	checkGolden(t, "manifest-with-leader-v1", golden.Encode)
	read, err := Decode(goldenFile(t, "manifest-with-leader-v1"))
	if err != nil {
		t.Fatal(err)
	}
	checkSame(t, read, golden)
	segments := []NewSegment{newSegment(1_700_000_000_001, 2)}
	commit, err := read.Commit([]Claim{One(producerA, 1, 1)}, segments, 1_700_000_000_002)
	if err != nil {
		t.Fatal(err)
	}
	if commit.State.Leader == nil || commit.State.Producers[0].Certificate != golden.Producers[0].Certificate {
		t.Errorf("a commit lost the leader or a certificate: %+v", commit.State)
	}
}

// Go has no clients, and must keep those of the gateways.
func TestGoldenManifestWithClients(t *testing.T) {
	golden := New(bufferID, 0).Register(ProducerID(sixteenTimes(1)), 10)
	golden.FirstSequence, golden.NextSequence = 9, 9
	const now = 1_700_000_000_000
	golden.Clients = []ClientRow{{sixteenTimes(0xa), 0, 1, 9, now, 1}, {sixteenTimes(0xb), 3, 500, 10, now, 0}}
	golden.Keys = []ClientRow{{sixteenTimes(0xa), 0, 1, 9, now, 5}}
	golden = golden.Stamped(0x0123_4567_89ab_cdef)
	checkGolden(t, "manifest-with-clients-v2", golden.Encode)
	read, err := Decode(goldenFile(t, "manifest-with-clients-v2"))
	if err != nil {
		t.Fatal(err)
	}
	checkSame(t, read, golden)
	segments := []NewSegment{newSegment(1_700_000_000_001, 2)}
	commit, err := read.Commit([]Claim{One(ProducerID(sixteenTimes(1)), 1, 1)}, segments, now+1)
	if err != nil {
		t.Fatal(err)
	}
	after := commit.State.Register(producerB, now+2)
	if !slices.Equal(after.Clients, golden.Clients) || !slices.Equal(after.Keys, golden.Keys) {
		t.Errorf("a commit or a registration lost clients: %+v", after)
	}
}

// Go has no bridges, and must keep their positions.
func TestGoldenManifestWithSources(t *testing.T) {
	of := func(topic string, partition uint32) SourcePartition {
		return SourcePartition{"MkU3OEVBNTcwNTJENDM2Qk", topic, partition, topic}
	}
	golden := New(bufferID, 0).Register(ProducerID(sixteenTimes(1)), 10)
	golden.Sources = []SourceRow{
		{of("orders", 0), 0, 3, 1 << 40, 5}, {of("orders", 1), 2, 0, 0, 5}, {of("payments", 0), 0, 0, 0, 5},
	}
	golden = golden.Stamped(0x0123_4567_89ab_cdef)
	checkGolden(t, "manifest-with-sources-v3", golden.Encode)
	read, err := Decode(goldenFile(t, "manifest-with-sources-v3"))
	if err != nil {
		t.Fatal(err)
	}
	checkSame(t, read, golden)
	for _, wrong := range []SourceRow{
		{of("orders", 0), 0, 0, 1, 5}, {of("z", 1<<31), 0, 0, 0, 5}, {of("", 0), 0, 0, 0, 5}, {of("z", 0), 1, 0, 1, 5},
		{SourcePartition{"z", "z", 0, "no stream"}, 0, 0, 0, 5},
	} {
		broken := *golden
		broken.Sources = append(slices.Clip(golden.Sources), wrong)
		if broken.Check() == "" {
			t.Errorf("%+v is accepted", wrong)
		}
	}
}

func sixteenTimes(value byte) [16]byte {
	return [16]byte(bytes.Repeat([]byte{value}, 16))
}

func TestGoldenPageAndItsManifest(t *testing.T) {
	shard := newShard(t)
	shard.nowMs = 1_700_000_000_000
	shard.commit(3)
	page := shard.seal(2)
	shard.commit(2)
	// Go does not collect garbage, but it must read a log that begins inside a page and append to it.
	golden := *shard.manifest
	golden.FirstSequence, golden.OrphanFloorMs = 1, 1_699_999_999_000
	stamped := golden.Stamped(0x0123_4567_89ab_cdef)
	checkGolden(t, "manifest-with-pages-v1", stamped.Encode)
	checkGolden(t, "page-v1", page.Encode)
	read, err := Decode(goldenFile(t, "manifest-with-pages-v1"))
	if err != nil {
		t.Fatal(err)
	}
	checkSame(t, read, stamped)
	readPage, err := DecodePage(goldenFile(t, "page-v1"))
	if err != nil {
		t.Fatal(err)
	}
	if !readPage.Equal(page) || readPage.Reference(read.Pages[0].Page) != read.Pages[0] {
		t.Errorf("the page is %+v", readPage)
	}
}

// Go only reads cursors; consumers write them.
func TestGoldenCursor(t *testing.T) {
	cursor := &manifestpb.Cursor{}
	if err := unwrap("cursor", "MPCR", logBytesMax, nil, goldenFile(t, "cursor-v1"), cursor); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(cursor.BufferId, bufferID[:]) || cursor.Consumer == "" || cursor.Policy.GetBatchRecords() == 0 ||
		cursor.Policy.GetSink() == "" || len(cursor.Streams) == 0 {
		t.Errorf("%v", cursor)
	}
	if unknown := cursor.ProtoReflect().GetUnknown(); len(unknown) > 0 {
		t.Errorf("%x is not known", unknown)
	}
}

package manifest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"runtime"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/oklog/ulid/v2"
	"google.golang.org/protobuf/encoding/protowire"

	"millpond.dev/otel-exporter/internal/manifest/manifestpb"
	"millpond.dev/otel-exporter/internal/segment"
	"millpond.dev/otel-exporter/internal/storage"
)

func enveloped(magic string, body []byte) []byte {
	out := append([]byte(magic), 0, 0, 0, 0, 0, 0)
	binary.LittleEndian.PutUint16(out[4:], FormatVersion)
	binary.LittleEndian.PutUint32(out[6:], checksum(FormatVersion, body))
	return append(out, body...)
}

// repeated encodes a bytes field many times.
func repeated(number protowire.Number, value []byte, times int) []byte {
	field := protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), value)
	return bytes.Repeat(field, times)
}

// TestBombs covers the same cases as manifest/tests/bombs.rs.
func TestBombs(t *testing.T) {
	manifest := func(bytes []byte) error { _, err := Decode(bytes); return err }
	page := func(bytes []byte) error { _, err := DecodePage(bytes); return err }
	for _, bomb := range []struct {
		what   string
		magic  string
		decode func([]byte) error
		body   []byte
	}{
		{"streams", manifestMagic, manifest, repeated(8, nil, 1_000_000)},
		{"pages", manifestMagic, manifest, repeated(9, nil, 2_000_000)},
		{"entries", manifestMagic, manifest, repeated(10, nil, 1_000_000)},
		{"parts of segments", manifestMagic, manifest, repeated(10, repeated(4, nil, 5_000_000), 1)},
		{"producers", manifestMagic, manifest, repeated(11, nil, 1_000_000)},
		{"entries", pageMagic, page, repeated(4, nil, 1_000_000)},
		{"parts of segments", pageMagic, page, repeated(4, repeated(4, nil, 5_000_000), 1)},
		{"it is not a protobuf message", pageMagic, page, []byte{3<<3 | 3, 3<<3 | 4}},
	} {
		object := enveloped(bomb.magic, bomb.body)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		err := bomb.decode(object)
		runtime.ReadMemStats(&after)
		if !errors.Is(err, ErrContent) || !strings.Contains(err.Error(), bomb.what) {
			t.Errorf("%s of %s: %v", bomb.what, bomb.magic, err)
		}
		if allocated := after.TotalAlloc - before.TotalAlloc; allocated > 1<<20 {
			t.Errorf("%s of %s: %d bytes were allocated", bomb.what, bomb.magic, allocated)
		}
	}
}

func TestAnObjectThatIsTooLargeIsNotRead(t *testing.T) {
	store := storage.Over(storage.NewMemory(), storage.RequestTimeout)
	if _, err := store.PutIfAbsent(t.Context(), BufferKey, storage.Body{make([]byte, bufferBytesMax+1)}); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenBuffer(t.Context(), store, &Buffer{}); !errors.Is(err, storage.ErrTooLarge) {
		t.Errorf("%v", err)
	}
	if _, err := DecodeBuffer(make([]byte, bufferBytesMax+1)); !errors.Is(err, ErrTooLarge) {
		t.Errorf("%v", err)
	}
}

func TestAManifestOfAnotherShardIsNotRead(t *testing.T) {
	store := storage.Over(storage.NewMemory(), storage.RequestTimeout)
	body, err := New(uuid.New(), 0).Encode()
	if err != nil {
		t.Fatal(err)
	}
	for shard := range uint32(2) {
		if _, err := store.PutIfAbsent(t.Context(), Key(shard), storage.Body{body}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Read(t.Context(), store, 0); err != nil {
		t.Error(err)
	}
	var wrong *FormatError
	if _, err := Read(t.Context(), store, 1); !errors.As(err, &wrong) || !strings.Contains(err.Error(), "is that of "+Key(0)) {
		t.Errorf("%v", err)
	}
}

func TestAStreamIsNamedByTheRule(t *testing.T) {
	for _, bad := range []string{"", "a b", "\x1b[2J", ".hidden", "é", strings.Repeat("x", 101)} {
		message := &manifestpb.Stream{Name: bad, Encoding: manifestpb.Encoding(segment.OTLP)}
		if _, err := decodeStream("manifest", message); !errors.Is(err, ErrContent) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// longLog has this many entries in its tail, and a producer.
func longLog(entries int) (*Manifest, ProducerID) {
	me := ProducerID{1}
	log := New(uuid.UUID{9}, 0).Register(me, 1)
	log.Streams = []Stream{{"a", segment.OTLP}}
	for i := range entries {
		log.Tail = append(log.Tail, Entry{Segment: ulidOf(i), Size: 10, Parts: []Part{{Length: 10}}})
	}
	log.NextSequence = uint64(entries)
	return log, me
}

func ulidOf(number int) (name ulid.ULID) {
	binary.BigEndian.PutUint32(name[12:], uint32(number))
	return name
}

// TestALogHasNoTailThatReadersRefuse covers the cases of manifest/tests/all/manifest.rs.
func TestALogHasNoTailThatReadersRefuse(t *testing.T) {
	log, me := longLog(EntriesMax - 1)
	added := func(number int) []NewSegment {
		return []NewSegment{{Segment: ulidOf(1<<20 + number), Size: 10, Parts: []NewPart{{"a", segment.OTLP, Part{Length: 10}}}}}
	}
	commit, err := log.Commit([]Claim{One(me, 1, 1)}, added(0), 2)
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := commit.State.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Decode(encoded); err != nil {
		t.Error(err)
	}
	_, err = commit.State.Commit([]Claim{One(me, 2, 1)}, added(1), 3)
	var invalid *InvalidError
	if !errors.As(err, &invalid) || !strings.Contains(invalid.Reason, "would have 4097 entries in the manifest, and readers accept 4096") {
		t.Error(err)
	}
}

// Earlier versions could write such a tail and not read it.
func TestATailThatEarlierVersionsCouldWriteIsReadAndSealed(t *testing.T) {
	log, _ := longLog(65_535 + 512)
	encoded, err := log.Encode()
	if err != nil {
		t.Fatal(err)
	}
	read, err := Decode(encoded)
	if err != nil {
		t.Fatal(err)
	}
	page, sealed, ok := read.Seal(ulidOf(1<<20), read.NextSequence-1)
	if !ok || len(sealed.Tail) != 0 {
		t.Fatal(ok, len(sealed.Tail))
	}
	if encoded, err = page.Encode(); err != nil {
		t.Fatal(err)
	}
	if found, err := DecodePage(encoded); err != nil || !found.Equal(page) {
		t.Error(err)
	}
}

func TestAStateThatReadersRefuseIsNotSent(t *testing.T) {
	store := storage.Over(storage.NewMemory(), storage.RequestTimeout)
	log, _ := longLog(1 << 17)
	outcome, _, err := Swap(t.Context(), store, 0, nil, log)
	if outcome != storage.Unknown || !errors.Is(err, ErrContent) {
		t.Error(outcome, err)
	}
	if sent := store.Requests().Puts; sent != 0 {
		t.Error(sent)
	}
}

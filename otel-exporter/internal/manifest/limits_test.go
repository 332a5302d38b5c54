package manifest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"runtime"
	"strings"
	"testing"

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

func TestAStreamIsNamedByTheRule(t *testing.T) {
	for _, bad := range []string{"", "a b", "\x1b[2J", ".hidden", "é", strings.Repeat("x", 101)} {
		message := &manifestpb.Stream{Name: bad, Encoding: manifestpb.Encoding(segment.OTLP)}
		if _, err := decodeStream("manifest", message); !errors.Is(err, ErrContent) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

package manifest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"github.com/google/uuid"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"millpond.dev/otel-exporter/internal/manifest/manifestpb"
	"millpond.dev/otel-exporter/internal/storage"
)

// cursorCertificate is the one in the golden cursor of an owner that watches.
var cursorCertificate = func() (certificate Fingerprint) {
	for place := range certificate {
		certificate[place] = byte(place + 1)
	}
	return certificate
}()

func TestALeaderReadsTheGoldenCursors(t *testing.T) {
	for name, certificate := range map[string]Fingerprint{
		"cursor-v1": {}, "cursor-v2": {}, "cursor-v3": {}, "cursor-programs-v1": {}, "cursor-watching-v1": cursorCertificate,
	} {
		golden := goldenFile(t, name)
		message := new(manifestpb.Cursor)
		if err := proto.Unmarshal(golden[envelopeLen:], message); err != nil {
			t.Fatal(err)
		}
		cursor, err := DecodeCursor(golden)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if !bytes.Equal(cursor.BufferID[:], message.BufferId) || cursor.Shard != message.Shard ||
			cursor.Consumer != message.Consumer || cursor.Consumer == "" || cursor.Certificate != certificate {
			t.Errorf("%s: %+v", name, cursor)
		}
	}
}

// cursorOf puts the envelope around a message of this version.
func cursorOf(version uint16, message []byte) []byte {
	out := append([]byte(cursorMagic), 0, 0, 0, 0, 0, 0)
	binary.LittleEndian.PutUint16(out[4:], version)
	binary.LittleEndian.PutUint32(out[6:], checksum(version, message))
	return append(out, message...)
}

func encodedCursor(t *testing.T, message *manifestpb.Cursor) []byte {
	t.Helper()
	body, err := proto.Marshal(message)
	if err != nil {
		t.Fatal(err)
	}
	return cursorOf(FormatVersion, body)
}

func TestDamagedCursorsAreRefused(t *testing.T) {
	golden := goldenFile(t, "cursor-watching-v1")
	for cut := range golden {
		if cursor, err := DecodeCursor(golden[:cut]); err == nil {
			t.Errorf("cut at %d: %+v", cut, cursor)
		}
	}
	for bit := range len(golden) * 8 {
		damaged := bytes.Clone(golden)
		damaged[bit/8] ^= 1 << (bit % 8)
		if cursor, err := DecodeCursor(damaged); err == nil {
			t.Errorf("bit %d: %+v", bit, cursor)
		}
	}
	// With the right checksum, damage must do no harm.
	body := golden[envelopeLen:]
	for cut := range body {
		cursor, err := DecodeCursor(cursorOf(FormatVersion, body[:cut]))
		if (cursor == nil) == (err == nil) {
			t.Errorf("cut at %d: %+v, %v", cut, cursor, err)
		}
	}
	short := &manifestpb.Cursor{BufferId: bufferID[:], Certificate: []byte("no")}
	for says, wrong := range map[string]struct {
		bytes []byte
		is    error
	}{
		"format version 4":         {cursorOf(4, body), ErrVersion},
		"format version 0":         {cursorOf(0, body), ErrVersion},
		"begins with":              {append([]byte("MPMF"), golden[4:]...), ErrMagic},
		"more than the maximum of": {append(bytes.Clone(golden), make([]byte, CursorBytes)...), ErrTooLarge},
		"buffer_id has 0 bytes":    {cursorOf(FormatVersion, nil), ErrContent},
		"certificate has 2 bytes":  {encodedCursor(t, short), ErrContent},
	} {
		if cursor, err := DecodeCursor(wrong.bytes); !errors.Is(err, wrong.is) || !strings.Contains(err.Error(), says) {
			t.Errorf("%+v, %v, not %s", cursor, err, says)
		}
	}
}

func TestUnknownFieldsOfACursorAreSkippedWithoutMemory(t *testing.T) {
	golden := goldenFile(t, "cursor-watching-v1")
	body := bytes.Clone(golden[envelopeLen:])
	for len(body) < CursorBytes-envelopeLen-2 {
		body = append(body, 12<<3|byte(protowire.BytesType), 0) // a stream
	}
	body = protowire.AppendTag(body[:len(body)-8], 1_000, protowire.VarintType)
	large := cursorOf(FormatVersion, protowire.AppendVarint(body, 1))
	var cursor *Cursor
	var err error
	allocations := testing.AllocsPerRun(1, func() { cursor, err = DecodeCursor(large) })
	if err != nil || cursor.Certificate != cursorCertificate || allocations > 10 {
		t.Errorf("%+v, %v, %v allocations", cursor, err, allocations)
	}
}

func TestACertificateIsThatOfTheConsumerOfThisBufferAndShard(t *testing.T) {
	memory := storage.NewMemory()
	store := storage.Over(memory, storage.RequestTimeout)
	put := func(key string, body []byte) {
		if _, err := memory.Create(context.Background(), key, storage.Body{body}); err != nil {
			t.Fatal(err)
		}
	}
	cursor := func(buffer uuid.UUID, shard uint32, consumer string, certificate []byte) []byte {
		return encodedCursor(t, &manifestpb.Cursor{
			BufferId: buffer[:], Shard: shard, Consumer: consumer, Certificate: certificate,
		})
	}
	put("shards/0003/consumers/own/cursor", cursor(bufferID, 3, "own", cursorCertificate[:]))
	put("shards/0003/consumers/polls/cursor", cursor(bufferID, 3, "polls", nil))
	put("shards/0003/consumers/copied/cursor", cursor(bufferID, 3, "own", cursorCertificate[:]))
	put("shards/0003/consumers/moved/cursor", cursor(bufferID, 4, "moved", cursorCertificate[:]))
	put("shards/0003/consumers/foreign/cursor", cursor(uuid.UUID{1}, 3, "foreign", cursorCertificate[:]))
	put("shards/0003/consumers/damaged/cursor", []byte("nonsense"))
	put("shards/0003/consumers/large/cursor", make([]byte, CursorBytes+1))
	for consumer, expected := range map[string]struct{ known, fails bool }{
		"own": {known: true}, "polls": {}, "copied": {}, "moved": {}, "foreign": {}, "nobody": {},
		"damaged": {fails: true}, "large": {fails: true},
	} {
		found, known, err := CertificateOfConsumer(t.Context(), store, bufferID, 3, consumer)
		if known != expected.known || (err != nil) != expected.fails || known && found != cursorCertificate {
			t.Errorf("%s: %x, %t, %v", consumer, found, known, err)
		}
	}
}

func TestNamesThatWouldMakeAnotherKeyAreNoConsumers(t *testing.T) {
	for _, name := range []string{
		"", "../x", "a/b", ".hidden", "a b", "é", strings.Repeat("x", 101), strings.Repeat("é", 1_000),
		"default.repair", "a.repair.repair",
	} {
		if err := CheckReaderName(name); err == nil || len(err.Error()) > 1_000 {
			t.Errorf("%q: %v", name, err)
		}
	}
	for _, name := range []string{"default", "a", "repair", "team-1.replay_2", strings.Repeat("x", 100)} {
		if err := CheckReaderName(name); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
}

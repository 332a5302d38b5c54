package manifest

import (
	"context"
	"fmt"
	"strings"

	"github.com/google/uuid"
	"google.golang.org/protobuf/encoding/protowire"

	"millpond.dev/otel-exporter/internal/segment"
	"millpond.dev/otel-exporter/internal/storage"
)

const (
	// CursorBytes is the maximum size of a cursor that a leader reads, in bytes. The owners of larger ones poll. A cursor
	// of a thousand streams is smaller.
	CursorBytes = 256 << 10
	// CursorMemory is the memory that reading such a cursor takes at most, as in the gateway.
	CursorMemory = 4 << 20

	cursorMagic = "MPCR"
	// cursorVersion is the newest version of a cursor: one with streams whose repeated events are dropped, by the newest rules.
	cursorVersion = 3
	// repairSuffix ends the names of cursors that belong to repairs.
	repairSuffix = ".repair"
)

// A Cursor is what a leader reads in the cursor of a consumer: whose it is, and who may watch.
type Cursor struct {
	BufferID    uuid.UUID
	Shard       uint32
	Consumer    string
	Certificate Fingerprint // that its owner presents to the leader; zeros: the owner polls
}

// CursorKey is the key of a consumer's cursor in a shard.
func CursorKey(shard uint32, consumer string) string {
	return fmt.Sprintf("shards/%04d/consumers/%s/cursor", shard, consumer)
}

// CheckReaderName checks the name of a consumer that reads the log itself: it becomes part of a key, and names of
// repairs are reserved.
func CheckReaderName(name string) error {
	if segment.CheckStreamName(name) == nil && !strings.HasSuffix(name, repairSuffix) {
		return nil
	}
	// Shorten the name: a stranger chose it.
	shown := []rune(name)
	shown = shown[:min(len(shown), 100)]
	return fmt.Errorf("consumer name %q is not allowed: use 1 to 100 of the characters a-z A-Z 0-9 . _ - "+
		"with a letter or digit first; names that end in %s belong to repairs", string(shown), repairSuffix)
}

// CertificateOfConsumer reads the certificate in the cursor of a consumer. It is not known if the consumer has no
// cursor in the shard, or if its owner does not watch.
func CertificateOfConsumer(
	ctx context.Context, store *storage.Store, buffer uuid.UUID, shard uint32, consumer string,
) (certificate Fingerprint, known bool, err error) {
	key := CursorKey(shard, consumer)
	body, _, found, err := store.GetAtMost(ctx, key, CursorBytes)
	if err != nil || !found {
		return Fingerprint{}, false, err
	}
	cursor, err := DecodeCursor(body)
	if err != nil {
		return Fingerprint{}, false, &FormatError{key, err}
	}
	if cursor.BufferID != buffer || cursor.Shard != shard || cursor.Consumer != consumer {
		return Fingerprint{}, false, nil
	}
	return cursor.Certificate, cursor.Certificate != Fingerprint{}, nil
}

// DecodeCursor reads the fields that a leader needs, and skips all others. It takes no memory for them, so it need not
// count them.
func DecodeCursor(bytes []byte) (*Cursor, error) {
	const object = "cursor"
	body, err := opened(object, cursorMagic, CursorBytes, bytes)
	if err != nil {
		return nil, err
	}
	var buffer, consumer, certificate []byte
	cursor := new(Cursor)
	for len(body) > 0 {
		number, kind, length := protowire.ConsumeTag(body)
		if length < 0 {
			return nil, content(object, "%v", protowire.ParseError(length))
		}
		body = body[length:]
		length = protowire.ConsumeFieldValue(number, kind, body)
		if length < 0 {
			return nil, content(object, "%v", protowire.ParseError(length))
		}
		value := body[:length]
		body = body[length:]
		switch {
		case number == 1 && kind == protowire.BytesType:
			buffer, _ = protowire.ConsumeBytes(value)
		case number == 2 && kind == protowire.VarintType:
			shard, _ := protowire.ConsumeVarint(value)
			cursor.Shard = uint32(shard)
		case number == 3 && kind == protowire.BytesType:
			consumer, _ = protowire.ConsumeBytes(value)
		case number == 23 && kind == protowire.BytesType:
			certificate, _ = protowire.ConsumeBytes(value)
		}
	}
	if cursor.BufferID, err = sixteen(object, "buffer_id", buffer); err != nil {
		return nil, err
	}
	if length := len(certificate); length != 0 && length != len(cursor.Certificate) {
		return nil, content(object, "certificate has %d bytes, not %d", length, len(cursor.Certificate))
	}
	copy(cursor.Certificate[:], certificate)
	cursor.Consumer = string(consumer)
	return cursor, nil
}

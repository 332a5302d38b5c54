package manifest

import (
	"github.com/google/uuid"

	"millpond.dev/otel-exporter/internal/manifest/manifestpb"
)

// ShardsMax is the most shards that a buffer can have: keys carry four digits.
const ShardsMax = 10_000

// A Buffer is what the object `buffer` says: which buffer this is and how many shards it has. Written once.
type Buffer struct {
	ID     uuid.UUID // a buffer made anew at the same URL is another buffer
	Shards uint32    // at least one
}

const bufferMagic = "MPBF"

// Encode gives the object's bytes.
func (b *Buffer) Encode() ([]byte, error) {
	return wrap(bufferMagic, &manifestpb.Buffer{BufferId: b.ID[:], Shards: b.Shards})
}

// DecodeBuffer reads and checks the bytes of the buffer object.
func DecodeBuffer(bytes []byte) (*Buffer, error) {
	const object = "buffer object"
	message := &manifestpb.Buffer{}
	if err := unwrap(object, bufferMagic, bufferBytesMax, nil, bytes, message); err != nil {
		return nil, err
	}
	id, err := sixteen(object, "buffer_id", message.BufferId)
	if err != nil {
		return nil, err
	}
	if message.Shards == 0 || message.Shards > ShardsMax {
		return nil, content(object, "%d shards, which is not between 1 and %d", message.Shards, ShardsMax)
	}
	return &Buffer{id, message.Shards}, nil
}

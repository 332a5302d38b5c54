package manifest

import (
	"encoding/binary"

	"github.com/google/uuid"

	"millpond.dev/otel-exporter/internal/manifest/manifestpb"
)

// ShardsMax is the maximum number of shards in a buffer: keys have four digits.
const ShardsMax = 10_000

// A Buffer is the content of the object `buffer`: the buffer's identity and its number of shards, which only grows.
type Buffer struct {
	ID      uuid.UUID // a buffer created again at the same URL gets a new ID
	Shards  uint32    // at least one
	Version uint64    // counts the states; 0 in an object of an older program
	Nonce   uint64    // a random number of the writer of this state
}

// NewBuffer returns a buffer in its first state. Half of its random ID is the nonce of its writer.
func NewBuffer(id uuid.UUID, shards uint32) *Buffer {
	return &Buffer{ID: id, Shards: shards, Version: 1, Nonce: binary.BigEndian.Uint64(id[8:])}
}

const bufferMagic = "MPBF"

// Encode returns the object's bytes.
func (b *Buffer) Encode() ([]byte, error) {
	return wrap(bufferMagic, &manifestpb.Buffer{
		BufferId: b.ID[:], Shards: b.Shards, Version: b.Version, WriterNonce: b.Nonce,
	})
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
	return &Buffer{id, message.Shards, message.Version, message.WriterNonce}, nil
}

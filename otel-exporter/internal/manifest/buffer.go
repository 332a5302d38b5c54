package manifest

import (
	"encoding/binary"

	"github.com/google/uuid"

	"millpond.dev/otel-exporter/internal/manifest/manifestpb"
	"millpond.dev/otel-exporter/internal/segment"
)

// ShardsMax is the maximum number of shards in a buffer: keys have four digits.
const ShardsMax = 10_000

// A Buffer is the content of the object `buffer`: the buffer's identity and its number of shards, which only grows.
type Buffer struct {
	ID      uuid.UUID // a buffer created again at the same URL gets a new ID
	Shards  uint32    // at least one
	Version uint64    // counts the states; 0 in an object of an older program
	Nonce   uint64    // a random number of the writer of this state

	// Routed has the number of shards that the rows of a stream go to by their keys, from shard 0 on. Only gateways route them.
	Routed map[string]uint32
}

// RoutedMax is the maximum number of streams whose rows are routed by key.
const RoutedMax = 256

// NewBuffer returns a buffer in its first state. Half of its random ID is the nonce of its writer.
func NewBuffer(id uuid.UUID, shards uint32) *Buffer {
	return &Buffer{ID: id, Shards: shards, Version: 1, Nonce: binary.BigEndian.Uint64(id[8:])}
}

const bufferMagic = "MPBF"

// Encode returns the object's bytes. A buffer that a producer makes routes nothing.
func (b *Buffer) Encode() ([]byte, error) {
	return wrap(bufferMagic, &manifestpb.Buffer{
		BufferId: b.ID[:], Shards: b.Shards, Version: b.Version, WriterNonce: b.Nonce,
	})
}

// DecodeBuffer reads and checks the bytes of the buffer object.
func DecodeBuffer(bytes []byte) (*Buffer, error) {
	const object = "buffer object"
	message := &manifestpb.Buffer{}
	if err := unwrap(object, bufferMagic, bufferBytesMax, bufferCounts, bytes, message); err != nil {
		return nil, err
	}
	id, err := sixteen(object, "buffer_id", message.BufferId)
	if err != nil {
		return nil, err
	}
	if message.Shards == 0 || message.Shards > ShardsMax {
		return nil, content(object, "%d shards, which is not between 1 and %d", message.Shards, ShardsMax)
	}
	found := &Buffer{ID: id, Shards: message.Shards, Version: message.Version, Nonce: message.WriterNonce}
	for _, routed := range message.Routed {
		if err := segment.CheckStreamName(routed.Stream); err != nil {
			return nil, content(object, "stream %s: %v", routed.Stream, err)
		}
		if routed.Shards == 0 || routed.Shards > found.Shards {
			return nil, content(object, "stream %s is routed over %d shards: the buffer has %d", routed.Stream, routed.Shards, found.Shards)
		}
		if _, twice := found.Routed[routed.Stream]; twice {
			return nil, content(object, "stream %s is routed twice", routed.Stream)
		}
		if found.Routed == nil {
			found.Routed = make(map[string]uint32)
		}
		found.Routed[routed.Stream] = routed.Shards
	}
	return found, nil
}

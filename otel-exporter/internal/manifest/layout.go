package manifest

import (
	"fmt"

	"github.com/oklog/ulid/v2"
)

// BufferKey is the key of the object that identifies the buffer.
const BufferKey = "buffer"

// Key is the key of a shard's manifest.
func Key(shard uint32) string { return fmt.Sprintf("shards/%04d/manifest", shard) }

// SegmentKey is the key of a segment.
func SegmentKey(shard uint32, segment ulid.ULID) string {
	return fmt.Sprintf("shards/%04d/segments/%s", shard, segment)
}

// PageKey is the key of a page; first is the sequence of its first entry.
func PageKey(shard uint32, first uint64, page ulid.ULID) string {
	return fmt.Sprintf("shards/%04d/pages/%020d-%s", shard, first, page)
}

package segment

// Limits are upper bounds for every size in a segment. A reader rejects larger values before it allocates, a writer
// before it writes.
type Limits struct {
	BlockRawMax uint64 // raw bytes of one block, and so of the largest message
	SegmentMax  uint64 // bytes of a whole object
	StreamsMax  int    // streams in one segment
	BlocksMax   uint32 // blocks of one stream in one segment
	IndexMax    uint64 // bytes of the index
}

// DefaultLimits returns the limits of the format.
func DefaultLimits() Limits {
	return Limits{
		BlockRawMax: 64 << 20,
		SegmentMax:  1 << 30,
		StreamsMax:  4_096,
		BlocksMax:   65_536,
		IndexMax:    2 << 20,
	}
}

// streamNameMax is the length of the longest stream name. It is part of the format, so it is not configurable.
const streamNameMax = 100

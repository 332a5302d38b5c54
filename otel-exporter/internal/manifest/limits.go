package manifest

import (
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
)

// The most that is read of an object, in bytes, and of what it repeats. An empty message takes two bytes on the wire and a
// hundred in memory, so the repeated fields are counted before anything is decoded.
const (
	bufferBytesMax = 64 << 10
	// As many entries as may be, with all streams in each.
	logBytesMax = 256 << 20
	// A commit adds its segments to a tail that is not sealed yet.
	entriesMax = 2 * TailMax
	partsMax   = entriesMax * StreamsMax
	pagesMax   = 1 << 20
)

// A count is the most that an object may have of a field: path has the numbers of the fields that lead to it.
type count struct {
	of   string
	path []protowire.Number
	max  int
}

var (
	manifestCounts = []count{
		{"streams", []protowire.Number{8}, StreamsMax},
		{"pages", []protowire.Number{9}, pagesMax},
		{"entries", []protowire.Number{10}, entriesMax},
		{"parts of segments", []protowire.Number{10, 4}, partsMax},
		{"producers", []protowire.Number{11}, ProducersMax},
	}
	pageCounts = []count{
		{"entries", []protowire.Number{4}, entriesMax},
		{"parts of segments", []protowire.Number{4, 4}, partsMax},
	}
)

// checkCounts counts an encoded message and refuses it where it has too many of something.
func checkCounts(object string, counts []count, body []byte) error {
	found := make([]int, len(counts))
	return scan(object, counts, found, body, make([]protowire.Number, 0, 4))
}

func scan(object string, counts []count, found []int, body []byte, path []protowire.Number) error {
	for len(body) > 0 {
		number, kind, length := protowire.ConsumeTag(body)
		if length < 0 || kind == protowire.StartGroupType || kind == protowire.EndGroupType {
			return content(object, "it is no protobuf message")
		}
		body = body[length:]
		length = protowire.ConsumeFieldValue(number, kind, body)
		if length < 0 {
			return content(object, "it is no protobuf message")
		}
		value := body[:length]
		body = body[length:]
		at := append(path, number)
		inside := false
		for i, count := range counts {
			switch {
			case slices.Equal(count.path, at):
				if found[i]++; found[i] > count.max {
					return content(object, "it has more than %d %s, which is the most there may be", count.max, count.of)
				}
			case len(count.path) > len(at) && slices.Equal(count.path[:len(at)], at):
				inside = kind == protowire.BytesType
			}
		}
		if inside {
			message, _ := protowire.ConsumeBytes(value)
			if err := scan(object, counts, found, message, at); err != nil {
				return err
			}
		}
	}
	return nil
}

package manifest

import (
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
)

// Limits on the size of an object in bytes and on its repeated fields. An empty message takes two bytes on the wire and
// a hundred in memory, so repeated fields are counted before decoding.
const (
	// Each of the routed streams has a key of eight paths.
	bufferBytesMax = 1 << 20
	// The maximum number of entries, each with all streams.
	logBytesMax = 256 << 20
	// Earlier versions let a tail grow to 65,536 entries before a commit added its segments, although they did not read
	// more than EntriesMax.
	entriesReadMax = 65_536 + EntriesMax
	partsMax       = EntriesMax * StreamsMax
	pagesMax       = 1 << 20
)

// A count limits the occurrences of a field. The path is the field numbers that lead to it.
type count struct {
	of   string
	path []protowire.Number
	max  int
}

var (
	bufferCounts = []count{
		{"routed streams", []protowire.Number{7}, RoutedMax},
		{"paths of keys", []protowire.Number{7, 2}, 8 * RoutedMax},
	}
	manifestCounts = []count{
		{"streams", []protowire.Number{8}, StreamsMax},
		{"pages", []protowire.Number{9}, pagesMax},
		{"entries", []protowire.Number{10}, entriesReadMax},
		{"parts of segments", []protowire.Number{10, 4}, partsMax},
		{"producers", []protowire.Number{11}, ProducersMax},
		{"clients", []protowire.Number{13}, ClientsMax},
		{"idempotency keys", []protowire.Number{14}, ClientsMax},
		{"sources", []protowire.Number{15}, SourcesMax},
	}
	pageCounts = []count{
		{"entries", []protowire.Number{4}, entriesReadMax},
		{"parts of segments", []protowire.Number{4, 4}, partsMax},
	}
)

// checkCounts rejects an encoded message that has too many of some field.
func checkCounts(object string, counts []count, body []byte) error {
	found := make([]int, len(counts))
	return scan(object, counts, found, body, make([]protowire.Number, 0, 4))
}

func scan(object string, counts []count, found []int, body []byte, path []protowire.Number) error {
	for len(body) > 0 {
		number, kind, length := protowire.ConsumeTag(body)
		if length < 0 || kind == protowire.StartGroupType || kind == protowire.EndGroupType {
			return content(object, "it is not a protobuf message")
		}
		body = body[length:]
		length = protowire.ConsumeFieldValue(number, kind, body)
		if length < 0 {
			return content(object, "it is not a protobuf message")
		}
		value := body[:length]
		body = body[length:]
		at := append(path, number)
		inside := false
		for i, count := range counts {
			switch {
			case slices.Equal(count.path, at):
				if found[i]++; found[i] > count.max {
					return content(object, "it has more than the maximum of %d %s", count.max, count.of)
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

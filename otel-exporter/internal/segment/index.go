package segment

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"

	"google.golang.org/protobuf/proto"

	"millpond.dev/otel-exporter/internal/segment/segmentpb"
)

const (
	// FormatVersion is the only version that this package reads and writes.
	FormatVersion = 1
	// HeaderLen is the length of a segment's header: the magic and the version.
	HeaderLen = 6
	// FooterLen is the length of a segment's footer: index length, checksum, magic.
	FooterLen = 12

	magic = "MPSG"
)

// Encoding tells a reader how to interpret a stream's messages.
type Encoding uint8

const (
	// OTLP messages are the protobuf bytes of one Export…ServiceRequest each.
	OTLP Encoding = 1
	// NDJSON messages are newline-delimited JSON, one record a line.
	NDJSON Encoding = 2
)

// Known reports whether this version knows the encoding.
func (e Encoding) Known() bool { return e == OTLP || e == NDJSON }

func (e Encoding) String() string {
	switch e {
	case OTLP:
		return "otlp"
	case NDJSON:
		return "ndjson"
	}
	return fmt.Sprintf("encoding %d", uint8(e))
}

// CheckStreamName rejects a name that is not 1 to 100 ASCII letters, digits, '.', '_' and '-', starting with a letter
// or digit: stream names become part of tokens and metric labels.
func CheckStreamName(name string) error {
	good := name != "" && len(name) <= streamNameMax
	for i := 0; good && i < len(name); i++ {
		c := name[i]
		alphanumeric := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
		good = alphanumeric || i > 0 && (c == '.' || c == '_' || c == '-')
	}
	if good {
		return nil
	}
	// Shorten the name in the error: it may be a megabyte of untrusted bytes.
	shown := []rune(name)
	return fmt.Errorf("stream name %q is not allowed: use 1 to 100 of the characters a-z A-Z 0-9 . _ - "+
		"with a letter or digit first", string(shown[:min(len(shown), streamNameMax)]))
}

// A StreamPart describes one stream's contiguous run of blocks in a segment.
type StreamPart struct {
	Stream   string
	Encoding Encoding
	Offset   uint64 // of the first block in the object
	Length   uint64 // of all the blocks, headers included
	RawLen   uint64 // sum of the blocks' raw lengths
	Blocks   uint32
	Messages uint64
	Records  uint64 // as counted by the writer
	FirstUs  int64  // earliest receive time of a message, unix microseconds
	LastUs   int64  // latest receive time of a message, unix microseconds
}

// Of returns the part's bytes in the whole object, which must be the one that the index came from.
func (p *StreamPart) Of(object []byte) []byte { return object[p.Offset : p.Offset+p.Length] }

func appendHeader(out []byte) []byte {
	return binary.LittleEndian.AppendUint16(append(out, magic...), FormatVersion)
}

// encodeTail returns the index and the footer.
func encodeTail(streams []StreamPart) ([]byte, error) {
	index := &segmentpb.Index{}
	for i := range streams {
		index.Streams = append(index.Streams, streams[i].toProto())
	}
	out, err := proto.Marshal(index)
	if err != nil {
		return nil, fmt.Errorf("the index of a segment: %w", err)
	}
	if uint64(len(out)) > math.MaxUint32 {
		return nil, fmt.Errorf("the index of a segment has %d bytes", len(out))
	}
	out = binary.LittleEndian.AppendUint32(out, uint32(len(out)))
	// The checksum covers the length too: a reader has to trust the length first.
	out = binary.LittleEndian.AppendUint32(out, crc32.Checksum(out, castagnoli))
	return append(out, magic...), nil
}

// ReadIndex reads the index of a whole object: it checks header, footer and index, and that the parts fill the object.
// It does not check the blocks; Verify does.
func ReadIndex(object []byte, limits Limits) ([]StreamPart, error) {
	size := uint64(len(object))
	if size < HeaderLen+FooterLen {
		return nil, truncated(0, "object size", HeaderLen+FooterLen, size)
	}
	if size > limits.SegmentMax {
		return nil, overLimit(0, "object size", size, limits.SegmentMax)
	}
	if string(object[:4]) != magic {
		return nil, &Error{BadMagic, 0, "header", "it does not begin with " + magic}
	}
	if version := binary.LittleEndian.Uint16(object[4:]); version != FormatVersion {
		return nil, &Error{BadVersion, 4, "format version",
			fmt.Sprintf("%d is not %d, which this program reads", version, FormatVersion)}
	}
	footerAt := size - FooterLen
	footer := object[footerAt:]
	if string(footer[8:]) != magic {
		return nil, &Error{BadMagic, footerAt + 8, "footer", "it does not end with " + magic}
	}
	indexLen := uint64(binary.LittleEndian.Uint32(footer))
	if indexLen > limits.IndexMax {
		return nil, overLimit(footerAt, "index length", indexLen, limits.IndexMax)
	}
	if left := size - HeaderLen - FooterLen; indexLen > left {
		return nil, truncated(footerAt, "index length", indexLen, left)
	}
	indexAt := footerAt - indexLen
	stated := binary.LittleEndian.Uint32(footer[4:])
	if computed := crc32.Checksum(object[indexAt:footerAt+4], castagnoli); stated != computed {
		return nil, badChecksum(indexAt, "index checksum", stated, computed)
	}
	index := &segmentpb.Index{}
	if err := proto.Unmarshal(object[indexAt:footerAt], index); err != nil {
		return nil, &Error{Malformed, indexAt, "index", err.Error()}
	}
	return checkIndex(index, indexAt, &limits)
}

// checkIndex checks the rules of the index: known encodings, valid unique names, and parts without a gap from the
// header to the index.
func checkIndex(index *segmentpb.Index, indexAt uint64, limits *Limits) ([]StreamPart, error) {
	if found := len(index.Streams); found > limits.StreamsMax {
		return nil, overLimit(indexAt, "number of streams", uint64(found), uint64(limits.StreamsMax))
	}
	streams := make([]StreamPart, 0, len(index.Streams))
	seen := make(map[string]bool, len(index.Streams))
	next := uint64(HeaderLen)
	for _, message := range index.Streams {
		part := partFromProto(message)
		if err := CheckStreamName(part.Stream); err != nil {
			return nil, &Error{BadName, indexAt, "name", err.Error()}
		}
		// Compare the number, not its low byte: 257 is not 1.
		if found := message.Encoding; found != segmentpb.Encoding(part.Encoding) || !part.Encoding.Known() {
			return nil, &Error{Unknown, indexAt, "encoding", fmt.Sprintf("%d is not known", found)}
		}
		if seen[part.Stream] {
			return nil, &Error{BadName, indexAt, "name", fmt.Sprintf("stream %q occurs twice", part.Stream)}
		}
		seen[part.Stream] = true
		if part.Offset != next {
			return nil, inconsistent(indexAt, "offset", part.Offset, next)
		}
		if left := indexAt - next; part.Length > left {
			return nil, truncated(indexAt, "length", part.Length, left)
		}
		if part.Blocks > limits.BlocksMax {
			return nil, overLimit(indexAt, "blocks", uint64(part.Blocks), uint64(limits.BlocksMax))
		}
		if least := uint64(max(part.Blocks, 1)) * BlockHeaderLen; part.Length < least {
			return nil, inconsistent(indexAt, "length", part.Length, least)
		}
		next += part.Length
		streams = append(streams, part)
	}
	if next != indexAt {
		return nil, inconsistent(indexAt, "end of the last stream", next, indexAt)
	}
	return streams, nil
}

func (p *StreamPart) toProto() *segmentpb.Stream {
	return &segmentpb.Stream{
		Name:              p.Stream,
		Encoding:          segmentpb.Encoding(p.Encoding),
		Offset:            p.Offset,
		Length:            p.Length,
		RawLen:            p.RawLen,
		Blocks:            p.Blocks,
		Messages:          p.Messages,
		Records:           p.Records,
		FirstReceivedAtUs: p.FirstUs,
		LastReceivedAtUs:  p.LastUs,
	}
}

func partFromProto(stream *segmentpb.Stream) StreamPart {
	return StreamPart{
		Stream:   stream.Name,
		Encoding: Encoding(stream.Encoding),
		Offset:   stream.Offset,
		Length:   stream.Length,
		RawLen:   stream.RawLen,
		Blocks:   stream.Blocks,
		Messages: stream.Messages,
		Records:  stream.Records,
		FirstUs:  stream.FirstReceivedAtUs,
		LastUs:   stream.LastReceivedAtUs,
	}
}

package peer

import (
	"errors"
	"fmt"
	"time"

	"github.com/oklog/ulid/v2"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"millpond.dev/otel-exporter/internal/manifest"
	"millpond.dev/otel-exporter/internal/peer/peerpb"
	"millpond.dev/otel-exporter/internal/segment"
)

// This file reads requests and writes replies. It checks whatever comes from another process.

// segmentsField is the field of a request that has messages with messages in them.
const segmentsField = 4

// errNumbered is the answer to a request with clients: this producer would append their records and forget the clients.
var errNumbered = NewRefusal(Invalid, "this producer does not know numbered requests")

var (
	errWireType   = errors.New("it is not a protobuf message of this protocol")
	errBoth       = errors.New("it has blocks and segments")
	errSpan       = errors.New("received_span_us overflows")
	errEmptyBlock = errors.New("a block has no header")
)

// elements counts the blocks, segments, parts and clients of a request, and more, without decoding it. Each takes
// memory, and as little as two bytes here.
func elements(request []byte) (int64, error) { return countElements(request, true) }

func countElements(message []byte, isRequest bool) (count int64, err error) {
	for len(message) > 0 {
		number, kind, length := protowire.ConsumeTag(message)
		if length < 0 {
			return 0, protowire.ParseError(length)
		}
		if kind == protowire.StartGroupType || kind == protowire.EndGroupType {
			return 0, errWireType
		}
		message = message[length:]
		length = protowire.ConsumeFieldValue(number, kind, message)
		if length < 0 {
			return 0, protowire.ParseError(length)
		}
		value := message[:length]
		message = message[length:]
		if kind == protowire.VarintType {
			continue
		}
		count++
		if isRequest && number == segmentsField && kind == protowire.BytesType {
			inside, _ := protowire.ConsumeBytes(value)
			more, err := countElements(inside, false)
			if err != nil {
				return 0, err
			}
			count += more
		}
	}
	return count, nil
}

// decodeRequest copies what the request keeps. The error is a *Refusal for a request that this version does not know.
func decodeRequest(body []byte) (*Request, error) {
	message := new(peerpb.Request)
	if err := (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(body, message); err != nil {
		return nil, err
	}
	producer, err := sixteen("producer", message.Producer)
	if err != nil {
		return nil, err
	}
	if len(message.Clients) > 0 {
		return nil, errNumbered
	}
	if len(message.Blocks) > 0 && len(message.Segments) > 0 {
		return nil, errBoth
	}
	request := &Request{Producer: producer, Number: message.Number}
	if request.Blocks, err = decodeAll(message.Blocks, decodeBlock); err != nil {
		return nil, err
	}
	if request.Segments, err = decodeAll(message.Segments, decodeSegment); err != nil {
		return nil, err
	}
	return request, nil
}

func decodeAll[M, T any](messages []*M, decode func(*M) (T, error)) ([]T, error) {
	if len(messages) == 0 {
		return nil, nil
	}
	all := make([]T, len(messages))
	for i, message := range messages {
		var err error
		if all[i], err = decode(message); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func decodeBlock(message *peerpb.Block) (block Block, err error) {
	block = Block{Stream: message.Stream}
	if block.Encoding, err = decodeEncoding(message.Encoding); err != nil {
		return block, err
	}
	block.FirstUs = message.FirstReceivedAtUs
	if block.LastUs, err = endOfSpan(message.FirstReceivedAtUs, message.ReceivedSpanUs); err != nil {
		return block, err
	}
	limits := segment.DefaultLimits()
	limits.BlocksMax = 1
	found, err := segment.Blocks(message.Block, 0, limits)
	if err != nil {
		return block, err
	}
	if len(found) != 1 {
		return block, errEmptyBlock
	}
	// A record takes at least a byte. Sums of wrong counts could overflow.
	if message.Records > found[0].RawLen() {
		return block, fmt.Errorf("a block of %d raw bytes has %d records", found[0].RawLen(), message.Records)
	}
	block.Bytes, block.Records = message.Block, message.Records
	block.RawLen, block.Messages = found[0].RawLen(), found[0].Messages()
	return block, nil
}

func decodeSegment(message *peerpb.Segment) (uploaded manifest.NewSegment, err error) {
	name, err := sixteen("segment", message.Name)
	if err != nil {
		return uploaded, err
	}
	parts, err := decodeAll(message.Parts, decodePart)
	return manifest.NewSegment{Segment: ulid.ULID(name), Size: message.Size, Parts: parts}, err
}

func decodePart(message *peerpb.Part) (part manifest.NewPart, err error) {
	encoding, err := decodeEncoding(message.Encoding)
	if err != nil {
		return part, err
	}
	last, err := endOfSpan(message.FirstReceivedAtUs, message.ReceivedSpanUs)
	return manifest.NewPart{Stream: message.Stream, Encoding: encoding, Part: manifest.Part{
		Offset: message.Offset, Length: message.Length, RawLen: message.RawLen,
		Messages: message.Messages, Records: message.Records, FirstUs: message.FirstReceivedAtUs, LastUs: last,
	}}, err
}

func decodeEncoding(encoding peerpb.Encoding) (segment.Encoding, error) {
	switch encoding {
	case peerpb.Encoding_ENCODING_OTLP:
		return segment.OTLP, nil
	case peerpb.Encoding_ENCODING_NDJSON:
		return segment.NDJSON, nil
	}
	return 0, fmt.Errorf("unknown encoding %d", encoding)
}

func endOfSpan(firstUs int64, spanUs uint64) (int64, error) {
	last := int64(uint64(firstUs) + spanUs)
	if last < firstUs || uint64(last)-uint64(firstUs) != spanUs {
		return 0, errSpan
	}
	return last, nil
}

func sixteen(field string, bytes []byte) ([16]byte, error) {
	if len(bytes) != 16 {
		return [16]byte{}, fmt.Errorf("%s has %d bytes instead of 16", field, len(bytes))
	}
	return [16]byte(bytes), nil
}

func encodeReply(answer *Answer) ([]byte, error) {
	if answer.Refused != nil {
		return proto.Marshal(&peerpb.Reply{Outcome: &peerpb.Reply_Refused{Refused: &peerpb.Refused{
			Reason: encodeReason(answer.Refused.Reason), Message: shortened(answer.Refused.message),
		}}})
	}
	micros := func(duration time.Duration) uint64 { return uint64(max(duration, 0).Microseconds()) }
	return proto.Marshal(&peerpb.Reply{Outcome: &peerpb.Reply_Committed{Committed: &peerpb.Committed{
		FirstSequence: answer.FirstSequence,
		ClosesAfterUs: micros(answer.ClosesAfter),
		ClosesEveryUs: micros(answer.ClosesEvery),
	}}})
}

func encodeReason(reason Reason) peerpb.Refused_Reason {
	switch reason {
	case NotLeading:
		return peerpb.Refused_NOT_LEADING
	case Leaving:
		return peerpb.Refused_LEAVING
	case OverBudget:
		return peerpb.Refused_OVER_BUDGET
	case HeldUp:
		return peerpb.Refused_HELD_UP
	case Busy:
		return peerpb.Refused_BUSY
	case NotCommitted:
		return peerpb.Refused_NOT_COMMITTED
	}
	return peerpb.Refused_INVALID
}

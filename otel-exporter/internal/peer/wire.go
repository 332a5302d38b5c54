package peer

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"millpond.dev/otel-exporter/internal/manifest"
	"millpond.dev/otel-exporter/internal/peer/peerpb"
	"millpond.dev/otel-exporter/internal/segment"
)

// A longer interval is no rhythm.
const closesMax = 24 * time.Hour

// messageMax is the maximum length of a refusal's message, which goes to the log.
const messageMax = 1 << 10

func encodeRequest(request *Request) ([]byte, error) {
	message := &peerpb.Request{Producer: request.Producer[:], Number: request.Number}
	for i := range request.Blocks {
		block := &request.Blocks[i]
		message.Blocks = append(message.Blocks, &peerpb.Block{
			Stream:            block.Stream,
			Encoding:          encodeEncoding(block.Encoding),
			Block:             block.Bytes,
			Records:           block.Records,
			FirstReceivedAtUs: block.FirstUs,
			ReceivedSpanUs:    uint64(block.LastUs) - uint64(block.FirstUs),
		})
	}
	for i := range request.Segments {
		message.Segments = append(message.Segments, encodeSegment(&request.Segments[i]))
	}
	return proto.Marshal(message)
}

func encodeSegment(segment *manifest.NewSegment) *peerpb.Segment {
	message := &peerpb.Segment{Name: segment.Segment.Bytes(), Size: segment.Size}
	for i := range segment.Parts {
		part := &segment.Parts[i]
		message.Parts = append(message.Parts, &peerpb.Part{
			Stream:            part.Stream,
			Encoding:          encodeEncoding(part.Encoding),
			Offset:            part.Part.Offset,
			Length:            part.Part.Length,
			RawLen:            part.Part.RawLen,
			Messages:          part.Part.Messages,
			Records:           part.Part.Records,
			FirstReceivedAtUs: part.Part.FirstUs,
			ReceivedSpanUs:    uint64(part.Part.LastUs) - uint64(part.Part.FirstUs),
		})
	}
	return message
}

func encodeEncoding(encoding segment.Encoding) peerpb.Encoding {
	if encoding == segment.NDJSON {
		return peerpb.Encoding_ENCODING_NDJSON
	}
	return peerpb.Encoding_ENCODING_OTLP
}

func decodeReply(body []byte) (*Answer, error) {
	reply := new(peerpb.Reply)
	if err := proto.Unmarshal(body, reply); err != nil {
		return nil, fmt.Errorf("the reply cannot be read: %w", err)
	}
	switch outcome := reply.Outcome.(type) {
	case *peerpb.Reply_Committed:
		return decodeCommitted(outcome.Committed), nil
	case *peerpb.Reply_Refused:
		return Refuse(decodeReason(outcome.Refused.GetReason()), shortened(outcome.Refused.GetMessage())), nil
	}
	return nil, errors.New("the reply has no outcome")
}

func shortened(message string) string {
	return strings.ToValidUTF8(message[:min(len(message), messageMax)], "")
}

func decodeCommitted(committed *peerpb.Committed) *Answer {
	answer := &Answer{FirstSequence: committed.GetFirstSequence()}
	after, every := committed.GetClosesAfterUs(), committed.GetClosesEveryUs()
	if after <= every && every <= uint64(closesMax.Microseconds()) {
		answer.ClosesAfter = time.Duration(after) * time.Microsecond
		answer.ClosesEvery = time.Duration(every) * time.Microsecond
	}
	return answer
}

func decodeReason(reason peerpb.Refused_Reason) Reason {
	switch reason {
	case peerpb.Refused_NOT_LEADING:
		return NotLeading
	case peerpb.Refused_LEAVING:
		return Leaving
	case peerpb.Refused_OVER_BUDGET:
		return OverBudget
	case peerpb.Refused_HELD_UP:
		return HeldUp
	case peerpb.Refused_BUSY:
		return Busy
	case peerpb.Refused_NOT_COMMITTED:
		return NotCommitted
	}
	return Invalid
}

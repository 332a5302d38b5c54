package peer

import (
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"millpond.dev/otel-exporter/internal/manifest"
	"millpond.dev/otel-exporter/internal/peer/peerpb"
	"millpond.dev/otel-exporter/internal/segment"
)

func delegated() *Request {
	part := manifest.NewPart{Stream: "otlp.logs", Encoding: segment.OTLP, Part: manifest.Part{
		Offset: 1, Length: 2, RawLen: 3, Messages: 4, Records: 5, FirstUs: math.MinInt64, LastUs: math.MaxInt64,
	}}
	return &Request{Producer: memberID, Number: 1, Segments: []manifest.NewSegment{
		{Segment: ulid.ULID{1}, Size: 9, Parts: []manifest.NewPart{part, part}},
	}}
}

func encoded(t *testing.T, request *Request) []byte {
	t.Helper()
	body, err := encodeRequest(request)
	if err != nil {
		t.Fatal(err)
	}
	return body
}

func TestARequestReadsBackAsItWasWritten(t *testing.T) {
	for _, request := range []*Request{
		delegated(),
		{Producer: memberID, Number: math.MaxUint64, Blocks: []Block{block(t, "events.a"), block(t, "events.b")}},
		{},
	} {
		if found, err := decodeRequest(encoded(t, request)); err != nil || !reflect.DeepEqual(found, request) {
			t.Errorf("%+v, %v, not %+v", found, err, request)
		}
	}
}

func TestAReplyReadsBackAsItWasWritten(t *testing.T) {
	for _, answer := range []*Answer{
		{FirstSequence: 7, ClosesAfter: time.Millisecond, ClosesEvery: time.Second},
		{},
		Refuse(HeldUp, "why"),
	} {
		body, err := encodeReply(answer)
		if err != nil {
			t.Fatal(err)
		}
		if found, err := decodeReply(body); err != nil || !reflect.DeepEqual(found, answer) {
			t.Errorf("%+v, %v, not %+v", found, err, answer)
		}
	}
	body, err := encodeReply(&Answer{ClosesAfter: -time.Second, ClosesEvery: time.Second})
	if found, _ := decodeReply(body); err != nil || found.ClosesAfter != 0 {
		t.Errorf("%+v, %v", found, err)
	}
}

func TestEveryPartCounts(t *testing.T) {
	// The producer, the segment, its name and its parts.
	if count, err := elements(encoded(t, delegated())); err != nil || count != 5 {
		t.Error(count, err)
	}
	if count, err := elements([]byte(strings.Repeat("\x1a\x00", 1_000))); err != nil || count != 1_000 {
		t.Error(count, err)
	}
}

func TestRequestsThatBreakARuleAreRefused(t *testing.T) {
	good := block(t, "events.a")
	for says, change := range map[string]func(*peerpb.Request){
		"producer has 3 bytes": func(r *peerpb.Request) { r.Producer = []byte("abc") },
		"blocks and segments":  func(r *peerpb.Request) { r.Segments = []*peerpb.Segment{{}} },
		"numbered requests":    func(r *peerpb.Request) { r.Clients = []*peerpb.Client{{}} },
		"unknown encoding 0":   func(r *peerpb.Request) { r.Blocks[0].Encoding = 0 },
		"unknown encoding 9":   func(r *peerpb.Request) { r.Blocks[0].Encoding = 9 },
		"received_span_us":     func(r *peerpb.Request) { r.Blocks[0].ReceivedSpanUs = math.MaxUint64 },
		"has no header":        func(r *peerpb.Request) { r.Blocks[0].Block = nil },
		"block header":         func(r *peerpb.Request) { r.Blocks[0].Block = good.Bytes[:9] },
		"compressed length":    func(r *peerpb.Request) { r.Blocks[0].Block = good.Bytes[:len(good.Bytes)-1] },
		"over the limit of 1": func(r *peerpb.Request) {
			r.Blocks[0].Block = append(good.Bytes[:len(good.Bytes):len(good.Bytes)], good.Bytes...)
		},
		"has 18446744073709551615": func(r *peerpb.Request) { r.Blocks[0].Records = math.MaxUint64 },
		"segment has 0 bytes": func(r *peerpb.Request) {
			r.Blocks, r.Segments = nil, []*peerpb.Segment{{}}
		},
		"unknown encoding 7": func(r *peerpb.Request) {
			r.Blocks, r.Segments = nil, []*peerpb.Segment{{Name: make([]byte, 16), Parts: []*peerpb.Part{{Encoding: 7}}}}
		},
		"received_span_us overflows": func(r *peerpb.Request) {
			r.Blocks, r.Segments = nil, []*peerpb.Segment{{Name: make([]byte, 16), Parts: []*peerpb.Part{{
				Encoding: 1, FirstReceivedAtUs: 1, ReceivedSpanUs: math.MaxInt64,
			}}}}
		},
	} {
		message := new(peerpb.Request)
		body := encoded(t, &Request{Blocks: []Block{good}})
		if err := proto.Unmarshal(body, message); err != nil {
			t.Fatal(err)
		}
		change(message)
		body, err := proto.Marshal(message)
		if err != nil {
			t.Fatal(err)
		}
		if found, err := decodeRequest(body); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%+v, %v, not %s", found, err, says)
		}
	}
}

func TestEveryChangedBitOfABlockIsFound(t *testing.T) {
	good := block(t, "events.a")
	for bit := range len(good.Bytes) * 8 {
		changed := good
		changed.Bytes = append([]byte(nil), good.Bytes...)
		changed.Bytes[bit/8] ^= 1 << (bit % 8)
		if found, err := decodeRequest(encoded(t, &Request{Blocks: []Block{changed}})); err == nil {
			t.Errorf("bit %d: %+v", bit, found)
		}
	}
}

func TestCutRequestsAreRefused(t *testing.T) {
	for _, request := range []*Request{delegated(), {Blocks: []Block{block(t, "events.a")}}} {
		body := encoded(t, request)
		for cut := range body {
			_, counting := elements(body[:cut])
			found, decoding := decodeRequest(body[:cut])
			if counting != nil && decoding == nil {
				t.Errorf("cut at %d: %+v", cut, found)
			}
		}
	}
	for _, wrong := range []string{
		"\x1a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "\x1b", strings.Repeat("\xff", 20), "\x1b\x1c",
		"\x22\x02\x1a\x05", // a segment with a name that is cut off
	} {
		if count, err := elements([]byte(wrong)); err == nil {
			t.Errorf("%x: %d", wrong, count)
		}
	}
}

// Whatever is decoded was counted before, and so paid for.
func TestBytesThatAreNoRequestCauseNoPanic(t *testing.T) {
	bodies := [][]byte{encoded(t, delegated()), encoded(t, &Request{Blocks: []Block{block(t, "events.a")}})}
	rapid.Check(t, func(t *rapid.T) {
		var body []byte
		if rapid.Bool().Draw(t, "damaged") {
			body = append(body, rapid.SampledFrom(bodies).Draw(t, "body")...)
			for range rapid.IntRange(1, 4).Draw(t, "flips") {
				body[rapid.IntRange(0, len(body)-1).Draw(t, "place")] ^= rapid.Byte().Draw(t, "flip")
			}
		} else {
			body = rapid.SliceOf(rapid.Byte()).Draw(t, "bytes")
		}
		count, counting := elements(body)
		request, err := decodeRequest(body)
		if (request == nil) == (err == nil) {
			t.Errorf("%+v, %v", request, err)
		}
		if err != nil {
			return
		}
		found := int64(len(request.Blocks) + len(request.Segments))
		for i := range request.Segments {
			found += int64(len(request.Segments[i].Parts))
		}
		if counting != nil || count < found {
			t.Errorf("%d elements counted (%v), %d decoded", count, counting, found)
		}
	})
}

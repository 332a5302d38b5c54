package producer

import (
	"time"

	"github.com/oklog/ulid/v2"

	"millpond.dev/otel-exporter/internal/manifest"
	"millpond.dev/otel-exporter/internal/segment"
)

// A result is what a waiting caller is told.
type result struct {
	committed Committed
	err       error
}

// A waiter is where a caller waits for the commit: a channel with room for the one result, so that telling it never
// blocks. That the caller has gone away is no reason to do anything else.
type waiter chan result

// waiterBytes are the bytes of a waiting caller and its place in a list, beside the payload.
const waiterBytes = 192

func fail(waiters []waiter, err error) {
	for _, waiter := range waiters {
		waiter <- result{err: err}
	}
}

// An accepted message, where its caller waits, and the bytes of budget that it has drawn.
type accepted struct {
	message Message
	waiter  waiter
	cost    int64
}

// A fullBlock is a block that is full, or whose segment closes.
type fullBlock struct {
	segment, stream, slot int
	builder               *segment.BlockBuilder
	records               uint64
	cost                  int64
}

// A doneBlock is what became of a fullBlock; its cost is now that of the compressed bytes.
type doneBlock struct {
	segment, stream, slot int
	encoded               segment.EncodedBlock
	cost                  int64
}

type openBlock struct {
	builder *segment.BlockBuilder
	records uint64
	cost    int64
}

type openStream struct {
	name     string
	encoding Encoding
	open     *openBlock
	encoded  []segment.EncodedBlock // in order; empty while an encoder has it
}

// A fillingSegment is filling, or closed and waiting for its encoders. Pure bookkeeping: no goroutine, no I/O.
type fillingSegment struct {
	number        int // its place in the producer's order
	firstAt       time.Time
	streams       []openStream
	places        map[string]int
	waiters       []waiter
	cost          int64
	rawLen        int
	compressedLen int
	inEncoders    int
	lingerLeft    time.Duration // once it is closed
}

func newFillingSegment(number int, firstAt time.Time) *fillingSegment {
	return &fillingSegment{number: number, firstAt: firstAt, places: make(map[string]int)}
}

func (s *fillingSegment) place(stream string, encoding Encoding) int {
	place, found := s.places[stream]
	if !found {
		place = len(s.streams)
		s.places[stream] = place
		s.streams = append(s.streams, openStream{name: stream, encoding: encoding})
	}
	return place
}

// ship takes a stream's open block, if it has one.
func (s *fillingSegment) ship(place int) *fullBlock {
	stream := &s.streams[place]
	open := stream.open
	if open == nil {
		return nil
	}
	stream.open = nil
	full := &fullBlock{s.number, place, len(stream.encoded), open.builder, open.records, open.cost}
	stream.encoded = append(stream.encoded, segment.EncodedBlock{})
	s.inEncoders++
	return full
}

// put puts a block that comes from the encoders into its place.
func (s *fillingSegment) put(done doneBlock) {
	s.inEncoders--
	s.cost += done.cost
	s.compressedLen += len(done.encoded.Bytes)
	s.streams[done.stream].encoded[done.slot] = done.encoded
}

// An encodedWork is a segment that is encoded. Its cost is kept until the commit, since the orphan floor may ask for the
// bytes again.
type encodedWork struct {
	number  int
	encoded segment.EncodedSegment
	waiters []waiter
	cost    int64
	// lingerLeft is what was left of its linger when it closed: its commit may be so much later than its upload.
	lingerLeft time.Duration
}

// finish puts the blocks of a closed segment together.
func (s *fillingSegment) finish() (encodedWork, error) {
	work := encodedWork{number: s.number, waiters: s.waiters, cost: s.cost, lingerLeft: s.lingerLeft}
	builder := segment.NewBuilder(segment.DefaultLimits())
	for i := range s.streams {
		stream := &s.streams[i]
		for _, block := range stream.encoded {
			if err := builder.Push(stream.name, stream.encoding, block); err != nil {
				return work, err
			}
		}
	}
	var err error
	work.encoded, err = builder.Finish()
	return work, err
}

// An uploadedWork is a segment that is in the store.
type uploadedWork struct {
	name     ulid.ULID
	commitBy time.Time // when its commit begins at the latest
	encodedWork
}

// describe gives the segment as a commit describes it.
func (w *uploadedWork) describe() manifest.NewSegment {
	described := manifest.NewSegment{Segment: w.name, Size: w.encoded.Size}
	for i := range w.encoded.Streams {
		part := &w.encoded.Streams[i]
		described.Parts = append(described.Parts, manifest.NewPart{
			Stream:   part.Stream,
			Encoding: part.Encoding,
			Part: manifest.Part{
				Offset:   part.Offset,
				Length:   part.Length,
				RawLen:   part.RawLen,
				Messages: part.Messages,
				Records:  part.Records,
				FirstUs:  part.FirstUs,
				LastUs:   part.LastUs,
			},
		})
	}
	return described
}

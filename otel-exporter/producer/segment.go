package producer

import (
	"time"

	"github.com/oklog/ulid/v2"

	"millpond.dev/otel-exporter/internal/manifest"
	"millpond.dev/otel-exporter/internal/peer"
	"millpond.dev/otel-exporter/internal/segment"
)

// A result is the answer to a waiting caller.
type result struct {
	committed Committed
	err       error
}

// A waiter is a channel on which a caller waits for its commit. It has room for one result, so sending never blocks,
// even after the caller has left.
type waiter chan result

// waiterBytes is the size of a waiting caller and its list entry, on top of the payload.
const waiterBytes = 192

func fail(waiters []waiter, err error) {
	for _, waiter := range waiters {
		waiter <- result{err: err}
	}
}

// accepted is an accepted message, its caller's waiter, and the bytes it has reserved from the budget.
type accepted struct {
	message Message
	waiter  waiter
	cost    int64
}

// A fullBlock is ready to encode: it is full, or its segment is closing.
type fullBlock struct {
	segment, stream, slot int
	builder               *segment.BlockBuilder
	records               uint64
	cost                  int64
}

// A doneBlock is an encoded fullBlock; its cost is now the compressed size.
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

// A fillingSegment is filling, or closed and waiting for its encoders. It is pure bookkeeping: no goroutine, no I/O.
type fillingSegment struct {
	number        int // position in the producer's order
	firstAt       time.Time
	streams       []openStream
	places        map[string]int
	waiters       []waiter
	cost          int64
	rawLen        int
	compressedLen int
	inEncoders    int
	lingerLeft    time.Duration // set when it closes
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

// ship removes a stream's open block, if there is one.
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

// put stores an encoded block at its position.
func (s *fillingSegment) put(done doneBlock) {
	s.inEncoders--
	s.cost += done.cost
	s.compressedLen += len(done.encoded.Bytes)
	s.streams[done.stream].encoded[done.slot] = done.encoded
}

// An encodedWork is an encoded segment. It keeps its cost until the commit, because the orphan floor may require
// another upload.
type encodedWork struct {
	number  int
	encoded segment.EncodedSegment
	own     []peer.Block // of the segment, in order
	waiters []waiter
	cost    int64
	// lingerLeft is the rest of its linger when it closed: the commit may follow the upload by that much.
	lingerLeft time.Duration
}

// finish combines the blocks of a closed segment.
func (s *fillingSegment) finish() (encodedWork, error) {
	work := encodedWork{number: s.number, waiters: s.waiters, cost: s.cost, lingerLeft: s.lingerLeft}
	builder := segment.NewBuilder(segment.DefaultLimits())
	for i := range s.streams {
		stream := &s.streams[i]
		for _, block := range stream.encoded {
			if err := builder.Push(stream.name, stream.encoding, block); err != nil {
				return work, err
			}
			work.own = append(work.own, peer.Block{Stream: stream.name, Encoding: stream.encoding, EncodedBlock: block})
		}
	}
	var err error
	work.encoded, err = builder.Finish()
	return work, err
}

// An uploadedWork is an uploaded segment.
type uploadedWork struct {
	name     ulid.ULID
	commitBy time.Time // latest start of its commit
	encodedWork
}

// describe returns the segment as a commit needs it.
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

package producer

import (
	"slices"
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
	guests        []guest // blocks of other producers
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

// addGuest takes blocks of another producer.
func (s *fillingSegment) addGuest(guest guest) {
	for i := range guest.blocks {
		s.compressedLen += len(guest.blocks[i].Bytes)
		s.rawLen += int(guest.blocks[i].RawLen)
	}
	s.guests = append(s.guests, guest)
}

// An encodedWork is an encoded segment. It keeps its cost until the commit, because the orphan floor may require
// another upload.
type encodedWork struct {
	number  int
	encoded segment.EncodedSegment
	own     []peer.Block // this producer's own blocks, in order
	guests  []guest      // the other producers whose blocks follow
	waiters []waiter
	cost    int64 // without that of the guests
	// lingerLeft is the rest of its linger when it closed: the commit may follow the upload by that much.
	lingerLeft time.Duration
}

// isEmpty reports that nobody waits for the segment.
func (w *encodedWork) isEmpty() bool { return len(w.waiters) == 0 && len(w.guests) == 0 }

// hasOwn reports that the segment has records of this producer.
func (w *encodedWork) hasOwn() bool { return len(w.own) > 0 || len(w.guests) == 0 }

// finish combines the blocks of a closed segment.
func (s *fillingSegment) finish(budget *budget) (encodedWork, error) {
	work := encodedWork{number: s.number, guests: s.guests, waiters: s.waiters, cost: s.cost, lingerLeft: s.lingerLeft}
	for i := range s.streams {
		stream := &s.streams[i]
		for _, block := range stream.encoded {
			work.own = append(work.own, peer.Block{Stream: stream.name, Encoding: stream.encoding, EncodedBlock: block})
		}
	}
	return work, work.assemble(budget)
}

// assemble builds the segment of the own blocks and those of the guests. Guests whose blocks do not fit beside the others
// leave it, with an answer.
func (w *encodedWork) assemble(budget *budget) error {
	for {
		builder := segment.NewBuilder(segment.DefaultLimits())
		if err := pushAll(builder, w.own); err != nil {
			return err
		}
		unfit, reason := -1, error(nil)
		for place := range w.guests {
			if reason = pushAll(builder, w.guests[place].blocks); reason != nil {
				unfit = place
				break
			}
		}
		if unfit < 0 {
			encoded, err := builder.Finish()
			w.encoded = encoded
			return err
		}
		guest := w.guests[unfit]
		w.guests = slices.Delete(w.guests, unfit, unfit+1)
		budget.release(guest.cost)
		guest.ticket.refuse(peer.NotCommitted, reason.Error())
	}
}

func pushAll(builder *segment.Builder, blocks []peer.Block) error {
	for i := range blocks {
		if err := builder.Push(blocks[i].Stream, blocks[i].Encoding, blocks[i].EncodedBlock); err != nil {
			return err
		}
	}
	return nil
}

// refuseGuests tells the guests that their records are not in the log, and gives their memory back.
func (w *encodedWork) refuseGuests(budget *budget, reason peer.Reason, message string) {
	for _, guest := range w.guests {
		budget.release(guest.cost)
		guest.ticket.refuse(reason, message)
	}
	w.guests = nil
}

// fail tells everybody who waits for the segment that its records are not in the log, or that nobody knows: guests can ask
// the table themselves.
func (w *encodedWork) fail(budget *budget, err error) {
	budget.release(w.cost)
	fail(w.waiters, err)
	w.waiters = nil
	w.refuseGuests(budget, peer.NotCommitted, "the records were given up: "+err.Error())
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

package producer

import (
	"fmt"
	"log/slog"
	"time"

	"millpond.dev/otel-exporter/internal/segment"
)

// The accumulator is one goroutine that puts messages into blocks and blocks into segments, and decides when a segment
// closes. It takes messages in commit order. It never waits for the store.
type accumulator struct {
	config    *Config
	budget    *budget
	encoders  *encoders
	uploaders *uploaders
	flow      *flow
	following *following
	lead      *lead
	log       *slog.Logger

	nextNumber int
	open       *fillingSegment
	closed     map[int]*fillingSegment // waiting for encoders
	encoding   int                     // blocks at the encoders
	done       chan doneBlock
	earlyClose earlyClose
	due        *time.Timer // of the open segment
}

// run works until messages is closed and the uploaders have everything that was accepted.
func (a *accumulator) run(messages <-chan accepted, guests <-chan guest) {
	a.earlyClose = earlyClose{linger: a.config.Linger, flow: a.flow}
	a.due = time.NewTimer(time.Hour)
	a.due.Stop()
	defer a.due.Stop()
	for messages != nil || a.encoding > 0 {
		select {
		case done := <-a.done:
			a.encoding--
			a.put(done)
		case <-a.due.C:
			a.closeDue(messages)
		case message, more := <-messages:
			if !more {
				messages, guests = nil, nil
				a.closeOpen()
				break
			}
			a.accept(message)
		case guest := <-guests:
			a.takeIn(guest)
		}
	}
}

func (a *accumulator) accept(accepted accepted) {
	a.flow.messages.Add(1)
	a.earlyClose.message(time.Now())
	a.begin()
	a.append(accepted)
	if a.open.rawLen >= a.config.SegmentRawBytes {
		a.closeOpen()
		return
	}
	a.due.Reset(time.Until(a.closeAt()))
}

// begin opens a segment if none is open.
func (a *accumulator) begin() {
	if a.open == nil {
		a.open = newFillingSegment(a.nextNumber, time.Now())
		a.nextNumber++
	}
}

// takeIn adds blocks of another producer to the open segment.
func (a *accumulator) takeIn(guest guest) {
	a.begin()
	a.lead.guest(time.Now(), a.open.firstAt.Add(a.config.Linger), a.config.Linger)
	a.open.addGuest(guest)
	if a.open.compressedLen >= a.config.SegmentBytes || a.open.rawLen >= a.config.SegmentRawBytes {
		a.closeOpen()
		return
	}
	a.due.Reset(time.Until(a.closeAt()))
}

// closeAt returns the time to close the open segment.
func (a *accumulator) closeAt() time.Time {
	due := a.open.firstAt.Add(a.config.Linger)
	at, set := a.lead.closeAt(a.open.firstAt)
	if !set {
		at, set = a.following.closeAt(a.open.firstAt)
	}
	if set {
		if at.Before(due) {
			return at
		}
		return due
	}
	return a.earlyClose.closeAt(due)
}

// closeDue closes the open segment, unless a message or an answer has come meanwhile: then somebody may add to it.
func (a *accumulator) closeDue(messages <-chan accepted) {
	for range len(messages) {
		if message, more := <-messages; more {
			a.accept(message)
		}
	}
	if a.open == nil {
		return
	}
	if left := time.Until(a.closeAt()); left > 0 {
		a.due.Reset(left)
		return
	}
	a.close(0)
}

// append puts a message into its stream's block. It sends full blocks to the encoders: the old block if the message
// does not fit, and the new one if the message fills it.
func (a *accumulator) append(accepted accepted) {
	message := &accepted.message
	refuse := func(reason string) {
		a.budget.release(accepted.cost)
		fail([]waiter{accepted.waiter}, &RefusedError{reason})
	}
	place := a.open.place(message.Stream, message.Encoding)
	stream := &a.open.streams[place]
	if stream.encoding != message.Encoding {
		refuse(fmt.Sprintf("stream %s holds %s messages, not %s", stream.name, stream.encoding, message.Encoding))
		return
	}
	needed := segment.MessageLenMax(len(message.Payload))
	if stream.open != nil && stream.open.builder.RawLen()+needed > a.config.BlockBytes {
		a.encode(a.open.ship(place))
	}
	receivedAtUs := message.ReceivedAt.UnixMicro()
	if stream.open == nil {
		stream.open = &openBlock{builder: segment.NewBlockBuilder(receivedAtUs)}
	}
	before := stream.open.builder.RawLen()
	if err := stream.open.builder.Push(receivedAtUs, message.Payload); err != nil {
		if before == 0 {
			stream.open = nil
		}
		refuse(err.Error())
		return
	}
	a.open.rawLen += stream.open.builder.RawLen() - before
	stream.open.records += message.Records
	stream.open.cost += accepted.cost
	a.open.waiters = append(a.open.waiters, accepted.waiter)
	if stream.open.builder.RawLen() >= a.config.BlockBytes {
		a.encode(a.open.ship(place))
	}
}

func (a *accumulator) encode(full *fullBlock) {
	a.encoding++
	go func() { a.done <- a.encoders.encode(full) }()
}

func (a *accumulator) put(done doneBlock) {
	if a.open != nil && a.open.number == done.segment {
		a.open.put(done)
		if a.open.compressedLen >= a.config.SegmentBytes {
			a.closeOpen()
		}
		return
	}
	a.closed[done.segment].put(done)
	a.handOver(done.segment)
}

// closeOpen closes the open segment before its linger ends: its commit may wait for others for the rest.
func (a *accumulator) closeOpen() {
	if a.open != nil {
		a.close(a.config.Linger - time.Since(a.open.firstAt))
	}
}

func (a *accumulator) close(lingerLeft time.Duration) {
	open := a.open
	a.open = nil
	a.due.Stop()
	a.flow.closed.Add(1)
	a.earlyClose.closed(time.Now())
	filledFor := time.Since(open.firstAt)
	open.lingerLeft = lingerLeft
	if hook := a.config.Hooks.Closed; hook != nil {
		hook(filledFor)
	}
	for place := range open.streams {
		if full := open.ship(place); full != nil {
			a.encode(full)
		}
	}
	a.closed[open.number] = open
	a.handOver(open.number)
}

// handOver passes a closed segment to the uploaders once its last block is encoded.
func (a *accumulator) handOver(number int) {
	closed := a.closed[number]
	if closed.inEncoders > 0 {
		return
	}
	delete(a.closed, number)
	work, err := closed.finish(a.budget)
	switch {
	case err != nil:
		a.log.Error("millpond: a segment could not be encoded", "messages", len(work.waiters), "reason", err)
		work.fail(a.budget, &NotCommittedError{err.Error()})
		a.uploaders.skip(number)
	case work.isEmpty():
		a.budget.release(work.cost)
		a.uploaders.skip(number)
	case len(work.guests) == 0 && a.following.keeps(work.encoded.Size):
		a.uploaders.keep(work)
	default:
		a.uploaders.upload(work)
	}
}

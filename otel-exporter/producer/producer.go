package producer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"millpond.dev/otel-exporter/internal/segment"
)

// Encoding is how the messages of a stream are to be read. A stream has one for ever.
type Encoding = segment.Encoding

const (
	// OTLP messages are the protobuf bytes of one Export…ServiceRequest each.
	OTLP = segment.OTLP
	// NDJSON messages are newline-delimited JSON, one record a line.
	NDJSON = segment.NDJSON
)

// A Message is one message to be appended to a stream.
type Message struct {
	// Stream is 1 to 100 of the characters a-z A-Z 0-9 . _ - with a letter or digit first, for example otlp.logs.
	Stream string
	// Encoding is how the payload is to be read.
	Encoding Encoding
	// Payload is the message. It must not be changed until Append has returned, and not after an OutcomeUnknownError.
	Payload []byte
	// Records are those in the payload, as counted by the caller.
	Records uint64
	// ReceivedAt is when it was received.
	ReceivedAt time.Time
}

// Committed says where in the log a message is.
type Committed struct {
	Shard    uint32
	Sequence uint64 // of the segment that holds it
}

// queue is how many messages wait between the callers and the accumulator, and segments between the uploaders and the
// committer: only to hand over, the waiting is done elsewhere.
const queue = 64

// A Producer appends messages to one shard of a buffer. Its methods may be called from any goroutine.
type Producer struct {
	config   Config
	pipeline *pipeline
	streams  *streams

	gate     sync.RWMutex // held for reading while a message is handed over
	closed   bool
	messages chan accepted
	drained  chan struct{} // closed when everything accepted is committed
}

// run starts the stages, the last of which begins by opening the buffer. Each ends when the one before it has, and all
// that it brought is done.
func (p *Producer) run(encoders *encoders, openStore openStore) {
	uploaders := &uploaders{
		pipeline: p.pipeline,
		turns:    make(chan struct{}, p.config.MaxUploads),
		arrivals: make(chan arrival, queue),
	}
	accumulator := &accumulator{
		config:    &p.config,
		budget:    p.pipeline.budget,
		encoders:  encoders,
		uploaders: uploaders,
		flow:      p.pipeline.flow,
		log:       p.config.Logger,
		closed:    make(map[int]*fillingSegment),
		done:      make(chan doneBlock),
	}
	ctx, stopOpening := context.WithCancelCause(context.Background())
	go func() {
		accumulator.run(p.messages)
		uploaders.tasks.Wait()
		// An opening that still goes on has nothing to open for.
		stopOpening(ErrClosed)
		close(uploaders.arrivals)
	}()
	go func() {
		if committer := p.open(ctx, openStore); committer != nil {
			committer.run(uploaders.arrivals)
		}
		for range uploaders.arrivals {
			// Without a buffer there is nothing in them: their callers have been told.
		}
		close(p.drained)
	}()
}

// Shard is the shard that this producer writes to; 0 before the buffer is open.
func (p *Producer) Shard() uint32 {
	select {
	case <-p.pipeline.opened:
		return p.pipeline.shard
	default:
		return 0
	}
}

// Append appends a message and waits until it is committed. Its errors are those of this package; IsRetryable and
// HasNoSideEffects say what they mean. When the context ends first the error is an OutcomeUnknownError if the message
// was accepted (it is still going to be committed, once) and the context's own error if it was not.
func (p *Producer) Append(ctx context.Context, message Message) (Committed, error) {
	waiter, err := p.accept(ctx, message)
	if err != nil {
		p.pipeline.counters.refused.Add(1)
		return Committed{}, err
	}
	select {
	case result := <-waiter:
		return result.committed, result.err
	case <-ctx.Done():
		return Committed{}, &OutcomeUnknownError{"it was not waited for: " + ctx.Err().Error(), ctx.Err()}
	}
}

func (p *Producer) accept(ctx context.Context, message Message) (waiter, error) {
	cost, err := p.cost(len(message.Payload))
	if err != nil {
		return nil, err
	}
	if err := p.streams.admit(message.Stream, message.Encoding); err != nil {
		return nil, &RefusedError{err.Error()}
	}
	if err := p.pipeline.budget.reserve(ctx, cost); err != nil {
		return nil, err
	}
	p.gate.RLock()
	defer p.gate.RUnlock()
	if p.closed {
		p.pipeline.budget.release(cost)
		return nil, ErrClosed
	}
	waiter := make(waiter, 1)
	// The accumulator never waits for the store, so this is soon done.
	p.messages <- accepted{message, waiter, cost}
	return waiter, nil
}

// cost is the bytes of budget for a message of this size, which must be one that can be accepted at all.
func (p *Producer) cost(payloadLen int) (int64, error) {
	cost := segment.MessageLenMax(payloadLen) + waiterBytes
	if cost <= p.config.BlockBytes {
		return int64(cost), nil
	}
	// It gets a block of its own, for which an encoder's room does not suffice: it brings its own, to be copied and
	// compressed into, and that for the result.
	most := min(int(segment.DefaultLimits().BlockRawMax)-segment.MessageLenMax(0),
		int(p.pipeline.budget.limit/3)-segment.MessageLenMax(0)-waiterBytes)
	if payloadLen > most {
		return 0, &RefusedError{fmt.Sprintf("a message of %d bytes is over the limit of %d", payloadLen, most)}
	}
	return 3 * int64(cost), nil
}

// Waiting says what the producer waits for: empty when the last request of every kind to the store succeeded, else a
// sentence with the reason. It goes on trying.
func (p *Producer) Waiting() string { return p.pipeline.health.reason() }

// Stats is what was done so far.
func (p *Producer) Stats() Stats { return p.pipeline.counters.stats(p.pipeline.budget) }

// Close refuses new messages and waits until everything that was accepted is committed. When the context ends first, it
// says what is left and why; the producer goes on with it, and Close can be called again. Its error is an OpenError when
// nothing could be committed for want of a buffer.
func (p *Producer) Close(ctx context.Context) error {
	p.gate.Lock()
	if !p.closed {
		p.closed = true
		close(p.messages)
	}
	p.gate.Unlock()
	select {
	case <-p.drained:
		var failed *OpenError
		if errors.As(p.pipeline.openError, &failed) {
			return failed
		}
		return nil
	case <-ctx.Done():
	}
	reason := p.Waiting()
	if reason == "" {
		reason = "the store is slow"
	}
	return fmt.Errorf("%d bytes are not committed: %s (%w)", p.Stats().MemoryHeldBytes, reason, ctx.Err())
}

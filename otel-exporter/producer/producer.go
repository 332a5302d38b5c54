package producer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"millpond.dev/otel-exporter/internal/segment"
)

// Encoding tells a reader how to interpret a stream's messages. A stream never changes its encoding.
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
	Stream   string
	Encoding Encoding
	// Payload must not change until Append has returned. After an OutcomeUnknownError it must never change.
	Payload []byte
	// Records is the number of records in the payload.
	Records uint64
	// ReceivedAt is the time when the message was received.
	ReceivedAt time.Time
	// HeldBytes is the memory that the caller keeps for the message until Append returns. It counts toward
	// Config.MemoryLimit. Default: the length of Payload.
	HeldBytes int
}

func (m *Message) heldBytes() int64 {
	if m.HeldBytes > 0 {
		return int64(m.HeldBytes)
	}
	return int64(len(m.Payload))
}

// Committed is the position of a message in the log.
type Committed struct {
	Shard    uint32
	Sequence uint64 // of the segment that holds it
}

// queue is the capacity of the channels from the callers to the accumulator, and from the uploaders to the committer.
// It only smooths the handover; waiting happens elsewhere.
const queue = 64

// A Producer appends messages to one shard of a buffer. It is safe for concurrent use.
type Producer struct {
	config   Config
	pipeline *pipeline
	streams  *streams
	peering  *peering // nil: it commits for itself

	gate     sync.RWMutex // held for reading while a message is handed over
	closed   bool
	messages chan accepted
	drained  chan struct{} // closed when everything accepted is committed
}

// run starts the stages; the last one begins by opening the buffer. Each stage ends once the previous one has ended and
// all its work is done.
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
		following: p.pipeline.following,
		log:       p.config.Logger,
		closed:    make(map[int]*fillingSegment),
		done:      make(chan doneBlock),
	}
	ctx, stopOpening := context.WithCancelCause(context.Background())
	go func() {
		accumulator.run(p.messages)
		uploaders.tasks.Wait()
		// An opening still in progress has no purpose anymore.
		stopOpening(ErrClosed)
		close(uploaders.arrivals)
	}()
	go func() {
		if committer := p.open(ctx, openStore); committer != nil {
			committer.run(uploaders.arrivals)
		}
		for range uploaders.arrivals {
			// Without a buffer the arrivals carry no segments: their callers have their errors.
		}
		close(p.drained)
	}()
}

// Shard returns the shard that this producer writes to; 0 before the buffer is open.
func (p *Producer) Shard() uint32 {
	select {
	case <-p.pipeline.opened:
		return p.pipeline.shard
	default:
		return 0
	}
}

// Append appends a message and waits until it is committed. Its errors are those of this package; IsRetryable and
// HasNoSideEffects classify them. If the context ends first, the error is the context's own if the message was not
// accepted. Otherwise it is an OutcomeUnknownError, and the producer still commits the message once.
func (p *Producer) Append(ctx context.Context, message Message) (Committed, error) {
	p.pipeline.flow.waiting.Add(1)
	defer p.pipeline.flow.waiting.Add(-1)
	waiter, held, err := p.accept(ctx, message)
	if err != nil {
		p.pipeline.counters.refused.Add(1)
		return Committed{}, err
	}
	defer p.pipeline.budget.release(held)
	select {
	case result := <-waiter:
		return result.committed, result.err
	case <-ctx.Done():
		return Committed{}, &OutcomeUnknownError{"the caller stopped waiting: " + context.Cause(ctx).Error(), ctx.Err()}
	}
}

// accept hands a message over. It returns the bytes that stay reserved for what the caller keeps.
func (p *Producer) accept(ctx context.Context, message Message) (waiter waiter, held int64, err error) {
	// A message whose caller has left or that comes too late does not wait for memory.
	if err := context.Cause(ctx); err != nil {
		return nil, 0, err
	}
	if p.isClosed() {
		return nil, 0, ErrClosed
	}
	cost, err := p.cost(len(message.Payload))
	if err != nil {
		return nil, 0, err
	}
	if err := p.streams.admit(message.Stream, message.Encoding); err != nil {
		return nil, 0, &RefusedError{err.Error()}
	}
	// A message that the producer alone has room for is accepted when it is alone.
	held = min(message.heldBytes(), p.pipeline.budget.limit-cost)
	if err := p.pipeline.budget.reserve(ctx, cost+held); err != nil {
		return nil, 0, err
	}
	waiter = make(chan result, 1)
	if !p.handOver(accepted{message, waiter, cost}) {
		p.pipeline.budget.release(cost + held)
		return nil, 0, ErrClosed
	}
	return waiter, held, nil
}

func (p *Producer) isClosed() bool {
	p.gate.RLock()
	defer p.gate.RUnlock()
	return p.closed
}

// handOver reports false if the producer has been closed meanwhile.
func (p *Producer) handOver(accepted accepted) bool {
	p.gate.RLock()
	defer p.gate.RUnlock()
	if !p.closed {
		// The accumulator never waits for the store, so this send does not block for long.
		p.messages <- accepted
	}
	return !p.closed
}

// cost is the budget in bytes for a message of this size. It fails for a message that can never be accepted.
func (p *Producer) cost(payloadLen int) (int64, error) {
	cost := segment.MessageLenMax(payloadLen) + waiterBytes
	if cost <= p.config.BlockBytes {
		return int64(cost), nil
	}
	// A message this large gets its own block, which exceeds an encoder's room: its cost covers the copy, the compression
	// buffer and the result.
	most := min(int(segment.DefaultLimits().BlockRawMax)-segment.MessageLenMax(0),
		int(p.pipeline.budget.limit/3)-segment.MessageLenMax(0)-waiterBytes)
	if payloadLen > most {
		return 0, &RefusedError{fmt.Sprintf("a message of %d bytes is over the limit of %d", payloadLen, most)}
	}
	return 3 * int64(cost), nil
}

// Waiting describes what the producer is waiting for. It is empty if the last request of every kind to the store
// succeeded. The producer keeps retrying.
func (p *Producer) Waiting() string { return p.pipeline.health.reason() }

// Stats returns the statistics so far.
func (p *Producer) Stats() Stats { return p.pipeline.counters.stats(p.pipeline.budget) }

// Close refuses new messages and waits until everything accepted is committed. If the context ends first, the error
// states how much is left and why. The producer keeps working, and Close can be called again. Close returns an
// OpenError if the buffer could not be opened.
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
	return fmt.Errorf("messages that hold %d bytes of memory are not committed: %s (%w)", p.Stats().MemoryHeldBytes, reason, ctx.Err())
}

package producer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
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

// A Producer appends messages to one shard of a buffer, and to another one after the buffer has grown (growth.go). It is
// safe for concurrent use.
type Producer struct {
	resources *resources
	current   atomic.Pointer[writer] // into the shard that new messages go to
	leaving   atomic.Pointer[writer] // still commits what it accepted before a move; nil after that

	moving   sync.Mutex // held while current is replaced
	closed   bool
	stopLook context.CancelFunc
	settled  chan struct{} // closed when the producer moves no more, and no writer is leaving
}

// Shard returns the shard that new messages go to. open is false before the buffer is open.
func (p *Producer) Shard() (shard uint32, open bool) {
	pipeline := p.current.Load().pipeline
	select {
	case <-pipeline.opened:
		return pipeline.shard, pipeline.openError == nil
	default:
		return 0, false
	}
}

// errMoved means that the producer appends to another shard now. The writer accepted nothing.
var errMoved = errors.New("the producer has moved to another shard")

// Append appends a message and waits until it is committed. Its errors are those of this package; IsRetryable and
// HasNoSideEffects classify them. If the context ends first, the error is the context's own if the message was not
// accepted. Otherwise it is an OutcomeUnknownError, and the producer still commits the message once.
func (p *Producer) Append(ctx context.Context, message Message) (Committed, error) {
	for {
		committed, err := p.current.Load().append(ctx, message)
		if !errors.Is(err, errMoved) {
			return committed, err
		}
	}
}

// Waiting describes what the producer is waiting for. It is empty if the last request of every kind to the store
// succeeded. The producer keeps retrying.
func (p *Producer) Waiting() string {
	reason := p.current.Load().pipeline.health.reason()
	if leaving := p.leaving.Load(); reason == "" && leaving != nil {
		reason = leaving.pipeline.health.reason()
	}
	return reason
}

// Stats returns the statistics so far, of all shards that the producer has written to.
func (p *Producer) Stats() Stats { return p.resources.counters.stats(p.resources.budget) }

// Close refuses new messages and waits until everything accepted is committed. If the context ends first, the error
// states how much is left and why. The producer keeps working, and Close can be called again. Close returns an
// OpenError if the buffer could not be opened.
func (p *Producer) Close(ctx context.Context) error {
	p.moving.Lock()
	p.closed = true
	p.moving.Unlock()
	p.stopLook()
	current := p.current.Load()
	if current.close(ctx, ErrClosed) && p.isSettled(ctx) {
		p.resources.peers.close(ctx)
		var failed *OpenError
		if errors.As(current.pipeline.openError, &failed) {
			return failed
		}
		return nil
	}
	reason := p.Waiting()
	if reason == "" {
		reason = "the store is slow"
	}
	return fmt.Errorf("messages that hold %d bytes of memory are not committed: %s (%w)", p.Stats().MemoryHeldBytes, reason, ctx.Err())
}

func (p *Producer) isSettled(ctx context.Context) bool {
	select {
	case <-p.settled:
		return true
	case <-ctx.Done():
		return false
	}
}

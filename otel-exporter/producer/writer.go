package producer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"millpond.dev/otel-exporter/internal/manifest"
	"millpond.dev/otel-exporter/internal/segment"
	"millpond.dev/otel-exporter/internal/storage"
)

// resources are what a producer keeps when it moves to another shard.
type resources struct {
	config      *Config
	environment *environment
	counters    *counters
	budget      *budget
	encoders    *encoders
	peers       *peerPort // nil: this process takes no part in shared commits
	routes      *routes
}

func newResources(environment *environment, config *Config, peers *peerPort) (*resources, error) {
	counters := &counters{}
	budget := newBudget(int64(config.MemoryLimit-config.workingMemory()), config.MaxWait)
	encoders, err := newEncoders(config, budget, counters)
	if err != nil {
		return nil, err
	}
	return &resources{config, environment, counters, budget, encoders, peers, &routes{}}, nil
}

// starting limits an opening to StartTimeout.
func (r *resources) starting(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, r.config.StartTimeout,
		fmt.Errorf("the store was not reached for %s", r.config.StartTimeout))
}

// A place is a shard of an open buffer.
type place struct {
	store  *storage.Store
	buffer *manifest.Buffer
	shard  uint32
}

// findPlace finds the place of a writer, however long that takes. An error is final.
type findPlace func(context.Context, *pipeline) (place, error)

// A writer appends messages to one shard: the stages from the callers to the log.
type writer struct {
	*resources
	pipeline *pipeline
	streams  *streams
	peering  *peering // nil: it commits for itself

	gate     sync.RWMutex // held for reading while a message is handed over
	closed   error        // why it takes no more messages; nil: it does
	messages chan accepted
	leaving  chan struct{} // closed with the gate: other producers commit elsewhere
	guests   chan guest    // without room: what is sent has been taken
	foreign  chan foreign  // the same
	full     chan struct{} // closed when the accumulator takes nothing more
	drained  chan struct{} // closed when everything accepted is committed
}

// begin starts a writer, which finds its place and registers there in the background.
func (r *resources) begin(find findPlace) *writer {
	w := &writer{
		resources: r,
		pipeline: &pipeline{
			opened:      make(chan struct{}),
			environment: r.environment,
			health:      &health{log: r.config.Logger},
			counters:    r.counters,
			budget:      r.budget,
			flow:        &flow{},
			following:   &following{linger: r.config.Linger},
			lead:        newLead(r.budget, r.counters),
			hooks:       r.config.Hooks,
			log:         r.config.Logger,
		},
		streams:  &streams{encodings: make(map[string]Encoding)},
		messages: make(chan accepted, queue),
		leaving:  make(chan struct{}),
		guests:   make(chan guest),
		foreign:  make(chan foreign),
		full:     make(chan struct{}),
		drained:  make(chan struct{}),
		peering:  r.peers.peering(),
	}
	w.run(find)
	return w
}

// run starts the stages; the last one begins by opening the buffer. Each stage ends once the previous one has ended and
// all its work is done.
func (w *writer) run(find findPlace) {
	uploaders := &uploaders{
		pipeline: w.pipeline,
		turns:    make(chan struct{}, w.config.MaxUploads),
		arrivals: make(chan arrival, queue),
	}
	accumulator := &accumulator{
		config:    w.config,
		budget:    w.budget,
		encoders:  w.encoders,
		uploaders: uploaders,
		flow:      w.pipeline.flow,
		following: w.pipeline.following,
		lead:      w.pipeline.lead,
		log:       w.config.Logger,
		closed:    make(map[int]*fillingSegment),
		done:      make(chan doneBlock),
	}
	ctx, stopOpening := context.WithCancelCause(context.Background())
	go func() {
		accumulator.run(w.messages, w.guests)
		close(w.full)
		uploaders.tasks.Wait()
		// An opening still in progress has no purpose anymore.
		stopOpening(ErrClosed)
		close(uploaders.arrivals)
	}()
	go func() {
		if committer := w.open(ctx, find); committer != nil {
			committer.run(uploaders.arrivals)
		}
		for range uploaders.arrivals {
			// Without a buffer the arrivals carry no segments: their callers have their errors.
		}
		close(w.drained)
	}()
}

// open opens the buffer and registers in a shard, however long that takes. It returns no committer if the buffer can
// never be opened, and tells everybody who waits for it.
func (w *writer) open(ctx context.Context, find findPlace) *committer {
	w.pipeline.ctx = ctx
	committer, err := w.tryOpen(ctx, find)
	switch {
	case err == nil:
		// From here on no context cancels accepted work.
		w.pipeline.ctx = context.WithoutCancel(ctx)
	case ctx.Err() != nil:
		w.pipeline.openError = context.Cause(ctx)
	default:
		w.pipeline.openError = &OpenError{err}
	}
	close(w.pipeline.opened)
	return committer
}

func (w *writer) tryOpen(ctx context.Context, find findPlace) (*committer, error) {
	place, err := find(ctx, w.pipeline)
	if err != nil {
		return nil, err
	}
	w.pipeline.place = place
	w.routes.set(place.buffer)
	committer := newCommitter(w.pipeline, place.buffer.ID, w.config.TailMax, w.streams, w.peering, w.foreign)
	backoff := storage.Backoff{Initial: 20 * time.Millisecond, Max: 3 * time.Second}
	for !committer.tryRegister() {
		if err := storage.Sleep(ctx, w.environment.wait(&backoff)); err != nil {
			return nil, err
		}
	}
	return committer, nil
}

// isOpen waits until the buffer is open, and returns an OpenError if it never will be. If the context ends first, the
// error describes what the writer is waiting for; opening continues.
func (w *writer) isOpen(ctx context.Context) error {
	select {
	case <-w.pipeline.opened:
		return w.pipeline.openError
	case <-ctx.Done():
		return fmt.Errorf("the buffer is not open yet: %s (%w)", w.pipeline.health.reason(), context.Cause(ctx))
	}
}

// append appends a message and waits until it is committed. After a move it returns errMoved and has accepted nothing.
func (w *writer) append(ctx context.Context, message Message) (Committed, error) {
	w.pipeline.flow.waiting.Add(1)
	defer w.pipeline.flow.waiting.Add(-1)
	waiter, held, err := w.accept(ctx, message)
	if err != nil {
		if !errors.Is(err, errMoved) {
			w.counters.refused.Add(1)
		}
		return Committed{}, err
	}
	defer w.budget.release(held)
	select {
	case result := <-waiter:
		return result.committed, result.err
	case <-ctx.Done():
		return Committed{}, &OutcomeUnknownError{"the caller stopped waiting: " + context.Cause(ctx).Error(), ctx.Err()}
	}
}

// accept hands a message over. It returns the bytes that stay reserved for what the caller keeps.
func (w *writer) accept(ctx context.Context, message Message) (waiter waiter, held int64, err error) {
	// A message whose caller has left or that comes too late does not wait for memory.
	if err := context.Cause(ctx); err != nil {
		return nil, 0, err
	}
	if err := w.closedBecause(); err != nil {
		return nil, 0, err
	}
	cost, err := w.cost(len(message.Payload))
	if err != nil {
		return nil, 0, err
	}
	if err := w.streams.admit(message.Stream, message.Encoding); err != nil {
		return nil, 0, &RefusedError{err.Error()}
	}
	if err := w.routes.check(message.Stream, w); err != nil {
		return nil, 0, &RefusedError{err.Error()}
	}
	// A message that the producer alone has room for is accepted when it is alone.
	held = min(message.heldBytes(), w.budget.limit-cost)
	if err := w.budget.reserve(ctx, cost+held); err != nil {
		return nil, 0, err
	}
	waiter = make(chan result, 1)
	if err := w.handOver(accepted{message, waiter, cost}); err != nil {
		w.budget.release(cost + held)
		return nil, 0, err
	}
	return waiter, held, nil
}

// closedBecause is the reason of close, or nil.
func (w *writer) closedBecause() error {
	w.gate.RLock()
	defer w.gate.RUnlock()
	return w.closed
}

// handOver returns the reason of close if the writer has been closed meanwhile.
func (w *writer) handOver(accepted accepted) error {
	w.gate.RLock()
	defer w.gate.RUnlock()
	if w.closed == nil {
		// The accumulator never waits for the store, so this send does not block for long.
		w.messages <- accepted
	}
	return w.closed
}

// cost is the budget in bytes for a message of this size. It fails for a message that can never be accepted.
func (w *writer) cost(payloadLen int) (int64, error) {
	cost := segment.MessageLenMax(payloadLen) + waiterBytes
	if cost <= w.config.BlockBytes {
		return int64(cost), nil
	}
	// A message this large gets its own block, which exceeds an encoder's room: its cost covers the copy, the compression
	// buffer and the result.
	most := min(int(segment.DefaultLimits().BlockRawMax)-segment.MessageLenMax(0),
		int(w.budget.limit/3)-segment.MessageLenMax(0)-waiterBytes)
	if payloadLen > most {
		return 0, &RefusedError{fmt.Sprintf("a message of %d bytes is over the limit of %d", payloadLen, most)}
	}
	return 3 * int64(cost), nil
}

// close refuses new messages with the reason and waits until everything accepted is committed. It returns false if the
// context ends first: the writer keeps working, and close can be called again.
func (w *writer) close(ctx context.Context, reason error) bool {
	w.gate.Lock()
	if w.closed == nil {
		w.closed = reason
		close(w.messages)
		close(w.leaving)
		w.pipeline.lead.watchers.stop()
	}
	w.gate.Unlock()
	select {
	case <-w.drained:
		return true
	case <-ctx.Done():
		return false
	}
}

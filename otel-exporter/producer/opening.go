package producer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"millpond.dev/otel-exporter/internal/manifest"
	"millpond.dev/otel-exporter/internal/storage"
)

// Open opens the buffer at a URL (s3://bucket/prefix, file:///directory or, for tests, memory:///). It tests that the
// store honours write preconditions, writes the buffer object if there is none, and registers in a shard. It fails if a
// setting is invalid, if the store refuses (OpenError), or if the store stays unreachable for StartTimeout. A started
// producer waits out an outage of the store.
func Open(ctx context.Context, url string, config Config) (*Producer, error) {
	p, err := Begin(url, config)
	if err != nil {
		return nil, err
	}
	return p.orNothing(ctx)
}

// Begin is Open for a caller that cannot wait for the store, such as a Collector with other components. It fails only
// if a setting is invalid. It opens the buffer in the background, however long that takes. Meanwhile it holds what is
// appended, and refuses more once MemoryLimit is reached, as in any outage. Opened reports the result: if the buffer
// turns out to be unusable, every accepted message fails with a NotCommittedError.
func Begin(url string, config Config) (*Producer, error) {
	peering, err := config.peering()
	if err != nil {
		return nil, err
	}
	return begin(systemEnvironment(), config, peering, func(ctx context.Context) (*storage.Store, error) {
		store, err := storage.Open(ctx, url, storage.Options{
			Endpoint:       config.S3Endpoint,
			Region:         config.S3Region,
			AllowHTTP:      config.AllowHTTP,
			RequestTimeout: config.RequestTimeout,
			Create:         config.CreateBucket,
		})
		if err != nil {
			return nil, err
		}
		return store, store.SelfTest(ctx)
	})
}

// CheckURL validates a buffer's URL without contacting the store.
func CheckURL(url string) error { return storage.CheckURL(url) }

// openStore makes one attempt to open a store that can hold a buffer.
type openStore func(context.Context) (*storage.Store, error)

func begin(environment *environment, config Config, peering *peering, openStore openStore) (*Producer, error) {
	if err := config.Check(); err != nil {
		return nil, err
	}
	if config.Logger == nil {
		config.Logger = slog.Default()
	}
	counters := &counters{}
	budget := newBudget(int64(config.MemoryLimit-config.workingMemory()), config.MaxWait)
	encoders, err := newEncoders(&config, budget, counters)
	if err != nil {
		return nil, err
	}
	p := &Producer{
		config: config,
		pipeline: &pipeline{
			opened:      make(chan struct{}),
			environment: environment,
			health:      &health{log: config.Logger},
			counters:    counters,
			budget:      budget,
			flow:        &flow{},
			following:   &following{linger: config.Linger},
			hooks:       config.Hooks,
			log:         config.Logger,
		},
		streams:  &streams{encodings: make(map[string]Encoding)},
		messages: make(chan accepted, queue),
		drained:  make(chan struct{}),
		peering:  peering,
	}
	p.run(encoders, openStore)
	return p, nil
}

// Opened waits until the buffer is open, and returns an OpenError if it never will be. If the context ends first, the
// error describes what the producer is waiting for; opening continues.
func (p *Producer) Opened(ctx context.Context) error {
	select {
	case <-p.pipeline.opened:
		return p.pipeline.openError
	case <-ctx.Done():
		return fmt.Errorf("the buffer is not open yet: %s (%w)", p.Waiting(), context.Cause(ctx))
	}
}

// orNothing waits up to StartTimeout for the buffer to open, and stops the producer if it does not.
func (p *Producer) orNothing(ctx context.Context) (*Producer, error) {
	starting, end := context.WithTimeoutCause(ctx, p.config.StartTimeout,
		fmt.Errorf("the store was not reached for %s", p.config.StartTimeout))
	defer end()
	if err := p.Opened(starting); err != nil {
		// Nothing was accepted, so Close neither waits nor loses anything.
		_ = p.Close(context.WithoutCancel(ctx))
		return nil, err
	}
	return p, nil
}

// open opens the buffer and registers in a shard, however long that takes. It returns no committer if the buffer can
// never be opened, and tells everybody who waits for it.
func (p *Producer) open(ctx context.Context, openStore openStore) *committer {
	p.pipeline.ctx = ctx
	committer, err := p.tryOpen(ctx, openStore)
	switch {
	case err == nil:
		// From here on no context cancels accepted work.
		p.pipeline.ctx = context.WithoutCancel(ctx)
	case ctx.Err() != nil:
		p.pipeline.openError = context.Cause(ctx)
	default:
		p.pipeline.openError = &OpenError{err}
	}
	close(p.pipeline.opened)
	return committer
}

func (p *Producer) tryOpen(ctx context.Context, openStore openStore) (*committer, error) {
	var store *storage.Store
	err := p.pipeline.patiently(ctx, func() (err error) {
		store, err = openStore(ctx)
		return err
	})
	if err != nil {
		return nil, err
	}
	new := manifest.NewBuffer(p.pipeline.environment.uuid(), uint32(p.config.Shards))
	var buffer *manifest.Buffer
	err = p.pipeline.patiently(ctx, func() (err error) {
		buffer, err = manifest.OpenBuffer(ctx, store, new)
		return err
	})
	if err != nil {
		return nil, err
	}
	shard := uint32(max(p.config.Shard, 0))
	if p.config.Shard < 0 {
		shard = p.pipeline.environment.below(buffer.Shards)
	}
	if shard >= buffer.Shards {
		return nil, fmt.Errorf("shard %d does not exist: the buffer %s has the shards 0 to %d", shard, store.URL(), buffer.Shards-1)
	}
	p.pipeline.store, p.pipeline.shard = store, shard
	committer := newCommitter(p.pipeline, buffer.ID, p.config.TailMax, p.streams, p.peering)
	backoff := storage.Backoff{Initial: 20 * time.Millisecond, Max: 3 * time.Second}
	for !committer.tryRegister() {
		if err := storage.Sleep(ctx, p.pipeline.environment.wait(&backoff)); err != nil {
			return nil, err
		}
	}
	return committer, nil
}

// patiently repeats an attempt that fails because of the store, until the context ends.
func (p *pipeline) patiently(ctx context.Context, attempt func() error) error {
	backoff := storage.Backoff{Initial: 100 * time.Millisecond, Max: 3 * time.Second}
	for {
		err := attempt()
		if err == nil {
			p.health.gotOn(opening)
			return nil
		}
		var format *manifest.FormatError
		if storage.KindOf(err) != storage.Transient || errors.As(err, &format) {
			return err
		}
		p.health.heldUp(opening, err)
		if err := storage.Sleep(ctx, p.environment.wait(&backoff)); err != nil {
			return err
		}
	}
}

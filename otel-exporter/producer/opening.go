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

// Open opens the buffer at a URL (s3://bucket/prefix, file:///directory or, for tests, memory:///), tests that its store
// keeps the preconditions that everything rests on, writes the buffer object if there is none, and registers in a shard.
// It fails when a setting makes no sense, with an OpenError when the store refuses, and when the store was not reached
// for StartTimeout. Once it has started, an outage of the store is waited for.
func Open(ctx context.Context, url string, config Config) (*Producer, error) {
	p, err := Begin(url, config)
	if err != nil {
		return nil, err
	}
	return p.orNothing(ctx)
}

// Begin is Open for those who cannot wait for a store that is away, such as a Collector with other things to do. It
// fails only when a setting makes no sense. The buffer is opened in the background, for as long as that takes; what is
// appended meanwhile is held, and refused when MemoryLimit is reached, as in any outage. Opened says how that ended: when
// the buffer turns out to be unusable, everything that was accepted is answered with a NotCommittedError.
func Begin(url string, config Config) (*Producer, error) {
	return begin(systemEnvironment(), config, func(ctx context.Context) (*storage.Store, error) {
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

// CheckURL says what is wrong with a buffer's URL, without asking the store.
func CheckURL(url string) error { return storage.CheckURL(url) }

// openStore makes one attempt to open a store that is fit for a buffer.
type openStore func(context.Context) (*storage.Store, error)

func begin(environment *environment, config Config, openStore openStore) (*Producer, error) {
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
			hooks:       config.Hooks,
			log:         config.Logger,
		},
		streams:  &streams{encodings: make(map[string]Encoding)},
		messages: make(chan accepted, queue),
		drained:  make(chan struct{}),
	}
	p.run(encoders, openStore)
	return p, nil
}

// Opened waits until the buffer is open, and gives an OpenError if it never will be. When the context ends first, its
// error says what is waited for; the opening goes on.
func (p *Producer) Opened(ctx context.Context) error {
	select {
	case <-p.pipeline.opened:
		return p.pipeline.openError
	case <-ctx.Done():
		return fmt.Errorf("the buffer is not open yet: %s (%w)", p.Waiting(), context.Cause(ctx))
	}
}

// orNothing waits for StartTimeout until the buffer is open, and stops the producer if it is not.
func (p *Producer) orNothing(ctx context.Context) (*Producer, error) {
	starting, end := context.WithTimeoutCause(ctx, p.config.StartTimeout,
		fmt.Errorf("the store was not reached for %s", p.config.StartTimeout))
	defer end()
	if err := p.Opened(starting); err != nil {
		// Nothing was accepted, so there is nothing that this waits for and nothing that it could lose.
		_ = p.Close(context.WithoutCancel(ctx))
		return nil, err
	}
	return p, nil
}

// open opens the buffer and registers in a shard, however long that takes. It gives no committer when there will never
// be an open buffer. Whoever waits for that is told.
func (p *Producer) open(ctx context.Context, openStore openStore) *committer {
	p.pipeline.ctx = ctx
	committer, err := p.tryOpen(ctx, openStore)
	switch {
	case err == nil:
		// From here on nothing ends what was accepted.
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
	new := &manifest.Buffer{ID: p.pipeline.environment.uuid(), Shards: uint32(p.config.Shards)}
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
	committer := newCommitter(p.pipeline, buffer.ID, p.config.TailMax, p.streams)
	backoff := storage.Backoff{Initial: 20 * time.Millisecond, Max: 3 * time.Second}
	for !committer.tryRegister() {
		if err := storage.Sleep(ctx, p.pipeline.environment.wait(&backoff)); err != nil {
			return nil, err
		}
	}
	return committer, nil
}

// patiently repeats what fails for the store's sake until the context ends.
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

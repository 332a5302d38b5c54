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
	return begin(systemEnvironment(), config, config.listen, func(ctx context.Context) (*storage.Store, error) {
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

func begin(environment *environment, config Config, listen func() (*peerPort, error), openStore openStore) (*Producer, error) {
	if err := config.Check(); err != nil {
		return nil, err
	}
	if config.Logger == nil {
		config.Logger = slog.Default()
	}
	peers, err := listen()
	if err != nil {
		return nil, err
	}
	resources, err := newResources(environment, &config, peers)
	if err != nil {
		peers.cut()
		return nil, err
	}
	first := resources.begin(resources.opening(openStore))
	looking, stopLook := context.WithCancel(context.Background())
	p := &Producer{resources: resources, stopLook: stopLook, settled: make(chan struct{})}
	p.current.Store(first)
	peers.serve(p)
	go func() {
		defer close(p.settled)
		if config.Shard < 0 {
			p.followGrowth(looking)
		}
	}()
	return p, nil
}

// opening opens the store and the buffer, writes the buffer object if it does not exist, and chooses a shard.
func (r *resources) opening(openStore openStore) findPlace {
	return func(ctx context.Context, p *pipeline) (found place, err error) {
		err = p.patiently(ctx, func() (err error) {
			found.store, err = openStore(ctx)
			return err
		})
		if err != nil {
			return place{}, err
		}
		new := manifest.NewBuffer(r.environment.uuid(), uint32(r.config.Shards))
		err = p.patiently(ctx, func() (err error) {
			found.buffer, err = manifest.OpenBuffer(ctx, found.store, new)
			return err
		})
		if err != nil {
			return place{}, err
		}
		found.shard = uint32(max(r.config.Shard, 0))
		if r.config.Shard < 0 {
			found.shard = r.environment.below(found.buffer.Shards)
		}
		if shards := found.buffer.Shards; found.shard >= shards {
			return place{}, fmt.Errorf("shard %d does not exist: the buffer %s has the shards 0 to %d", found.shard, found.store.URL(), shards-1)
		}
		return found, nil
	}
}

// Opened waits until the buffer is open, and returns an OpenError if it never will be. If the context ends first, the
// error describes what the producer is waiting for; opening continues.
func (p *Producer) Opened(ctx context.Context) error { return p.current.Load().isOpen(ctx) }

// orNothing waits up to StartTimeout for the buffer to open, and stops the producer if it does not.
func (p *Producer) orNothing(ctx context.Context) (*Producer, error) {
	starting, end := p.resources.starting(ctx)
	defer end()
	if err := p.Opened(starting); err != nil {
		// Nothing was accepted, so Close neither waits nor loses anything.
		_ = p.Close(context.WithoutCancel(ctx))
		return nil, err
	}
	return p, nil
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

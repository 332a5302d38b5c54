package producer

import (
	"context"
	"fmt"
	"time"

	"millpond.dev/otel-exporter/internal/manifest"
	"millpond.dev/otel-exporter/internal/storage"
)

// growthInterval is the time between two looks at the buffer object. Each comes up to a quarter of it early, so that
// producers that began together do not look together.
const growthInterval = time.Minute

// followGrowth moves the producer when the buffer has more shards, until the context ends. No failed look or move ends
// the producer: the next look repeats it.
func (p *Producer) followGrowth(ctx context.Context) {
	pipeline := p.current.Load().pipeline
	if p.Opened(ctx) != nil {
		return
	}
	growth := growth{known: pipeline.buffer}
	for p.sleepUntilLook(ctx) {
		found, err := manifest.ReadBuffer(ctx, pipeline.store)
		if err == nil {
			err = growth.see(found, p.resources.environment.below)
		}
		if err == nil {
			p.resources.routes.set(found)
		}
		if err != nil {
			p.warn(ctx, "millpond: cannot look for new shards; the producer goes on with those that it knows and looks again", err)
		}
		if growth.target == nil {
			continue
		}
		if err := p.move(ctx, growth.known, *growth.target); err != nil {
			p.warn(ctx, "millpond: cannot move to a new shard; the producer keeps its shard and tries again", err)
			continue
		}
		growth.target = nil
	}
}

func (p *Producer) sleepUntilLook(ctx context.Context) bool {
	early := p.resources.environment.below(uint32(growthInterval.Milliseconds() / 4))
	return storage.Sleep(ctx, growthInterval-time.Duration(early)*time.Millisecond) == nil
}

// warn logs an error, unless the producer is closing.
func (p *Producer) warn(ctx context.Context, message string, err error) {
	if ctx.Err() == nil {
		p.resources.config.Logger.Warn(message, "reason", err)
	}
}

// growth is what a producer knows of the buffer's shards.
type growth struct {
	known  *manifest.Buffer // as last seen
	target *uint32          // the shard to move to; nil: the producer stays
}

// see draws a shard if the buffer has grown. The producer moves only to a new shard: each shard then gets the same share
// of the producers, and no more of them move than necessary. below returns a random number.
func (g *growth) see(found *manifest.Buffer, below func(uint32) uint32) error {
	switch {
	case found == nil:
		return fmt.Errorf("the object %s is gone", manifest.BufferKey)
	case found.ID != g.known.ID:
		return fmt.Errorf("%s belongs to another buffer, %s", manifest.BufferKey, found.ID)
	case found.Shards < g.known.Shards:
		return fmt.Errorf("%s shrank from %d shards to %d", manifest.BufferKey, g.known.Shards, found.Shards)
	case found.Shards > g.known.Shards:
		if drawn := below(found.Shards); drawn >= g.known.Shards {
			g.target = &drawn
		}
	}
	g.known = found
	return nil
}

// move opens the shard, sends new messages there, and waits until the old shard has what was accepted for it.
func (p *Producer) move(ctx context.Context, buffer *manifest.Buffer, shard uint32) error {
	old := p.current.Load()
	there := place{old.pipeline.store, buffer, shard}
	next := p.resources.begin(func(context.Context, *pipeline) (place, error) { return there, nil })
	opening, end := p.resources.starting(ctx)
	defer end()
	err := next.isOpen(opening)
	if err == nil {
		err = p.replace(old, next)
	}
	if err != nil {
		// It accepted nothing, so closing it neither waits nor loses anything.
		next.close(context.WithoutCancel(ctx), ErrClosed)
		return err
	}
	p.resources.config.Logger.Info("millpond: moved to another shard because the buffer has grown",
		"from", old.pipeline.shard, "to", shard, "shards", buffer.Shards)
	old.close(context.WithoutCancel(ctx), errMoved)
	p.leaving.Store(nil)
	return nil
}

// replace sends new messages to the next writer, unless the producer is closing.
func (p *Producer) replace(old, next *writer) error {
	p.moving.Lock()
	defer p.moving.Unlock()
	if p.closed {
		return ErrClosed
	}
	p.leaving.Store(old)
	p.current.Store(next)
	return nil
}

package producer

import (
	"fmt"
	"sync/atomic"

	"millpond.dev/otel-exporter/internal/manifest"
)

// routes are the streams whose rows belong to the shards of their keys. Only gateways read keys, so a producer refuses rows of
// these streams as soon as it knows the routes: consumers would not compare them with those of their shard.
type routes struct {
	known atomic.Pointer[manifest.Buffer]
}

func (r *routes) set(buffer *manifest.Buffer) { r.known.Store(buffer) }

// check returns an error if rows of a stream belong to other shards than the writer's.
func (r *routes) check(stream string, w *writer) error {
	buffer := r.known.Load()
	if buffer == nil {
		return nil
	}
	shards, routed := buffer.Routed[stream]
	if !routed || (shards == 1 && w.pipeline.writesTo(0)) {
		return nil
	}
	return fmt.Errorf("the buffer routes the rows of stream %s to %d shards by their keys (millpond buffer route): send them to a gateway", stream, shards)
}

// writesTo reports that the pipeline is open, and in this shard.
func (p *pipeline) writesTo(shard uint32) bool {
	select {
	case <-p.opened:
		return p.openError == nil && p.shard == shard
	default:
		return false
	}
}

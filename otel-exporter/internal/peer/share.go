package peer

import (
	"context"
	"time"

	"golang.org/x/sync/semaphore"
)

const (
	// othersShare: other producers and consumers may take this fraction of the memory.
	othersShare = 2
	// memoryWait: a request waits this long for memory, since its producer can also commit without this one.
	memoryWait = time.Second
)

// A share is the part of the memory that requests of others may take.
type share struct {
	memory Memory
	free   *semaphore.Weighted
	limit  int64
}

// newShare returns the part for requests, and the number of connections that the rest pays for: at most half of what
// others may take. Connections do not wait for the memory of requests, nor the other way round.
func newShare(memory Memory, connectionsMax int) (forRequests *share, connections int) {
	all := memory.Limit() / othersShare
	connections = int(max(min(int64(connectionsMax), all/2/connectionBytes), 1))
	limit := max(all-int64(connections)*connectionBytes, 0)
	return &share{memory, semaphore.NewWeighted(limit), limit}, connections
}

// A holding is the memory of one request. It is drawn from the share and from the memory itself.
type holding struct {
	of     *share
	shared int64 // of the share
	own    int64 // of the memory
}

// reserve draws more bytes, unless they stay taken.
func (h *holding) reserve(ctx context.Context, bytes int64) bool {
	if bytes > h.of.limit {
		return false
	}
	if !within(ctx, func(ctx context.Context) error { return h.of.free.Acquire(ctx, bytes) }) {
		return false
	}
	h.shared += bytes
	if !within(ctx, func(ctx context.Context) error { return h.of.memory.Reserve(ctx, bytes) }) {
		return false
	}
	h.own += bytes
	return true
}

// tryReserve draws bytes if nobody waits for them. Otherwise it takes nothing.
func (h *holding) tryReserve(bytes int64) bool {
	if !h.of.free.TryAcquire(bytes) {
		return false
	}
	h.shared += bytes
	if !h.of.memory.TryReserve(bytes) {
		return false
	}
	h.own += bytes
	return true
}

func within(ctx context.Context, reserve func(context.Context) error) bool {
	ctx, end := context.WithTimeout(ctx, memoryWait)
	defer end()
	return reserve(ctx) == nil
}

// handOver leaves the memory to somebody who gives it back. The share stays taken until release.
func (h *holding) handOver() (bytes int64) {
	bytes, h.own = h.own, 0
	return bytes
}

// release gives back what is left.
func (h *holding) release() {
	if h.own > 0 {
		h.of.memory.Release(h.own)
	}
	if h.shared > 0 {
		h.of.free.Release(h.shared)
	}
	h.own, h.shared = 0, 0
}

package producer

import (
	"context"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
)

// A budget limits the bytes held. It grants requests in order, so that small messages do not starve a large one, and
// never exceeds its limit.
type budget struct {
	free    *semaphore.Weighted
	limit   int64
	held    atomic.Int64
	maxWait time.Duration
}

func newBudget(limit int64, maxWait time.Duration) *budget {
	return &budget{free: semaphore.NewWeighted(limit), limit: limit, maxWait: maxWait}
}

// reserve draws bytes, or fails after the maximum wait.
func (b *budget) reserve(ctx context.Context, bytes int64) error {
	over := func() error { return &OverBudgetError{bytes, b.held.Load(), b.limit} }
	if bytes > b.limit {
		return over()
	}
	waiting, end := context.WithTimeout(ctx, b.maxWait)
	defer end()
	// The first try is for those who do not wait at all.
	if !b.free.TryAcquire(bytes) && b.free.Acquire(waiting, bytes) != nil {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		return over()
	}
	b.held.Add(bytes)
	return nil
}

// release returns bytes.
func (b *budget) release(bytes int64) {
	b.held.Add(-bytes)
	b.free.Release(bytes)
}

// tryReserve draws bytes if they are free now and nobody waits for them.
func (b *budget) tryReserve(bytes int64) bool {
	if !b.free.TryAcquire(bytes) {
		return false
	}
	b.held.Add(bytes)
	return true
}

// Reserve, TryReserve, Release and Limit make the budget the memory of the port for other producers: see peer.Memory.

func (b *budget) Reserve(ctx context.Context, bytes int64) error { return b.reserve(ctx, bytes) }

func (b *budget) TryReserve(bytes int64) bool { return b.tryReserve(bytes) }

func (b *budget) Release(bytes int64) { b.release(bytes) }

func (b *budget) Limit() int64 { return b.limit }

package producer

import (
	"context"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
)

// A budget is the bytes that may be held. It grants in the order of asking, so that a large message is not starved by
// small ones; it never grants more than its limit.
type budget struct {
	free    *semaphore.Weighted
	limit   int64
	held    atomic.Int64
	maxWait time.Duration
}

func newBudget(limit int64, maxWait time.Duration) *budget {
	return &budget{free: semaphore.NewWeighted(limit), limit: limit, maxWait: maxWait}
}

// reserve draws bytes; who gets none within the wait is refused.
func (b *budget) reserve(ctx context.Context, bytes int64) error {
	over := func() error { return &OverBudgetError{bytes, b.held.Load(), b.limit} }
	if bytes > b.limit {
		return over()
	}
	waiting, end := context.WithTimeout(ctx, b.maxWait)
	defer end()
	// The first try is for those who do not wait at all.
	if !b.free.TryAcquire(bytes) && b.free.Acquire(waiting, bytes) != nil {
		if err := ctx.Err(); err != nil {
			return err
		}
		return over()
	}
	b.held.Add(bytes)
	return nil
}

// release gives bytes back.
func (b *budget) release(bytes int64) {
	b.held.Add(-bytes)
	b.free.Release(bytes)
}

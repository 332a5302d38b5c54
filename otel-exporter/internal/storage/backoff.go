package storage

import (
	"context"
	"time"
)

// A Backoff says how long to wait before the next attempt: exponentially longer, with full jitter. The n-th wait is
// uniform between zero and Initial × 2ⁿ, at most Max. Full jitter spreads writers that failed together, which is what a
// contended compare-and-set needs.
type Backoff struct {
	Initial, Max time.Duration
	attempt      uint
}

// Next gives the next wait; uniform is a random number from 0 up to 1.
func (b *Backoff) Next(uniform float64) time.Duration {
	ceiling := b.Max
	// Past that the doubled wait is over the maximum, or over 64 bits.
	if b.attempt < 40 && b.Initial < b.Max>>b.attempt {
		ceiling = b.Initial << b.attempt
	}
	b.attempt++
	return time.Duration(float64(ceiling) * uniform)
}

// Sleep waits, or gives the context's error when that ends first.
func Sleep(ctx context.Context, wait time.Duration) error {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

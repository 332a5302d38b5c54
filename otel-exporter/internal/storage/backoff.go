package storage

import (
	"context"
	"time"
)

// A Backoff computes the wait before the next attempt: exponential, with full jitter. The n-th wait is uniform between
// zero and Initial × 2ⁿ, at most Max. Full jitter spreads out writers that failed together, as in a contended
// compare-and-set.
type Backoff struct {
	Initial, Max time.Duration
	attempt      uint
}

// Next returns the next wait; uniform is a random number in [0, 1).
func (b *Backoff) Next(uniform float64) time.Duration {
	ceiling := b.Max
	// From there on the doubled wait exceeds the maximum, or 64 bits.
	if b.attempt < 40 && b.Initial < b.Max>>b.attempt {
		ceiling = b.Initial << b.attempt
	}
	b.attempt++
	return time.Duration(float64(ceiling) * uniform)
}

// Sleep waits, or returns the context's error if the context ends first.
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

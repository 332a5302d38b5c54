package producer

import "sync/atomic"

// A flow counts what enters the pipeline, so that its end knows whether more is coming. It decides nothing.
type flow struct {
	messages atomic.Int64 // taken by the accumulator so far
	closed   atomic.Int64 // segments closed so far
}

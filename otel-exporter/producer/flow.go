package producer

import "sync/atomic"

// A flow counts what is in the pipeline, so that its stages know whether more is coming. It decides nothing.
type flow struct {
	waiting  atomic.Int64 // callers that wait for an answer
	messages atomic.Int64 // taken by the accumulator so far
	closed   atomic.Int64 // segments closed so far
}

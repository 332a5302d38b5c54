// Package producer appends messages to a Millpond buffer: it fills blocks, compresses them, puts them into segments,
// uploads those and commits them to the log of a shard with one compare-and-set. It needs nothing but the bucket, and
// speaks the same formats and the same protocol as `millpond gateway` (design/formats.md, design/protocols.md): any
// number of producers of both kinds share a buffer.
//
//	p, err := producer.Open(ctx, "s3://my-bucket/telemetry", producer.DefaultConfig())
//	if err != nil {
//		return err
//	}
//	defer p.Close(context.Background())
//	_, err = p.Append(ctx, producer.Message{
//		Stream:     "events.signup",
//		Encoding:   producer.NDJSON,
//		Payload:    []byte(`{"user":1}` + "\n"),
//		Records:    1,
//		ReceivedAt: time.Now(),
//	})
//
// Append returns when the message is in the log. It waits for its commit, a second or so with the default settings: call
// it from as many goroutines as there are messages under way. Order of commit is the order in which messages were
// accepted.
//
// # What Append says
//
//	answer                                            is it in the log   retry
//	nil, with the sequence                            yes, once          no
//	OverBudgetError, ErrClosed, NotCommittedError     no, never          yes
//	OutcomeUnknownError                               perhaps            only if a duplicate does less harm than a loss
//	RefusedError                                      no                 no
//
// OutcomeUnknownError comes when the caller's context ends before the commit, so give Append more time than a commit
// takes, or none to run out of. Else it needs two things at once: the store did not confirm a commit, and before the
// producer could look, the manifest had forgotten it (256 other producers and 24 hours without a commit, or 4,096
// others). It is also the answer when somebody else commits under the producer's id.
//
// # When the store is away
//
// Uploads and commits are tried again, with backoff and jitter, for as long as the process lives. Nothing that was
// accepted is dropped. MemoryLimit fills up and callers are refused with OverBudgetError: that is the backpressure.
// Waiting says what is waited for. Begin makes no exception of the start: what is appended before the store was ever
// reached is held in the same way. Open is for who would rather have an error after StartTimeout.
//
// MemoryLimit counts the bytes that the producer holds; Go's garbage collector lets the process grow to about twice that
// (GOGC, GOMEMLIMIT).
package producer

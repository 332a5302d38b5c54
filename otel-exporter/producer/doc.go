// Package producer appends messages to a Millpond buffer. It fills blocks, compresses them, combines them into segments,
// uploads those and commits them to the log of a shard with one compare-and-set. It needs nothing but the bucket. It
// speaks the same formats and protocol as `millpond gateway` (design/formats.md, design/protocols.md), and any number of
// producers of both kinds can share a buffer.
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
// Append returns once the message is in the log. With the default settings that takes about a second: call it from one
// goroutine per message in flight. The log has messages in the order in which the producer accepted them.
//
// # Shards
//
// Without Config.Shard the producer draws a shard when it starts. About once a minute it looks whether the buffer has
// grown. If so, it may move to a new shard: new messages go there, and the old shard gets what was accepted before. No
// request fails because of a move. The order of messages holds within a shard.
//
// # Results of Append
//
//	answer                                            is it in the log   retry
//	nil, with the sequence                            yes, once          no
//	OverBudgetError, ErrClosed, NotCommittedError     no, never          yes
//	OutcomeUnknownError                               perhaps            only if a duplicate does less harm than a loss
//	RefusedError                                      no                 no
//
// OutcomeUnknownError means that the caller's context ended before the commit: give Append more time than a commit takes,
// or no deadline. Otherwise it needs two rare events at once: the store did not confirm a commit, and the manifest forgot
// the producer before it could look. That takes 256 other producers and 24 hours without a commit, or 4,096 other
// producers. Another producer that commits under the same ID also causes it.
//
// # When the store is away
//
// The producer retries uploads and commits with backoff and jitter for as long as the process lives, and drops nothing
// that it accepted. Once MemoryLimit is reached, Append fails with OverBudgetError: that is the backpressure. Waiting
// reports what the producer is waiting for. Begin treats an outage at the start the same way: it holds messages until it
// first reaches the store. Open returns an error after StartTimeout instead.
//
// MemoryLimit counts the bytes that the producer holds. Go's garbage collector lets the process grow to about twice that
// (GOGC, GOMEMLIMIT).
package producer

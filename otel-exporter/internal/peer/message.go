package peer

import (
	"time"

	"millpond.dev/otel-exporter/internal/manifest"
	"millpond.dev/otel-exporter/internal/segment"
)

// A Leader is a producer that commits for others.
type Leader struct {
	Address     string // host:port
	Certificate manifest.Fingerprint
}

// The requests of producers and of consumers.
const (
	commitPath = "/v1/commit"
	// numberedPath is the path for requests with clients that number theirs. Only gateways answer it.
	numberedPath = "/v1/commit-numbered"
	watchPath    = "/v1/watch"
	// contentType is that of a request and of a reply.
	contentType = "application/x-protobuf"
	// producerHeader names the producer that asks, as a UUID.
	producerHeader = "Millpond-Producer"
	// consumerHeader names the consumer that asks, shardHeader the shard, because a process may have producers in several,
	// and newerThanHeader the version that the consumer has.
	consumerHeader  = "Millpond-Consumer"
	shardHeader     = "Millpond-Shard"
	newerThanHeader = "Millpond-Newer-Than"
)

// A Request is the records of one number.
type Request struct {
	Producer manifest.ProducerID // that asks
	// Number is the number of its next commit. Whoever commits it, it enters the log at most once.
	Number uint64
	// Blocks or Segments, not both.
	Blocks   []Block               // for a segment of the leader, in their order
	Segments []manifest.NewSegment // in the store, in their order
}

// A Block is a block and its stream.
type Block struct {
	Stream   string
	Encoding segment.Encoding
	segment.EncodedBlock
}

// An Answer is the leader's answer.
type Answer struct {
	Refused *Refusal // nil: the records are in the log
	// FirstSequence is the sequence of the first segment with the records.
	FirstSequence uint64
	// ClosesAfter is the time until the leader closes its next segment, and ClosesEvery the interval of its segments.
	// ClosesEvery is 0 if the leader has no rhythm.
	ClosesAfter, ClosesEvery time.Duration
}

// A Reason is the reason of a refusal.
type Reason int

// The reasons of a refusal.
const (
	Invalid      Reason = iota // the request breaks a rule
	NotLeading                 // the producer does not lead
	Leaving                    // the leader stops
	OverBudget                 // the leader is short of memory
	HeldUp                     // the leader cannot reach the store
	Busy                       // the leader holds another number of the producer
	NotCommitted               // the leader gave the records up
)

// Refuse returns the answer of a producer that does not commit the records. The message is for the reasons Invalid,
// HeldUp and NotCommitted.
func Refuse(reason Reason, message string) *Answer {
	return &Answer{Refused: NewRefusal(reason, message)}
}

// NewRefusal returns a refusal: see Refuse.
func NewRefusal(reason Reason, message string) *Refusal { return &Refusal{reason, message} }

// A Refusal is the answer of a producer that does not commit the records. They are not in the log, as far as it knows.
type Refusal struct {
	Reason  Reason
	message string
}

func (r *Refusal) Error() string {
	switch r.Reason {
	case NotLeading:
		return "this producer does not lead"
	case Leaving:
		return "this producer is shutting down"
	case OverBudget:
		return "no memory for records of others"
	case HeldUp:
		return "this producer waits for the store: " + r.message
	case Busy:
		return "another number of the producer waits for its commit"
	case NotCommitted:
		return "not committed: " + r.message
	}
	return "refused: " + r.message
}

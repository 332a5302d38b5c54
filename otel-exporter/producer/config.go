package producer

import (
	"fmt"
	"log/slog"
	"math"
	"runtime"
	"time"

	"millpond.dev/otel-exporter/internal/manifest"
	"millpond.dev/otel-exporter/internal/segment"
	"millpond.dev/otel-exporter/internal/storage"
)

// Config controls how a producer batches, how much memory it uses, and how it reaches the store. Start from
// DefaultConfig.
type Config struct {
	// Linger is how long after its first message a segment closes at the latest, and over time the least between two
	// segments that are not full: a segment closes earlier while every caller waits (early_close.go). A segment that
	// fills up earlier may wait for the rest of its linger, uploads not counted, to share a commit. Default 1 s: this is most of the latency, and
	// limits a quiet producer to one PUT and one commit a second.
	// 0 commits every message at once.
	Linger time.Duration
	// SegmentBytes is the compressed size at which a segment closes before its linger ends. Default 16 MiB: above that a
	// PUT gets slower, not cheaper.
	SegmentBytes int
	// SegmentRawBytes is the raw size at which a segment closes. Default 128 MiB, for content that compresses extremely
	// well.
	SegmentRawBytes int
	// BlockBytes is the raw size of a block, the unit of compression. Default 1 MiB: larger blocks compress no better.
	BlockBytes int
	// MaxUploads is the number of concurrent uploads. Default 4: enough to fill the network while commits stay in order.
	MaxUploads int
	// CompressionLevel is the zstd level. Default 1, the fastest.
	CompressionLevel int
	// Encoders is the number of blocks compressed concurrently. Default: GOMAXPROCS, at most 64.
	Encoders int
	// MemoryLimit is the maximum size of uncommitted messages, blocks and segments, and of what their callers keep
	// (Message.HeldBytes). Default 256 MiB. When it is reached, Append waits.
	MemoryLimit int
	// MaxWait limits how long Append waits for memory. Default 10 s: shorter than the timeouts of OTLP clients. 0:
	// Append does not wait.
	MaxWait time.Duration
	// Shard is the shard to write to. Negative (the default): draw one at random, and follow the growth of the buffer.
	Shard int
	// Shards is the number of shards of a new buffer. Default 1.
	Shards int
	// TailMax is the number of entries in the manifest at which the next commit seals them into a page. Default 2,048: a
	// commit then moves at most 120 KB, whatever the backlog. At most 3,072.
	TailMax int
	// StartTimeout limits how long Open waits for the store. Default 30 s. Begin does not wait.
	StartTimeout time.Duration

	// FollowLeader lets the leader of the shard commit for this producer: a gateway with --peer-listen, or another
	// producer with PeerListen. Default false: this producer commits for itself. It commits for itself as well while
	// nobody leads, or if the leader fails it.
	FollowLeader bool
	// PeerListen is the IP address and port to listen on for other producers of the shard, and for consumers. This
	// producer may then lead: it commits for the others and tells consumers of commits. The connections use TLS, with
	// certificates that all know from the buffer. Default empty: it never leads.
	PeerListen string
	// Advertise is the HOST:PORT at which others reach PeerListen, for example the address of the pod. Default empty:
	// the address of PeerListen.
	Advertise string
	// ForwardBelow is the compressed size below which a segment is sent to the leader. The producer uploads larger
	// segments itself, and the leader commits them. Default 256 KiB: per second, a PUT costs as much as traffic of this size
	// between two zones. 0: nothing is sent.
	ForwardBelow int

	// S3Endpoint is the address of an S3 service other than AWS, for example http://127.0.0.1:9000. Default: the AWS
	// variables and profile.
	S3Endpoint string
	// S3Region is the S3 region. Default: the AWS variables and profile. Credentials always come from the AWS SDK's
	// default chain.
	S3Region string
	// AllowHTTP allows an S3 endpoint without TLS on another machine. Default false: the data would be readable on the
	// network.
	AllowHTTP bool
	// RequestTimeout limits one request to the store. Default 30 s; after that the producer looks up the outcome.
	RequestTimeout time.Duration
	// CreateBucket creates a missing bucket or directory. Default false: a typo should not create a bucket.
	CreateBucket bool

	// Logger gets one line per event that an operator would ask about. Nil: slog.Default().
	Logger *slog.Logger
	// Hooks receive durations. The producer's goroutines call them: they must not block.
	Hooks Hooks
}

// Hooks are called on events; each may be nil.
type Hooks struct {
	Closed    func(lingered time.Duration)           // a segment closed; time since its first message
	Uploaded  func(took time.Duration)               // a segment is in the store; time since the first attempt
	Committed func(took time.Duration, segments int) // a commit is in the log; time since the first attempt
}

// encodersMax limits the default of Encoders: with as many, half of the default MemoryLimit is in use at all times. 64
// encoders compress more than a network carries.
const encodersMax = 64

// DefaultConfig returns the defaults. Config's fields document the reasons.
func DefaultConfig() Config {
	return Config{
		Linger:           time.Second,
		SegmentBytes:     16 << 20,
		SegmentRawBytes:  128 << 20,
		BlockBytes:       1 << 20,
		MaxUploads:       4,
		CompressionLevel: 1,
		Encoders:         min(runtime.GOMAXPROCS(0), encodersMax),
		MemoryLimit:      256 << 20,
		MaxWait:          10 * time.Second,
		Shard:            -1,
		Shards:           1,
		TailMax:          manifest.TailMax,
		ForwardBelow:     256 << 10,
		StartTimeout:     30 * time.Second,
		RequestTimeout:   storage.RequestTimeout,
	}
}

// forwardBelowMax is the maximum of ForwardBelow: a leader takes requests with this much data and a little more.
const forwardBelowMax = 1 << 20

// tailMaxMax is the maximum of TailMax. A tail with one entry less takes another commit before it is sealed, and readers
// must accept the result. A leader's commit may exceed its usual number of segments by those of a follower.
const tailMaxMax = manifest.EntriesMax - 2*commitSegmentsMax

// workingMemory is always in use: each encoder has room for a block and its compressed form.
func (c *Config) workingMemory() int { return 2 * c.Encoders * c.BlockBytes }

// Check returns an error that names the first invalid setting.
func (c *Config) Check() error {
	const gib = 1 << 30
	for _, rule := range []struct {
		setting            string
		found, least, most int
		rule               string
	}{
		{"block_bytes", c.BlockBytes, 1, int(segment.DefaultLimits().BlockRawMax), "use 1 byte to 64 MiB"},
		{"segment_bytes", c.SegmentBytes, 1, gib / 2, "use 1 byte to 512 MiB"},
		{"segment_raw_bytes", c.SegmentRawBytes, 1, gib / 2, "use 1 byte to 512 MiB"},
		{"segment_raw_bytes / block_bytes", c.SegmentRawBytes / max(c.BlockBytes, 1), 0, 30_000, "use at most 30,000 blocks in a segment"},
		{"tail_max", c.TailMax, 1, tailMaxMax, "use 1 to 3,072"},
		{"forward_below", c.ForwardBelow, 0, forwardBelowMax, "use at most 1 MiB: larger segments are cheaper to upload"},
		{"max_uploads", c.MaxUploads, 1, 1024, "use 1 to 1024"},
		{"encoders", c.Encoders, 1, 1024, "use 1 to 1024"},
		{"compression_level", c.CompressionLevel, 1, 22, "use 1 to 22"},
		{"shard", c.Shard, -1, manifest.ShardsMax - 1, "use 0 to 9,999, or leave it out"},
		{"shards", c.Shards, 1, manifest.ShardsMax, "use 1 to 10,000"},
		{"memory_limit", c.MemoryLimit, c.workingMemory() + c.BlockBytes, math.MaxInt,
			"use at least (2 × encoders + 1) × block_bytes: the encoders hold all but one of them at all times"},
	} {
		if rule.found < rule.least || rule.found > rule.most {
			return fmt.Errorf("%s is %d: %s", rule.setting, rule.found, rule.rule)
		}
	}
	for _, wait := range []struct {
		setting      string
		found, least time.Duration
		rule         string
	}{
		{"linger", c.Linger, 0, "use a time, like 1s"},
		{"max_wait", c.MaxWait, 0, "use a time, like 1s"},
		{"request_timeout", c.RequestTimeout, 1, "use a time above zero, like 1s"},
		{"start_timeout", c.StartTimeout, 1, "use a time above zero, like 1s"},
	} {
		if wait.found < wait.least {
			return fmt.Errorf("%s is %s: %s", wait.setting, wait.found, wait.rule)
		}
	}
	return c.checkPeers()
}

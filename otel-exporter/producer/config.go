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

// Config says how a producer batches, how much it may hold, and how it reaches the store. Start from DefaultConfig.
type Config struct {
	// Linger is how long after its first message a segment closes at the latest; and how long after it a segment that was
	// full before may wait for others that share its commit, the upload not counted. 1 s: most of the latency; one PUT
	// and one commit a second is what a producer costs at least. 0 commits every message at once.
	Linger time.Duration
	// SegmentBytes are the compressed bytes at which a segment closes before its linger is over. 16 MiB: past that a PUT
	// gets slower, not cheaper.
	SegmentBytes int
	// SegmentRawBytes are the raw bytes at which a segment closes. 128 MiB, for content that compresses extremely well.
	SegmentRawBytes int
	// BlockBytes are the raw bytes of a block, the unit of compression. 1 MiB: larger blocks compress no better.
	BlockBytes int
	// MaxUploads is how many segments are uploaded at a time. 4: enough to fill the network while commits stay in order.
	MaxUploads int
	// CompressionLevel is zstd's. 1: the fastest.
	CompressionLevel int
	// Encoders is how many blocks are compressed at the same time. The number of processors that Go uses.
	Encoders int
	// MemoryLimit is how many bytes the producer may hold: messages, blocks and segments that are not committed yet.
	// 256 MiB. Who calls Append when it is full waits.
	MemoryLimit int
	// MaxWait is how long Append waits for memory before it is refused. 10 s: within the patience of OTLP clients. 0: not
	// at all.
	MaxWait time.Duration
	// Shard is the shard to write to; negative (the default) draws one at random.
	Shard int
	// Shards is how many shards a buffer gets that does not exist yet. 1.
	Shards int
	// TailMax is the number of entries in the manifest at which the next commit seals them into a page. 2,048: a commit
	// then moves 120 KB at most, whatever the backlog.
	TailMax int
	// StartTimeout is how long Open waits for the store. 30 s. Begin does not wait.
	StartTimeout time.Duration

	// S3Endpoint is the S3 service's address when it is not AWS, http://127.0.0.1:9000 for instance. Without it the AWS
	// variables and profile are asked.
	S3Endpoint string
	// S3Region is the S3 region. Without it the AWS variables and the profile are asked. Credentials always
	// come from the AWS SDK's own chain.
	S3Region string
	// AllowHTTP allows an S3 endpoint without TLS on another machine. Off: what is sent would be readable on the way.
	AllowHTTP bool
	// RequestTimeout is the longest that one request to the store may take. 30 s: past that its outcome is looked up.
	RequestTimeout time.Duration
	// CreateBucket makes the bucket or the directory when it is missing. Off: a typing error should not make a bucket.
	CreateBucket bool

	// Logger gets one line per thing that an operator would ask about. Nil: slog.Default().
	Logger *slog.Logger
	// Hooks are told how long things took. They are called from the producer's own goroutines: they must not block.
	Hooks Hooks
}

// Hooks are called as things happen; each may be nil.
type Hooks struct {
	Closed    func(lingered time.Duration)           // a segment closed, so long after its first message
	Uploaded  func(took time.Duration)               // a segment is in the store, so long after the first attempt
	Committed func(took time.Duration, segments int) // a commit is in the log, so long after the first attempt
}

// DefaultConfig gives the defaults, whose reasons are at Config's fields.
func DefaultConfig() Config {
	return Config{
		Linger:           time.Second,
		SegmentBytes:     16 << 20,
		SegmentRawBytes:  128 << 20,
		BlockBytes:       1 << 20,
		MaxUploads:       4,
		CompressionLevel: 1,
		Encoders:         runtime.GOMAXPROCS(0),
		MemoryLimit:      256 << 20,
		MaxWait:          10 * time.Second,
		Shard:            -1,
		Shards:           1,
		TailMax:          manifest.TailMax,
		StartTimeout:     30 * time.Second,
		RequestTimeout:   storage.RequestTimeout,
	}
}

// workingMemory is what is held whatever happens: in each encoder, room for a block and to compress it into.
func (c *Config) workingMemory() int { return 2 * c.Encoders * c.BlockBytes }

// Check gives an error that names the first setting that makes no sense.
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
		{"tail_max", c.TailMax, 1, 65_536, "use 1 to 65,536"},
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
	return nil
}

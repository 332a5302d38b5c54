package millpondexporter

import (
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/config/configoptional"
	"go.opentelemetry.io/collector/config/configretry"
	"go.opentelemetry.io/collector/exporter/exporterhelper"

	"millpond.dev/otel-exporter/producer"
)

// Config holds the settings of the exporter. Producer settings have the names, meanings and defaults of `millpond
// config gateway`, which prints the reasons; so does producer.Config.
type Config struct {
	TimeoutConfig exporterhelper.TimeoutConfig                             `mapstructure:",squash"`
	QueueConfig   configoptional.Optional[exporterhelper.QueueBatchConfig] `mapstructure:"sending_queue"`
	RetryConfig   configretry.BackOffConfig                                `mapstructure:"retry_on_failure"`

	// Buffer is the buffer's URL: s3://bucket/prefix or file:///directory. Only the gateway supports Google's and Azure's
	// stores.
	Buffer           string        `mapstructure:"buffer"`
	S3Endpoint       string        `mapstructure:"s3_endpoint"`
	S3Region         string        `mapstructure:"s3_region"`
	AllowHTTP        bool          `mapstructure:"allow_http"`
	RequestTimeout   time.Duration `mapstructure:"request_timeout"`
	CreateBucket     bool          `mapstructure:"create_bucket"`
	Linger           time.Duration `mapstructure:"linger"`
	SegmentBytes     Size          `mapstructure:"segment_bytes"`
	SegmentRawBytes  Size          `mapstructure:"segment_raw_bytes"`
	BlockBytes       Size          `mapstructure:"block_bytes"`
	MaxUploads       int           `mapstructure:"max_uploads"`
	CompressionLevel int           `mapstructure:"compression_level"`
	MemoryLimit      Size          `mapstructure:"memory_limit"`
	MaxWait          time.Duration `mapstructure:"max_wait"`
	Shard            *int          `mapstructure:"shard"`
	Shards           int           `mapstructure:"shards"`
	TailMax          int           `mapstructure:"tail_max"`
	Peers            PeersConfig   `mapstructure:"peers"`
	// DrainTimeout is the time limit for a stopping exporter to commit what it has accepted.
	DrainTimeout time.Duration `mapstructure:"drain_timeout"`

	// prevent unkeyed literal initialization
	_ struct{}
}

// PeersConfig holds the settings of shared commits.
type PeersConfig struct {
	// Enabled lets the leader of the shard, a gateway or another Collector, commit for this exporter. Default: false, it
	// commits for itself.
	Enabled bool `mapstructure:"enabled"`
	// Listen is the IP address and port for other producers of the shard, and for consumers. The exporter may then lead:
	// it commits for them. Default: empty, it never leads.
	Listen string `mapstructure:"listen"`
	// Advertise is the HOST:PORT at which others reach Listen. Default: empty, the address of Listen.
	Advertise string `mapstructure:"advertise"`
	// ForwardBelow is the compressed size below which a segment is sent to the leader instead of being uploaded.
	ForwardBelow Size `mapstructure:"forward_below"`

	// prevent unkeyed literal initialization
	_ struct{}
}

// numConsumers is the default number of requests that wait for their commits concurrently. Each waits a second or more,
// so exporterhelper's default of ten is too low.
const numConsumers = 100

func createDefaultConfig() component.Config {
	queue := exporterhelper.NewDefaultQueueConfig()
	queue.NumConsumers = numConsumers
	// No timeout: the producer will commit a request that it has accepted, so a retry after a timeout would duplicate it.
	timeout := exporterhelper.NewDefaultTimeoutConfig()
	timeout.Timeout = 0
	// No limit on retries: a store may be away for longer than five minutes. Then the queue fills up and the sender
	// notices, instead of the exporter dropping data.
	retry := configretry.NewDefaultBackOffConfig()
	retry.MaxElapsedTime = 0
	defaults := producer.DefaultConfig()
	return &Config{
		TimeoutConfig:    timeout,
		QueueConfig:      configoptional.Some(queue),
		RetryConfig:      retry,
		RequestTimeout:   defaults.RequestTimeout,
		Linger:           defaults.Linger,
		SegmentBytes:     Size(defaults.SegmentBytes),
		SegmentRawBytes:  Size(defaults.SegmentRawBytes),
		BlockBytes:       Size(defaults.BlockBytes),
		MaxUploads:       defaults.MaxUploads,
		CompressionLevel: defaults.CompressionLevel,
		MemoryLimit:      Size(defaults.MemoryLimit),
		MaxWait:          defaults.MaxWait,
		Shards:           defaults.Shards,
		TailMax:          defaults.TailMax,
		Peers:            PeersConfig{ForwardBelow: Size(defaults.ForwardBelow)},
		DrainTimeout:     30 * time.Second,
	}
}

// Validate returns an error for the first invalid setting.
func (c *Config) Validate() error {
	if c.Buffer == "" {
		return errors.New("buffer is missing: set it to the buffer's URL, like s3://bucket/prefix")
	}
	if err := producer.CheckURL(c.Buffer); err != nil {
		return fmt.Errorf("buffer: %w", err)
	}
	if c.Shard != nil && *c.Shard < 0 {
		return fmt.Errorf("shard is %d: use 0 to 9,999, or leave it out", *c.Shard)
	}
	if c.DrainTimeout <= 0 {
		return fmt.Errorf("drain_timeout is %s: use a time above zero, like 30s", c.DrainTimeout)
	}
	config := c.producer()
	return config.Check()
}

func (c *Config) producer() producer.Config {
	config := producer.DefaultConfig()
	config.S3Endpoint = c.S3Endpoint
	config.S3Region = c.S3Region
	config.AllowHTTP = c.AllowHTTP
	config.RequestTimeout = c.RequestTimeout
	config.CreateBucket = c.CreateBucket
	config.Linger = c.Linger
	config.SegmentBytes = int(c.SegmentBytes)
	config.SegmentRawBytes = int(c.SegmentRawBytes)
	config.BlockBytes = int(c.BlockBytes)
	config.MaxUploads = c.MaxUploads
	config.CompressionLevel = c.CompressionLevel
	config.MemoryLimit = int(c.MemoryLimit)
	config.MaxWait = c.MaxWait
	if c.Shard != nil {
		config.Shard = *c.Shard
	}
	config.Shards = c.Shards
	config.TailMax = c.TailMax
	config.FollowLeader = c.Peers.Enabled
	config.PeerListen = c.Peers.Listen
	config.Advertise = c.Peers.Advertise
	config.ForwardBelow = int(c.Peers.ForwardBelow)
	return config
}

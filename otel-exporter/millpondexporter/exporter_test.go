package millpondexporter

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componentstatus"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/config/configoptional"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/consumer/consumererror"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/exporter/exporterhelper"
	"go.opentelemetry.io/collector/exporter/exportertest"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/plog/plogotlp"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/pdata/ptrace/ptraceotlp"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/metric/metricdata/metricdatatest"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"millpond.dev/otel-exporter/internal/manifest"
	"millpond.dev/otel-exporter/internal/segment"
	"millpond.dev/otel-exporter/internal/storage"
	"millpond.dev/otel-exporter/millpondexporter/internal/metadata"
	"millpond.dev/otel-exporter/millpondexporter/internal/metadatatest"
)

// direct configures an exporter without queue and retries, which answers with the commit.
func direct(t *testing.T) (*Config, string) {
	directory := t.TempDir()
	config := createDefaultConfig().(*Config)
	config.Buffer = "file://" + directory
	config.Linger = 20 * time.Millisecond
	config.QueueConfig = configoptional.None[exporterhelper.QueueBatchConfig]()
	config.RetryConfig.Enabled = false
	return config, directory
}

func started[T component.Component](t *testing.T, config *Config, create func(context.Context, exporter.Settings, component.Config) (T, error)) T {
	t.Helper()
	made, err := create(t.Context(), exportertest.NewNopSettings(metadata.Type), config)
	require.NoError(t, err)
	require.NoError(t, made.Start(t.Context(), componenttest.NewNopHost()))
	return made
}

// stored is a stored message with the manifest's description of its part.
type stored struct {
	stream  string
	payload []byte
	part    manifest.Part
}

// read returns the messages in the log of a buffer.
func read(t *testing.T, directory string) []stored {
	t.Helper()
	store, err := storage.Open(t.Context(), "file://"+directory, storage.Options{})
	require.NoError(t, err)
	snapshot, err := manifest.Read(t.Context(), store, 0)
	require.NoError(t, err)
	require.NotNil(t, snapshot)
	decompressor, err := segment.NewDecompressor()
	require.NoError(t, err)
	var log []stored
	for _, entry := range snapshot.State.Tail {
		object, _, _, err := store.Get(t.Context(), manifest.SegmentKey(0, entry.Segment))
		require.NoError(t, err)
		for _, part := range entry.Parts {
			stream := snapshot.State.Streams[part.Stream]
			assert.Equal(t, segment.OTLP, stream.Encoding)
			blocks, err := segment.Blocks(object[part.Offset:part.Offset+part.Length], part.Offset, segment.DefaultLimits())
			require.NoError(t, err)
			for i := range blocks {
				messages, err := decompressor.Decode(&blocks[i])
				require.NoError(t, err)
				for _, message := range messages {
					log = append(log, stored{stream.Name, bytes.Clone(message.Payload), part})
				}
			}
		}
	}
	return log
}

func someLogs(count int) plog.Logs {
	logs := plog.NewLogs()
	records := logs.ResourceLogs().AppendEmpty().ScopeLogs().AppendEmpty().LogRecords()
	for range count {
		records.AppendEmpty().Body().SetStr("hello")
	}
	return logs
}

func someTraces(count int) ptrace.Traces {
	traces := ptrace.NewTraces()
	spans := traces.ResourceSpans().AppendEmpty().ScopeSpans().AppendEmpty().Spans()
	for range count {
		spans.AppendEmpty().SetName("work")
	}
	return traces
}

func someMetrics(points int) pmetric.Metrics {
	metrics := pmetric.NewMetrics()
	gauge := metrics.ResourceMetrics().AppendEmpty().ScopeMetrics().AppendEmpty().Metrics().AppendEmpty().SetEmptyGauge()
	for range points {
		gauge.DataPoints().AppendEmpty().SetIntValue(1)
	}
	return metrics
}

func TestEachSignalIsAStreamOfItsRequests(t *testing.T) {
	config, directory := direct(t)
	factory := NewFactory()
	logs := started(t, config, factory.CreateLogs)
	traces := started(t, config, factory.CreateTraces)
	metrics := started(t, config, factory.CreateMetrics)

	require.NoError(t, logs.ConsumeLogs(t.Context(), someLogs(3)))
	require.NoError(t, traces.ConsumeTraces(t.Context(), someTraces(4)))
	require.NoError(t, metrics.ConsumeMetrics(t.Context(), someMetrics(5)))

	// The log has them now, before any shutdown.
	log := read(t, directory)
	require.Len(t, log, 3)
	wanted, err := plogotlp.NewExportRequestFromLogs(someLogs(3)).MarshalProto()
	require.NoError(t, err)
	assert.Equal(t, stored{"otlp.logs", wanted, log[0].part}, log[0])
	assert.EqualValues(t, 3, log[0].part.Records)
	wanted, err = ptraceotlp.NewExportRequestFromTraces(someTraces(4)).MarshalProto()
	require.NoError(t, err)
	assert.Equal(t, stored{"otlp.traces", wanted, log[1].part}, log[1])
	assert.EqualValues(t, 4, log[1].part.Records)
	wanted, err = pmetricotlp.NewExportRequestFromMetrics(someMetrics(5)).MarshalProto()
	require.NoError(t, err)
	assert.Equal(t, stored{"otlp.metrics", wanted, log[2].part}, log[2])
	assert.EqualValues(t, 5, log[2].part.Records)

	// The signals share one producer, which closes with the last of them.
	require.NoError(t, logs.Shutdown(t.Context()))
	require.NoError(t, traces.ConsumeTraces(t.Context(), someTraces(1)))
	require.NoError(t, traces.Shutdown(t.Context()))
	require.NoError(t, metrics.ConsumeMetrics(t.Context(), someMetrics(1)))
	require.NoError(t, metrics.Shutdown(t.Context()))
	assert.Len(t, read(t, directory), 5)
	assert.Empty(t, shared)
	store, err := storage.Open(t.Context(), "file://"+directory, storage.Options{})
	require.NoError(t, err)
	snapshot, err := manifest.Read(t.Context(), store, 0)
	require.NoError(t, err)
	assert.Len(t, snapshot.State.Producers, 1)
}

func TestAStoppingExporterCommitsWhatItsQueueHas(t *testing.T) {
	config, directory := direct(t)
	queue := exporterhelper.NewDefaultQueueConfig()
	queue.NumConsumers = 3
	config.QueueConfig = configoptional.Some(queue)
	logs := started(t, config, NewFactory().CreateLogs)
	for range 50 {
		require.NoError(t, logs.ConsumeLogs(t.Context(), someLogs(2)))
	}
	require.NoError(t, logs.Shutdown(t.Context()))
	assert.Len(t, read(t, directory), 50)
}

func TestAStopDoesNotWaitForAStoreThatIsAwayForEver(t *testing.T) {
	config, directory := direct(t)
	config.DrainTimeout = 50 * time.Millisecond
	logs := started(t, config, NewFactory().CreateLogs)
	require.NoError(t, logs.ConsumeLogs(t.Context(), someLogs(1)))
	// Another process holds the lock, so no commit gets an answer.
	lock, err := os.OpenFile(filepath.Join(directory, ".millpond-lock#0"), os.O_WRONLY, 0)
	require.NoError(t, err)
	defer lock.Close()
	require.NoError(t, syscall.Flock(int(lock.Fd()), syscall.LOCK_EX))
	told := make(chan error)
	go func() { told <- logs.ConsumeLogs(t.Context(), someLogs(1)) }()
	producer := shared[config].producer
	require.Eventually(t, func() bool { return producer.Stats().SegmentsUncommitted == 1 }, time.Minute, time.Millisecond)
	require.ErrorContains(t, logs.Shutdown(t.Context()), "records that were not reported as sent may be lost")
	err = <-told
	require.Error(t, err)
	assert.False(t, consumererror.IsPermanent(err))

	// The producer still commits what it accepted: that is why the answer was not a plain no.
	require.NoError(t, syscall.Flock(int(lock.Fd()), syscall.LOCK_UN))
	require.NoError(t, producer.Close(t.Context()))
	assert.Len(t, read(t, directory), 2)
}

func TestPermanentErrorsAreToldApart(t *testing.T) {
	config, _ := direct(t)
	config.BlockBytes, config.SegmentRawBytes = 1<<10, 1<<20
	config.MemoryLimit = 1 << 20
	logs := started(t, config, NewFactory().CreateLogs)
	giant := plog.NewLogs()
	giant.ResourceLogs().AppendEmpty().ScopeLogs().AppendEmpty().LogRecords().AppendEmpty().
		Body().SetStr(strings.Repeat("x", 1<<20))
	err := logs.ConsumeLogs(t.Context(), giant)
	require.ErrorContains(t, err, "is over the limit")
	assert.True(t, consumererror.IsPermanent(err))

	// A disconnected client is not a permanent error: a retry may succeed.
	gone, leave := context.WithCancel(t.Context())
	leave()
	err = logs.ConsumeLogs(gone, someLogs(1))
	require.ErrorIs(t, err, context.Canceled)
	assert.False(t, consumererror.IsPermanent(err))
	require.NoError(t, logs.Shutdown(t.Context()))
}

func TestAFailedStartReportsTheReasonAndLeavesNothing(t *testing.T) {
	config, _ := direct(t)
	config.Buffer = "file://" + filepath.Join(t.TempDir(), "missing")
	logs, err := NewFactory().CreateLogs(t.Context(), exportertest.NewNopSettings(metadata.Type), config)
	require.NoError(t, err)
	err = logs.Start(t.Context(), componenttest.NewNopHost())
	require.ErrorContains(t, err, "create it, or set create_bucket")
	require.NoError(t, logs.Shutdown(t.Context()))
	assert.Empty(t, shared)
}

// A statusHost remembers the last status of a component.
type statusHost struct {
	component.Host
	reported chan *componentstatus.Event
}

func (h *statusHost) Report(event *componentstatus.Event) { h.reported <- event }

// tests/test_otel_exporter.py covers a real store that comes late, and one that turns out to be misconfigured.
func TestAStoreThatIsAwayKeepsNeitherTheCollectorFromStartingNorFromStopping(t *testing.T) {
	// This listener accepts no connections.
	silence, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer silence.Close()
	for variable, value := range map[string]string{
		"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true",
	} {
		t.Setenv(variable, value)
	}
	config, _ := direct(t)
	config.Buffer, config.S3Endpoint = "s3://bucket/prefix", "http://"+silence.Addr().String()
	logs, err := NewFactory().CreateLogs(t.Context(), exportertest.NewNopSettings(metadata.Type), config)
	require.NoError(t, err)
	host := &statusHost{componenttest.NewNopHost(), make(chan *componentstatus.Event, 1)}
	starting, end := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer end()
	require.NoError(t, logs.Start(starting, host))
	event := <-host.reported
	assert.Equal(t, componentstatus.StatusRecoverableError, event.Status())
	require.ErrorContains(t, event.Err(), "the buffer is not open yet")
	require.NoError(t, logs.Shutdown(t.Context()))
	assert.Empty(t, shared)
	assert.Empty(t, host.reported)
}

func TestTheTelemetryIsTheProducers(t *testing.T) {
	config, _ := direct(t)
	shard := 2
	config.Shards, config.Shard = 3, &shard
	telemetry := componenttest.NewTelemetry()
	defer func() { require.NoError(t, telemetry.Shutdown(context.Background())) }()
	settings := exportertest.NewNopSettings(metadata.Type)
	settings.TelemetrySettings = telemetry.NewTelemetrySettings()
	logs, err := NewFactory().CreateLogs(t.Context(), settings, config)
	require.NoError(t, err)
	require.NoError(t, logs.Start(t.Context(), componenttest.NewNopHost()))
	require.NoError(t, logs.ConsumeLogs(t.Context(), someLogs(7)))
	metadatatest.AssertEqualMillpondRecords(t, telemetry,
		[]metricdata.DataPoint[int64]{{Value: 7}}, metricdatatest.IgnoreTimestamp())
	metadatatest.AssertEqualMillpondShard(t, telemetry,
		[]metricdata.DataPoint[int64]{{Value: 2}}, metricdatatest.IgnoreTimestamp())
	// The answer may precede the recording of its duration; the shutdown waits for it.
	require.NoError(t, logs.Shutdown(t.Context()))
	commits, err := telemetry.GetMetric("otelcol_millpond.commit.duration")
	require.NoError(t, err)
	assert.Equal(t, "s", commits.Unit)
}

func TestAnExporterWithAPortLeads(t *testing.T) {
	config, _ := direct(t)
	config.Peers = PeersConfig{Enabled: true, Listen: "127.0.0.1:0", ForwardBelow: 256 << 10}
	telemetry := componenttest.NewTelemetry()
	defer func() { require.NoError(t, telemetry.Shutdown(context.Background())) }()
	settings := exportertest.NewNopSettings(metadata.Type)
	settings.TelemetrySettings = telemetry.NewTelemetrySettings()
	logs, err := NewFactory().CreateLogs(t.Context(), settings, config)
	require.NoError(t, err)
	require.NoError(t, logs.Start(t.Context(), componenttest.NewNopHost()))
	require.NoError(t, logs.ConsumeLogs(t.Context(), someLogs(1)))
	value := func(wanted int64) []metricdata.DataPoint[int64] {
		return []metricdata.DataPoint[int64]{{Value: wanted}}
	}
	metadatatest.AssertEqualMillpondLeads(t, telemetry, value(1), metricdatatest.IgnoreTimestamp())
	metadatatest.AssertEqualMillpondWatchers(t, telemetry, value(0), metricdatatest.IgnoreTimestamp())
	metadatatest.AssertEqualMillpondWatchAnswers(t, telemetry, value(0), metricdatatest.IgnoreTimestamp())
	metadatatest.AssertEqualMillpondCommitsForOthers(t, telemetry, value(0), metricdatatest.IgnoreTimestamp())
	require.NoError(t, logs.Shutdown(t.Context()))
}

// listenBelowEphemeral listens on a port that the system gives to no outgoing connection (Linux: from 32768 on). One of
// these could take the port while a test has it closed. As in tests/harness, a UDP socket keeps other tests from it.
func listenBelowEphemeral(t *testing.T) net.Listener {
	t.Helper()
	for _, offset := range rand.Perm(32_768 - 10_240) {
		address := fmt.Sprintf("127.0.0.1:%d", 10_240+offset)
		reservation, err := net.ListenPacket("udp", address)
		if err != nil {
			continue
		}
		t.Cleanup(func() { _ = reservation.Close() })
		listener, err := net.Listen("tcp", address)
		if err == nil {
			return listener
		}
	}
	t.Fatal("no port is free")
	return nil
}

func TestAPortIsFreeAfterTheShutdownAndAfterAFailedStart(t *testing.T) {
	listener := listenBelowEphemeral(t)
	start := func(directory string) (exporter.Logs, error) {
		config, _ := direct(t)
		if directory != "" {
			config.Buffer = "file://" + directory
		}
		config.Peers = PeersConfig{Enabled: true, Listen: listener.Addr().String()}
		logs, err := NewFactory().CreateLogs(t.Context(), exportertest.NewNopSettings(metadata.Type), config)
		require.NoError(t, err)
		return logs, logs.Start(t.Context(), componenttest.NewNopHost())
	}
	logs, err := start("")
	require.ErrorContains(t, err, "address already in use")
	require.NoError(t, logs.Shutdown(t.Context()))
	require.NoError(t, listener.Close())

	logs, err = start(filepath.Join(t.TempDir(), "missing"))
	require.ErrorContains(t, err, "create it, or set create_bucket")
	require.NoError(t, logs.Shutdown(t.Context()))
	// As when the Collector reads its configuration again.
	for range 2 {
		logs, err = start("")
		require.NoError(t, err)
		require.NoError(t, logs.ConsumeLogs(t.Context(), someLogs(1)))
		require.NoError(t, logs.Shutdown(t.Context()))
	}
	assert.Empty(t, shared)
}

func TestSettingsAreReadAsPeopleWriteThem(t *testing.T) {
	config := createDefaultConfig().(*Config)
	given := confmap.NewFromStringMap(map[string]any{
		"buffer": "s3://b/p", "s3_endpoint": "https://minio", "s3_region": "x", "allow_http": true,
		"request_timeout": "7s", "create_bucket": true, "linger": "250ms", "segment_bytes": "8MiB",
		"segment_raw_bytes": 1 << 20, "block_bytes": "64KiB", "max_uploads": 2, "compression_level": 3,
		"memory_limit": "1GiB", "max_wait": "3s", "shard": 2, "shards": 4, "tail_max": 100, "drain_timeout": "5s",
		"timeout": "9s", "sending_queue": map[string]any{"enabled": false},
		"peers": map[string]any{
			"enabled": true, "listen": "0.0.0.0:4319", "advertise": "10.0.0.7:4319", "forward_below": "64KiB",
		},
	})
	require.NoError(t, given.Unmarshal(config))
	require.NoError(t, confmap.Validate(config))
	assert.False(t, config.QueueConfig.HasValue())
	assert.Equal(t, 9*time.Second, config.TimeoutConfig.Timeout)
	made := config.producer()
	assert.Equal(t, []any{8 << 20, 1 << 20, 64 << 10, 1 << 30, 2}, []any{
		made.SegmentBytes, made.SegmentRawBytes, made.BlockBytes, made.MemoryLimit, made.Shard,
	})
	assert.Equal(t, []any{250 * time.Millisecond, 7 * time.Second, 3 * time.Second, 2, 3, 4, 100, true, true}, []any{
		made.Linger, made.RequestTimeout, made.MaxWait, made.MaxUploads, made.CompressionLevel, made.Shards, made.TailMax,
		made.AllowHTTP, made.CreateBucket,
	})
	assert.True(t, made.FollowLeader)
	assert.Equal(t, []string{"0.0.0.0:4319", "10.0.0.7:4319"}, []string{made.PeerListen, made.Advertise})
	assert.Equal(t, 64<<10, made.ForwardBelow)
	alone := createDefaultConfig().(*Config).producer()
	assert.False(t, alone.FollowLeader)
	assert.Equal(t, []string{"", ""}, []string{alone.PeerListen, alone.Advertise})
	assert.Equal(t, 256<<10, alone.ForwardBelow)
	for _, wrong := range []map[string]any{
		{"peers": map[string]any{"address": "127.0.0.1:4319"}}, {"bufer": "s3://b/p"}, {"segment_bytes": "ten"}, {"linger": "soon"}, {"memory_limit": "1.5MiB"},
	} {
		require.Error(t, confmap.NewFromStringMap(wrong).Unmarshal(createDefaultConfig()), "%v", wrong)
	}
	for reason, wrong := range map[string]map[string]any{
		"buffer is missing": {},
		"buffer: \"bucket/prefix\" is not a buffer URL for this producer: it has no scheme": {"buffer": "bucket/prefix"},
		"it does not support Google's and Azure's stores; send to a `millpond gateway`":     {"buffer": "gs://bucket/prefix"},
		"shard is -1":         {"buffer": "s3://b", "shard": -1},
		"drain_timeout is 0s": {"buffer": "s3://b", "drain_timeout": "0s"},
		"max_uploads is 0":    {"buffer": "s3://b", "max_uploads": 0},
		"forward_below is 2097152: use at most 1 MiB": {
			"buffer": "s3://b", "peers": map[string]any{"enabled": true, "forward_below": "2MiB"},
		},
		"peers.listen is \"10.0.0.7:4319\" while peers.enabled is false": {
			"buffer": "s3://b", "peers": map[string]any{"listen": "10.0.0.7:4319"},
		},
		"peers.listen is \"10.0.0.7\": write an IP address and a port": {
			"buffer": "s3://b", "peers": map[string]any{"enabled": true, "listen": "10.0.0.7"},
		},
		"peers.listen 0.0.0.0:4319 does not say where others reach this producer: set peers.advertise": {
			"buffer": "s3://b", "peers": map[string]any{"enabled": true, "listen": "0.0.0.0:4319"},
		},
		"peers.advertise is \"10.0.0.7\": write HOST:PORT": {
			"buffer": "s3://b", "peers": map[string]any{"enabled": true, "listen": "0.0.0.0:4319", "advertise": "10.0.0.7"},
		},
		"memory_limit is 1048576": {"buffer": "s3://b", "memory_limit": "1MiB"},
	} {
		config := createDefaultConfig()
		require.NoError(t, confmap.NewFromStringMap(wrong).Unmarshal(config))
		require.ErrorContains(t, confmap.Validate(config), reason)
	}
}

func TestSizes(t *testing.T) {
	for text, wanted := range map[string]Size{
		"1000": 1000, "64KiB": 64 << 10, "16MiB": 16 << 20, "2GiB": 2 << 30, "1 MB": 1e6, "7B": 7, "0": 0,
	} {
		var size Size
		require.NoError(t, size.UnmarshalText([]byte(text)), text)
		assert.Equal(t, wanted, size)
		written, err := size.MarshalText()
		require.NoError(t, err)
		var again Size
		require.NoError(t, again.UnmarshalText(written))
		assert.Equal(t, size, again)
	}
	for _, text := range []string{"", "ten", "-1MiB", "1.5MiB", "99999999TiB", "MiB"} {
		var size Size
		err := size.UnmarshalText([]byte(text))
		require.ErrorContains(t, err, "write 1048576, 64KiB, 16MiB or 1GiB", text)
	}
}

// injecting is a core of the Collector, which adds attributes to each line.
type injecting struct {
	zapcore.Core
	dropped *[]string
}

func (i injecting) DropInjectedAttributes(attributes ...string) zapcore.Core {
	*i.dropped = append(*i.dropped, attributes...)
	return i.Core
}

func TestTheSharedProducerBelongsToNoSignal(t *testing.T) {
	config, _ := direct(t)
	settings := exportertest.NewNopSettings(metadata.Type)
	var dropped []string
	settings.Logger = zap.New(injecting{zapcore.NewNopCore(), &dropped})
	share(config, settings)
	defer delete(shared, config)
	assert.Equal(t, []string{"otelcol.signal"}, dropped)
}

// A request that waits for its commit counts with the memory that it takes, and not only with its compressed bytes.
func TestRequestsThatWaitCountTowardTheMemoryLimit(t *testing.T) {
	config, directory := direct(t)
	config.RequestTimeout = 100 * time.Millisecond
	logs := started(t, config, NewFactory().CreateLogs)
	require.NoError(t, logs.ConsumeLogs(t.Context(), someLogs(1)))
	lock, err := os.OpenFile(filepath.Join(directory, ".millpond-lock#0"), os.O_WRONLY, 0)
	require.NoError(t, err)
	require.NoError(t, syscall.Flock(int(lock.Fd()), syscall.LOCK_EX))
	told := make(chan error)
	request := benchmarked()
	wire, err := plogotlp.NewExportRequestFromLogs(request).MarshalProto()
	require.NoError(t, err)
	go func() { told <- logs.ConsumeLogs(t.Context(), request) }()
	p := shared[config].producer
	require.Eventually(t, func() bool { return p.Stats().SegmentsUncommitted == 1 && p.Waiting() != "" }, 10*time.Second, 10*time.Millisecond)
	assert.Greater(t, p.Stats().MemoryHeldBytes, int64(3*len(wire)))
	require.NoError(t, lock.Close())
	require.NoError(t, <-told)
	require.NoError(t, logs.Shutdown(t.Context()))
}

func TestACallerHearsThatTheDrainTimeoutIsOver(t *testing.T) {
	config, directory := direct(t)
	config.DrainTimeout = 50 * time.Millisecond
	config.RequestTimeout = 100 * time.Millisecond
	logs := started(t, config, NewFactory().CreateLogs)
	require.NoError(t, logs.ConsumeLogs(t.Context(), someLogs(1)))
	lock, err := os.OpenFile(filepath.Join(directory, ".millpond-lock#0"), os.O_WRONLY, 0)
	require.NoError(t, err)
	require.NoError(t, syscall.Flock(int(lock.Fd()), syscall.LOCK_EX))
	told := make(chan error)
	go func() { told <- logs.ConsumeLogs(t.Context(), someLogs(1)) }()
	p := shared[config].producer
	require.Eventually(t, func() bool { return p.Waiting() != "" }, 10*time.Second, 10*time.Millisecond)
	require.ErrorContains(t, logs.Shutdown(t.Context()), "no answer within 100ms")
	require.ErrorContains(t, <-told, "its drain_timeout is over")
	require.NoError(t, lock.Close())
	require.NoError(t, p.Close(t.Context()))
}

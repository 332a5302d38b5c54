package main

import (
	"github.com/open-telemetry/opentelemetry-collector-contrib/exporter/awss3exporter"
	"github.com/open-telemetry/opentelemetry-collector-contrib/exporter/kafkaexporter"
	"go.opentelemetry.io/collector/exporter"

	"millpond.dev/otel-exporter/millpondexporter"
)

// A place is the destination of a candidate.
type place struct {
	kafka string // address
	s3    string // URL
	name  string // bucket or topic
}

// A candidate is an exporter with its settings. Without a factory it is one step of the work, measured by itself.
type candidate struct {
	name     string
	factory  func() exporter.Factory
	settings func(place) map[string]any
	alone    func() func(batch) error
	gathered bool // receives all records in one call instead of one request at a time
}

// callers is the number of concurrent requests: the default of Millpond's sending_queue.num_consumers.
func (c candidate) callers() int {
	if c.gathered {
		return 4
	}
	return 100
}

// millpondName is the baseline of the comparison.
const millpondName = "millpond, zstd level 1"

var candidates = []candidate{
	{name: "marshalling alone", alone: marshalling},
	{name: "zstd level 1 alone", alone: compressing},
	{name: millpondName, factory: millpondexporter.NewFactory, settings: millpondSettings},
	{name: "kafka, zstd level 1", factory: kafkaexporter.NewFactory, settings: kafkaSettings("zstd", 1)},
	{name: "kafka, snappy", factory: kafkaexporter.NewFactory, settings: kafkaSettings("snappy", 0)},
	{name: "awss3, zstd", factory: awss3exporter.NewFactory, settings: s3Settings("zstd"), gathered: true},
	{name: "awss3, gzip", factory: awss3exporter.NewFactory, settings: s3Settings("gzip"), gathered: true},
	{name: "awss3, uncompressed", factory: awss3exporter.NewFactory, settings: s3Settings(""), gathered: true},
}

// withoutQueue disables the sending queue, so that callers wait for the answer and see its error.
func withoutQueue(settings map[string]any) map[string]any {
	settings["sending_queue"] = map[string]any{"enabled": false}
	settings["retry_on_failure"] = map[string]any{"enabled": false}
	return settings
}

func millpondSettings(place place) map[string]any {
	return withoutQueue(map[string]any{
		"buffer": "s3://" + place.name + "/buffer", "s3_endpoint": place.s3, "create_bucket": true,
	})
}

// kafkaSettings waits for the broker's log, as Millpond waits for the commit. One partition has the order of one shard.
func kafkaSettings(compression string, level int) func(place) map[string]any {
	return func(place place) map[string]any {
		producer := map[string]any{"required_acks": "all", "compression": compression}
		if level > 0 {
			producer["compression_params"] = map[string]any{"level": level}
		}
		return withoutQueue(map[string]any{
			"brokers": []any{place.kafka}, "timeout": "60s", "producer": producer,
			"logs": map[string]any{"topic": place.name, "encoding": "otlp_proto"},
		})
	}
}

// s3Settings writes one object per call: this exporter leaves batching to others, so it receives batched input.
func s3Settings(compression string) func(place) map[string]any {
	return func(place place) map[string]any {
		uploader := map[string]any{
			"region": "us-east-1", "endpoint": place.s3, "s3_bucket": place.name, "s3_force_path_style": true, "disable_ssl": true,
		}
		if compression != "" {
			uploader["compression"] = compression
		}
		return withoutQueue(map[string]any{"s3uploader": uploader, "marshaler": "otlp_proto", "timeout": "60s"})
	}
}

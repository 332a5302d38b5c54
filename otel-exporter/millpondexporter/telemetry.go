package millpondexporter

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"millpond.dev/otel-exporter/millpondexporter/internal/metadata"
	"millpond.dev/otel-exporter/producer"
)

const signalAttribute = "otelcol.signal"

// withoutSignal removes the signal that the Collector adds to logs and metrics: the producer serves all signals. The
// Collector's own receivers do the same, by a function that is internal to it.
func withoutSignal(settings component.TelemetrySettings) component.TelemetrySettings {
	settings.Logger = settings.Logger.WithOptions(zap.WrapCore(func(core zapcore.Core) zapcore.Core {
		if injector, is := core.(interface{ DropInjectedAttributes(...string) zapcore.Core }); is {
			return injector.DropInjectedAttributes(signalAttribute)
		}
		return core
	}))
	if injector, is := settings.MeterProvider.(interface {
		DropInjectedAttributes(...string) metric.MeterProvider
	}); is {
		settings.MeterProvider = injector.DropInjectedAttributes(signalAttribute)
	}
	return settings
}

func hooks(telemetry *metadata.TelemetryBuilder) producer.Hooks {
	return producer.Hooks{
		Uploaded: func(took time.Duration) {
			telemetry.MillpondUploadDuration.Record(context.Background(), took.Seconds())
		},
		Committed: func(took time.Duration, _ int) {
			telemetry.MillpondCommitDuration.Record(context.Background(), took.Seconds())
		},
	}
}

// observe registers callbacks that read the producer's statistics at every collection.
func observe(telemetry *metadata.TelemetryBuilder, p *producer.Producer) error {
	of := func(value func(producer.Stats) int64) metric.Int64Callback {
		return func(_ context.Context, observer metric.Int64Observer) error {
			observer.Observe(value(p.Stats()))
			return nil
		}
	}
	attempts := func(_ context.Context, observer metric.Int64Observer) error {
		stats := p.Stats()
		for outcome, count := range map[string]int64{
			"committed": stats.CommitsCommitted,
			"mismatch":  stats.CommitsMismatch,
			"unknown":   stats.CommitsUnknown,
		} {
			observer.Observe(count, metric.WithAttributes(attribute.String("outcome", outcome)))
		}
		return nil
	}
	fallbacks := func(_ context.Context, observer metric.Int64Observer) error {
		for reason, count := range p.Stats().Fallbacks {
			observer.Observe(count, metric.WithAttributes(attribute.String("reason", producer.FallbackReasons[reason])))
		}
		return nil
	}
	shard := func(_ context.Context, observer metric.Int64Observer) error {
		if shard, open := p.Shard(); open {
			observer.Observe(int64(shard))
		}
		return nil
	}
	return errors.Join(
		telemetry.RegisterMillpondBytesAppendedCallback(of(func(s producer.Stats) int64 { return s.AppendedBytes })),
		telemetry.RegisterMillpondBytesDelegatedCallback(of(func(s producer.Stats) int64 { return s.DelegatedBytes })),
		telemetry.RegisterMillpondFallbacksCallback(fallbacks),
		telemetry.RegisterMillpondMemoryHeldCallback(of(func(s producer.Stats) int64 { return s.MemoryHeldBytes })),
		telemetry.RegisterMillpondMemoryLimitCallback(of(func(s producer.Stats) int64 { return s.MemoryLimitBytes })),
		telemetry.RegisterMillpondSegmentsUncommittedCallback(of(func(s producer.Stats) int64 { return s.SegmentsUncommitted })),
		telemetry.RegisterMillpondSegmentsCallback(of(func(s producer.Stats) int64 { return s.Segments })),
		telemetry.RegisterMillpondRecordsCallback(of(func(s producer.Stats) int64 { return s.Records })),
		telemetry.RegisterMillpondBytesRawCallback(of(func(s producer.Stats) int64 { return s.RawBytes })),
		telemetry.RegisterMillpondBytesStoredCallback(of(func(s producer.Stats) int64 { return s.StoredBytes })),
		telemetry.RegisterMillpondRefusedCallback(of(func(s producer.Stats) int64 { return s.Refused })),
		telemetry.RegisterMillpondShardCallback(shard),
		telemetry.RegisterMillpondUploadRetriesCallback(of(func(s producer.Stats) int64 { return s.UploadRetries })),
		telemetry.RegisterMillpondReuploadsCallback(of(func(s producer.Stats) int64 { return s.Reuploads })),
		telemetry.RegisterMillpondCommitAttemptsCallback(attempts),
		telemetry.RegisterMillpondCommitsFoundCallback(of(func(s producer.Stats) int64 { return s.CommitsFound })),
		telemetry.RegisterMillpondCommitsForOthersCallback(of(func(s producer.Stats) int64 { return s.CommitsForOthers })),
		telemetry.RegisterMillpondLeadsCallback(of(func(s producer.Stats) int64 { return s.Leads })),
		telemetry.RegisterMillpondWatchersCallback(of(func(s producer.Stats) int64 { return s.Watchers })),
		telemetry.RegisterMillpondWatchAnswersCallback(of(func(s producer.Stats) int64 { return s.WatchAnswers })),
		telemetry.RegisterMillpondExpiredCallback(of(func(s producer.Stats) int64 { return s.Expired })),
		telemetry.RegisterMillpondPagesCallback(of(func(s producer.Stats) int64 { return s.Pages })),
	)
}

package millpondexporter

import (
	"context"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/exporter/exporterhelper"

	"millpond.dev/otel-exporter/millpondexporter/internal/metadata"
)

// NewFactory returns the factory of the exporter.
func NewFactory() exporter.Factory {
	return exporter.NewFactory(
		metadata.Type,
		createDefaultConfig,
		exporter.WithLogs(createLogs, metadata.LogsStability),
		exporter.WithTraces(createTraces, metadata.TracesStability),
		exporter.WithMetrics(createMetrics, metadata.MetricsStability),
	)
}

func createLogs(ctx context.Context, settings exporter.Settings, config component.Config) (exporter.Logs, error) {
	shared := share(config.(*Config), settings)
	inner, err := exporterhelper.NewLogs(ctx, settings, config, shared.pushLogs, shared.options()...)
	if err != nil {
		return nil, err
	}
	return struct {
		*lifecycle
		consumer.Logs
	}{&lifecycle{inner: inner, shared: shared}, inner}, nil
}

func createTraces(ctx context.Context, settings exporter.Settings, config component.Config) (exporter.Traces, error) {
	shared := share(config.(*Config), settings)
	inner, err := exporterhelper.NewTraces(ctx, settings, config, shared.pushTraces, shared.options()...)
	if err != nil {
		return nil, err
	}
	return struct {
		*lifecycle
		consumer.Traces
	}{&lifecycle{inner: inner, shared: shared}, inner}, nil
}

func createMetrics(ctx context.Context, settings exporter.Settings, config component.Config) (exporter.Metrics, error) {
	shared := share(config.(*Config), settings)
	inner, err := exporterhelper.NewMetrics(ctx, settings, config, shared.pushMetrics, shared.options()...)
	if err != nil {
		return nil, err
	}
	return struct {
		*lifecycle
		consumer.Metrics
	}{&lifecycle{inner: inner, shared: shared}, inner}, nil
}

func (s *sharedProducer) options() []exporterhelper.Option {
	return []exporterhelper.Option{
		exporterhelper.WithCapabilities(consumer.Capabilities{MutatesData: false}),
		exporterhelper.WithTimeout(s.config.TimeoutConfig),
		exporterhelper.WithRetry(s.config.RetryConfig),
		exporterhelper.WithQueue(s.config.QueueConfig),
	}
}

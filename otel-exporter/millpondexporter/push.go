package millpondexporter

import (
	"context"
	"time"

	"go.opentelemetry.io/collector/consumer/consumererror"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/plog/plogotlp"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/pdata/ptrace/ptraceotlp"

	"millpond.dev/otel-exporter/producer"
)

// The streams and their content match `millpond gateway`: the bytes of one Export…ServiceRequest per message.
const (
	logsStream    = "otlp.logs"
	tracesStream  = "otlp.traces"
	metricsStream = "otlp.metrics"
)

func (s *sharedProducer) pushLogs(ctx context.Context, logs plog.Logs) error {
	return withoutDeep(logs, plog.NewLogs, plog.Logs.LogRecordCount, deepLogs, func(logs plog.Logs) error {
		payload, err := plogotlp.NewExportRequestFromLogs(logs).MarshalProto()
		return s.push(ctx, logsStream, payload, err, logs.LogRecordCount())
	})
}

func (s *sharedProducer) pushTraces(ctx context.Context, traces ptrace.Traces) error {
	return withoutDeep(traces, ptrace.NewTraces, ptrace.Traces.SpanCount, deepTraces, func(traces ptrace.Traces) error {
		payload, err := ptraceotlp.NewExportRequestFromTraces(traces).MarshalProto()
		return s.push(ctx, tracesStream, payload, err, traces.SpanCount())
	})
}

func (s *sharedProducer) pushMetrics(ctx context.Context, metrics pmetric.Metrics) error {
	return withoutDeep(metrics, pmetric.NewMetrics, pmetric.Metrics.DataPointCount, deepMetrics, func(metrics pmetric.Metrics) error {
		payload, err := pmetricotlp.NewExportRequestFromMetrics(metrics).MarshalProto()
		return s.push(ctx, metricsStream, payload, err, metrics.DataPointCount())
	})
}

// push returns nil once the message is in the log. A message that can never be accepted is a permanent error; every
// other error is worth a retry.
func (s *sharedProducer) push(ctx context.Context, stream string, payload []byte, err error, records int) error {
	if err != nil {
		return consumererror.NewPermanent(err)
	}
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	defer context.AfterFunc(s.stopping, func() { end(context.Cause(s.stopping)) })()
	_, err = s.producer.Append(ctx, producer.Message{
		Stream:     stream,
		Encoding:   producer.OTLP,
		Payload:    payload,
		Records:    uint64(records),
		ReceivedAt: time.Now(),
		HeldBytes:  heldBytes(len(payload), records),
	})
	if err != nil && !producer.IsRetryable(err) {
		return consumererror.NewPermanent(err)
	}
	return err
}

// heldBytes estimates the memory of a request that exporterhelper and the receiver keep until it is committed: the decoded
// form, whose texts lie in the bytes that were received. The decoded form alone takes 0.2 to 7 times the marshalled bytes,
// the most for records with hardly any content.
func heldBytes(marshalled, records int) int { return 3*marshalled + 100*records }

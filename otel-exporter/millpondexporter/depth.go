package millpondexporter

import (
	"fmt"

	"go.opentelemetry.io/collector/consumer/consumererror"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"
)

// depthMax is the maximum nesting of messages below the request, as in the gateway (otlp/src/validate.rs): no consumer
// decodes deeper ones. Only values nest without limit. The depth of a map is that of its values.
const depthMax = 100

// withoutDeep pushes a request without its records that are nested too deep, so that the others are not lost with them.
// It returns a permanent error for what it left out.
func withoutDeep[R interface{ CopyTo(R) }](request R, new func() R, count func(R) int, deep func(R, bool) bool, push func(R) error) error {
	if !deep(request, false) {
		return push(request)
	}
	rest := new()
	request.CopyTo(rest)
	deep(rest, true)
	all, left := count(request), count(rest)
	if left > 0 {
		if err := push(rest); err != nil {
			return err
		}
	}
	return consumererror.NewPermanent(fmt.Errorf("refused %d of %d records, and sent the others: "+
		"messages are nested more than %d deep", all-left, all, depthMax))
}

func deepLogs(logs plog.Logs, remove bool) bool {
	return within(logs.ResourceLogs(), remove, func(resource plog.ResourceLogs) bool {
		return isDeepMap(resource.Resource().Attributes(), 4) || within(resource.ScopeLogs(), remove, func(scope plog.ScopeLogs) bool {
			return isDeepMap(scope.Scope().Attributes(), 5) || within(scope.LogRecords(), remove, func(record plog.LogRecord) bool {
				return isDeep(record.Body(), 4) || isDeepMap(record.Attributes(), 5)
			})
		})
	})
}

func deepTraces(traces ptrace.Traces, remove bool) bool {
	return within(traces.ResourceSpans(), remove, func(resource ptrace.ResourceSpans) bool {
		return isDeepMap(resource.Resource().Attributes(), 4) || within(resource.ScopeSpans(), remove, func(scope ptrace.ScopeSpans) bool {
			return isDeepMap(scope.Scope().Attributes(), 5) || within(scope.Spans(), remove, isDeepSpan)
		})
	})
}

func isDeepSpan(span ptrace.Span) bool {
	return isDeepMap(span.Attributes(), 5) ||
		within(span.Events(), false, func(event ptrace.SpanEvent) bool { return isDeepMap(event.Attributes(), 6) }) ||
		within(span.Links(), false, func(link ptrace.SpanLink) bool { return isDeepMap(link.Attributes(), 6) })
}

func deepMetrics(metrics pmetric.Metrics, remove bool) bool {
	return within(metrics.ResourceMetrics(), remove, func(resource pmetric.ResourceMetrics) bool {
		return isDeepMap(resource.Resource().Attributes(), 4) || within(resource.ScopeMetrics(), remove, func(scope pmetric.ScopeMetrics) bool {
			return isDeepMap(scope.Scope().Attributes(), 5) || within(scope.Metrics(), remove, isDeepMetric)
		})
	})
}

func isDeepMetric(metric pmetric.Metric) bool {
	if isDeepMap(metric.Metadata(), 5) {
		return true
	}
	switch metric.Type() {
	case pmetric.MetricTypeGauge:
		return within(metric.Gauge().DataPoints(), false, isDeepPoint)
	case pmetric.MetricTypeSum:
		return within(metric.Sum().DataPoints(), false, isDeepPoint)
	case pmetric.MetricTypeHistogram:
		return within(metric.Histogram().DataPoints(), false, isDeepPoint)
	case pmetric.MetricTypeExponentialHistogram:
		return within(metric.ExponentialHistogram().DataPoints(), false, isDeepPoint)
	case pmetric.MetricTypeSummary:
		return within(metric.Summary().DataPoints(), false, func(point pmetric.SummaryDataPoint) bool {
			return isDeepMap(point.Attributes(), 7)
		})
	}
	return false
}

type dataPoint interface {
	Attributes() pcommon.Map
	Exemplars() pmetric.ExemplarSlice
}

func isDeepPoint[P dataPoint](point P) bool {
	return isDeepMap(point.Attributes(), 7) || within(point.Exemplars(), false, func(exemplar pmetric.Exemplar) bool {
		return isDeepMap(exemplar.FilteredAttributes(), 8)
	})
}

type slice[T any] interface {
	Len() int
	At(place int) T
	RemoveIf(func(T) bool)
}

// within reports whether any element is too deep. With remove it removes these, and reports whether none is left.
func within[T any](all slice[T], remove bool, deep func(T) bool) bool {
	if remove {
		all.RemoveIf(deep)
		return all.Len() == 0
	}
	for place := range all.Len() {
		if deep(all.At(place)) {
			return true
		}
	}
	return false
}

// isDeepMap runs for every attribute, so it asks for their kinds alone.
func isDeepMap(values pcommon.Map, depth int) bool {
	if depth > depthMax {
		return values.Len() > 0
	}
	for _, value := range values.All() {
		if kind := value.Type(); (kind == pcommon.ValueTypeMap || kind == pcommon.ValueTypeSlice) && isDeep(value, depth) {
			return true
		}
	}
	return false
}

func isDeep(value pcommon.Value, depth int) bool {
	switch value.Type() {
	case pcommon.ValueTypeMap:
		// The list, its pairs and their values; the list itself may be empty.
		return depth+1 > depthMax || isDeepMap(value.Map(), depth+3)
	case pcommon.ValueTypeSlice:
		return depth+1 > depthMax || within(value.Slice(), false, func(inner pcommon.Value) bool { return isDeep(inner, depth+2) })
	}
	return depth > depthMax
}

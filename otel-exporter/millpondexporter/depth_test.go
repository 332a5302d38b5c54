package millpondexporter

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/consumer/consumererror"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/plog/plogotlp"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"
)

func nestArrays(value pcommon.Value, levels int) {
	for range levels {
		value = value.SetEmptySlice().AppendEmpty()
	}
	value.SetStr("bottom")
}

func nestMaps(value pcommon.Value, levels int) {
	for range levels {
		value = value.SetEmptyMap().PutEmpty("k")
	}
	value.SetStr("bottom")
}

// The limits are those of the gateway: 48 arrays or 32 maps in a body.
func TestTheDepthOfAValueIsLimited(t *testing.T) {
	for _, nested := range []struct {
		nest   func(pcommon.Value, int)
		levels int
		deep   bool
	}{
		{nestArrays, 48, false}, {nestArrays, 49, true}, {nestMaps, 32, false}, {nestMaps, 33, true}, {nestArrays, 100_000, true},
	} {
		logs := someLogs(2)
		nested.nest(logs.ResourceLogs().At(0).ScopeLogs().At(0).LogRecords().At(1).Body(), nested.levels)
		assert.Equal(t, nested.deep, deepLogs(logs, false), "%d levels", nested.levels)
	}
}

// Every place that has values is looked at, and nothing else than what has them is left out.
func TestDeepValuesAreFoundEverywhere(t *testing.T) {
	deep := func(attributes pcommon.Map) { nestArrays(attributes.PutEmpty("deep"), 60) }
	for name, damage := range map[string]func(plog.Logs){
		"resource": func(l plog.Logs) { deep(l.ResourceLogs().At(0).Resource().Attributes()) },
		"scope":    func(l plog.Logs) { deep(l.ResourceLogs().At(0).ScopeLogs().At(0).Scope().Attributes()) },
		"record":   func(l plog.Logs) { deep(l.ResourceLogs().At(0).ScopeLogs().At(0).LogRecords().At(0).Attributes()) },
	} {
		logs := someLogs(3)
		someLogs(4).ResourceLogs().MoveAndAppendTo(logs.ResourceLogs())
		damage(logs)
		require.True(t, deepLogs(logs, false), name)
		deepLogs(logs, true)
		assert.Equal(t, map[string]int{"resource": 4, "scope": 4, "record": 6}[name], logs.LogRecordCount(), name)
	}
	for name, damage := range map[string]func(ptrace.Span){
		"span":  func(s ptrace.Span) { deep(s.Attributes()) },
		"event": func(s ptrace.Span) { deep(s.Events().AppendEmpty().Attributes()) },
		"link":  func(s ptrace.Span) { deep(s.Links().AppendEmpty().Attributes()) },
	} {
		traces := someTraces(3)
		damage(traces.ResourceSpans().At(0).ScopeSpans().At(0).Spans().At(1))
		require.True(t, deepTraces(traces, false), name)
		deepTraces(traces, true)
		assert.Equal(t, 2, traces.SpanCount(), name)
	}
	for name, damage := range map[string]func(pmetric.Metric){
		"metadata":  func(m pmetric.Metric) { deep(m.Metadata()) },
		"gauge":     func(m pmetric.Metric) { deep(m.SetEmptyGauge().DataPoints().AppendEmpty().Attributes()) },
		"sum":       func(m pmetric.Metric) { deep(m.SetEmptySum().DataPoints().AppendEmpty().Attributes()) },
		"histogram": func(m pmetric.Metric) { deep(m.SetEmptyHistogram().DataPoints().AppendEmpty().Attributes()) },
		"exponential": func(m pmetric.Metric) {
			deep(m.SetEmptyExponentialHistogram().DataPoints().AppendEmpty().Attributes())
		},
		"summary": func(m pmetric.Metric) { deep(m.SetEmptySummary().DataPoints().AppendEmpty().Attributes()) },
		"exemplar": func(m pmetric.Metric) {
			deep(m.SetEmptySum().DataPoints().AppendEmpty().Exemplars().AppendEmpty().FilteredAttributes())
		},
	} {
		metrics := someMetrics(3)
		damage(metrics.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().AppendEmpty())
		require.True(t, deepMetrics(metrics, false), name)
		deepMetrics(metrics, true)
		assert.Equal(t, 3, metrics.DataPointCount(), name)
	}
}

// A batch may have records of many clients. One that no consumer could read must not cost the others theirs.
func TestTheOthersOfARequestSurviveADeepRecord(t *testing.T) {
	config, directory := direct(t)
	logs := started(t, config, NewFactory().CreateLogs)
	request := someLogs(3)
	nestArrays(request.ResourceLogs().At(0).ScopeLogs().At(0).LogRecords().At(1).Body(), 60)
	request.MarkReadOnly()
	err := logs.ConsumeLogs(t.Context(), request)
	assert.True(t, consumererror.IsPermanent(err), err)
	assert.ErrorContains(t, err, "refused 1 of 3 records, and sent the others: messages are nested more than 100 deep")
	alone := someLogs(1)
	nestArrays(alone.ResourceLogs().At(0).ScopeLogs().At(0).LogRecords().At(0).Body(), 60)
	assert.True(t, consumererror.IsPermanent(logs.ConsumeLogs(t.Context(), alone)))
	require.NoError(t, logs.Shutdown(t.Context()))
	stored := read(t, directory)
	require.Len(t, stored, 1)
	found := plogotlp.NewExportRequest()
	require.NoError(t, found.UnmarshalProto(stored[0].payload))
	assert.Equal(t, 2, found.Logs().LogRecordCount())
	assert.Equal(t, uint64(2), stored[0].part.Records)
}

func benchmarked() plog.Logs {
	logs := someLogs(1_000)
	for _, record := range logs.ResourceLogs().At(0).ScopeLogs().At(0).LogRecords().All() {
		record.Body().SetStr("GET /api/v1/orders/17 took 12 ms for a client that had asked before")
		for _, key := range []string{"log.file.name", "log.iostream", "http.request.method", "client.address", "url.path"} {
			record.Attributes().PutStr(key, "a value of a usual length")
		}
		for _, key := range []string{"thread.id", "http.response.status_code"} {
			record.Attributes().PutInt(key, 200)
		}
	}
	return logs
}

func BenchmarkDepth(b *testing.B) {
	logs := benchmarked()
	for b.Loop() {
		deepLogs(logs, false)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/1_000, "ns/record")
}

func BenchmarkMarshalling(b *testing.B) {
	logs := benchmarked()
	for b.Loop() {
		if _, err := plogotlp.NewExportRequestFromLogs(logs).MarshalProto(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/1_000, "ns/record")
}

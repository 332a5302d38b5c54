package main

import (
	"bufio"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/plog/plogotlp"
)

// batchRecords is the number of records in a request, as in `make bench`.
const batchRecords = 1000

// A batch is a request with its protobuf encoding.
type batch struct {
	logs    plog.Logs
	records int
	payload []byte
}

func newBatch(logs plog.Logs) (batch, error) {
	payload, err := plogotlp.NewExportRequestFromLogs(logs).MarshalProto()
	return batch{logs, logs.LogRecordCount(), payload}, err
}

// gather merges batches into one.
func gather(batches []batch) ([]batch, error) {
	all := plog.NewLogs()
	for _, batch := range batches {
		for _, resource := range batch.logs.ResourceLogs().All() {
			resource.CopyTo(all.ResourceLogs().AppendEmpty())
		}
	}
	gathered, err := newBatch(all)
	return []batch{gathered}, err
}

// readBatches turns a folder's log lines into requests with the attributes that `millpond load` sets.
func readBatches(folder string) ([]batch, error) {
	if folder == "" {
		return nil, errors.New("set MILLPOND_LOGHUB to a folder of *.log files, for instance those of logpai/loghub on GitHub")
	}
	files, err := filepath.Glob(filepath.Join(folder, "*.log"))
	if err != nil {
		return nil, err
	}
	var records []func(plog.LogRecord)
	random := rand.New(rand.NewPCG(1, 0))
	for _, path := range files {
		file, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		lines := bufio.NewScanner(file)
		for lines.Scan() {
			if line := lines.Text(); line != "" {
				records = append(records, recordOf(line, filepath.Base(path), len(records), random))
			}
		}
		if err := errors.Join(lines.Err(), file.Close()); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	if len(records) < batchRecords {
		return nil, fmt.Errorf("%s has %d lines in its *.log files; at least %d are needed", folder, len(records), batchRecords)
	}
	random.Shuffle(len(records), func(i, j int) { records[i], records[j] = records[j], records[i] })
	var batches []batch
	for first := 0; first+batchRecords <= len(records); first += batchRecords {
		batch, err := newBatch(requestOf(records[first:first+batchRecords], len(batches)))
		if err != nil {
			return nil, err
		}
		batches = append(batches, batch)
	}
	return batches, nil
}

func requestOf(records []func(plog.LogRecord), host int) plog.Logs {
	logs := plog.NewLogs()
	resource := logs.ResourceLogs().AppendEmpty()
	service := []string{"checkout", "inventory", "payments", "search"}[host%4]
	for key, value := range map[string]string{
		"service.name":        service,
		"service.namespace":   "shop",
		"service.version":     "2.14.3",
		"host.name":           fmt.Sprintf("ip-10-0-0-%d.internal", 16+host*7),
		"k8s.cluster.name":    "production-1",
		"k8s.namespace.name":  "shop",
		"k8s.deployment.name": service,
		"k8s.pod.name":        fmt.Sprintf("%s-6b5f%06x-x2%03d", service, host*7919, host),
	} {
		resource.Resource().Attributes().PutStr(key, value)
	}
	scope := resource.ScopeLogs().AppendEmpty()
	scope.Scope().SetName("millpond.load")
	for _, fill := range records {
		fill(scope.LogRecords().AppendEmpty())
	}
	return logs
}

func recordOf(line, file string, number int, random *rand.Rand) func(plog.LogRecord) {
	chance := random.Uint64()
	var trace pcommon.TraceID
	var span pcommon.SpanID
	if chance>>42&3 != 0 {
		for i := range trace {
			trace[i] = byte(random.Uint32())
		}
		copy(span[:], trace[4:])
	}
	return func(record plog.LogRecord) {
		at := time.Unix(1_790_000_000, int64(number)*1_000)
		record.SetTimestamp(pcommon.NewTimestampFromTime(at))
		record.SetObservedTimestamp(pcommon.NewTimestampFromTime(at.Add(time.Millisecond)))
		record.SetSeverityNumber(plog.SeverityNumberInfo)
		record.SetSeverityText("INFO")
		record.Body().SetStr(line)
		attributes := record.Attributes()
		attributes.PutStr("millpond.load.id", fmt.Sprintf("bench-%012d", number))
		attributes.PutStr("log.file.name", file)
		attributes.PutStr("log.iostream", "stdout")
		attributes.PutInt("thread.id", int64(1+chance>>8&63))
		attributes.PutStr("http.request.method", "GET")
		attributes.PutInt("http.response.status_code", 200)
		attributes.PutStr("client.address", fmt.Sprintf("10.1.%d.%d", chance>>16&15, chance>>24&255))
		attributes.PutStr("url.path", fmt.Sprintf("/api/v1/orders/%d", chance>>32&1023))
		if trace != (pcommon.TraceID{}) {
			record.SetFlags(1)
			record.SetTraceID(trace)
			record.SetSpanID(span)
		}
	}
}

package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"runtime/pprof"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/klauspost/compress/zstd"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/exporter/exportertest"
	"go.opentelemetry.io/collector/pdata/plog/plogotlp"
	"golang.org/x/sync/errgroup"
)

// A sample is the result of one run of a candidate.
type sample struct {
	Records     int
	RawBytes    int     // size of those records as protobuf
	AllRecords  int     // warm-up included
	StoredBytes int64   // size of all records on the servers' disks
	CPUSeconds  float64 // user and system time of the whole process, including garbage collection
	Seconds     float64
	PeakMiB     float64 // resident memory of the whole process, with the records that it sends
}

func (s sample) perMillion() float64 { return s.CPUSeconds / float64(s.Records) * 1e6 }

// warmUp is the number of records sent before measuring, to fill connections, pools and buffers.
const warmUp = 50_000

// measure sends the records and measures from the first request to the last answer.
func measure(ctx context.Context, candidate candidate, place place, batches []batch, records int) (sample, error) {
	if candidate.gathered {
		var err error
		if batches, err = gather(batches); err != nil {
			return sample{}, err
		}
	}
	send, stop, err := candidate.start(ctx, place)
	if err != nil {
		return sample{}, err
	}
	warmedUp, err := sendAll(send, batches, candidate.callers(), warmUp)
	if err != nil {
		return sample{}, err
	}
	runtime.GC()
	if *profile != "" {
		file, err := os.Create(*profile)
		if err != nil {
			return sample{}, err
		}
		defer file.Close()
		if err := pprof.StartCPUProfile(file); err != nil {
			return sample{}, err
		}
		defer pprof.StopCPUProfile()
	}
	started, cpu := time.Now(), cpuSeconds()
	sent, err := sendAll(send, batches, candidate.callers(), records)
	measured := sample{
		Records:    sent.records,
		RawBytes:   sent.bytes,
		AllRecords: sent.records + warmedUp.records,
		CPUSeconds: cpuSeconds() - cpu,
		Seconds:    time.Since(started).Seconds(),
		PeakMiB:    peakMiB(),
	}
	if err != nil {
		return sample{}, err
	}
	return measured, stop()
}

func (c candidate) start(ctx context.Context, place place) (send func(batch) error, stop func() error, err error) {
	if c.alone != nil {
		return c.alone(), func() error { return nil }, nil
	}
	factory := c.factory()
	config := factory.CreateDefaultConfig()
	if err := confmap.NewFromStringMap(c.settings(place)).Unmarshal(config); err != nil {
		return nil, nil, err
	}
	if err := confmap.Validate(config); err != nil {
		return nil, nil, err
	}
	made, err := factory.CreateLogs(ctx, exportertest.NewNopSettings(factory.Type()), config)
	if err != nil {
		return nil, nil, err
	}
	if err := made.Start(ctx, componenttest.NewNopHost()); err != nil {
		return nil, nil, err
	}
	send = func(b batch) error { return made.ConsumeLogs(ctx, b.logs) }
	return send, func() error { return made.Shutdown(ctx) }, nil
}

// sent counts the acknowledged records and bytes.
type sent struct{ records, bytes int }

// sendAll sends the given number of records, cycling through the batches, from callers that wait for each answer.
func sendAll(send func(batch) error, batches []batch, callers, records int) (sent, error) {
	var begun, answered, bytes atomic.Int64
	var next atomic.Int64
	var group errgroup.Group
	for range callers {
		group.Go(func() error {
			for {
				batch := batches[int(next.Add(1)-1)%len(batches)]
				if int(begun.Add(int64(batch.records))) > records {
					return nil
				}
				if err := send(batch); err != nil {
					return fmt.Errorf("a request was not acknowledged: %w", err)
				}
				answered.Add(int64(batch.records))
				bytes.Add(int64(len(batch.payload)))
			}
		})
	}
	err := group.Wait()
	return sent{int(answered.Load()), int(bytes.Load())}, err
}

func usage() syscall.Rusage {
	var used syscall.Rusage
	// Getrusage fails only for an invalid argument.
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &used)
	return used
}

// peakMiB reads the peak of resident memory. Linux counts it in KiB.
func peakMiB() float64 { return float64(usage().Maxrss) / 1024 }

func cpuSeconds() float64 {
	used := usage()
	seconds := func(t syscall.Timeval) float64 { return float64(t.Sec) + float64(t.Usec)/1e6 }
	return seconds(used.Utime) + seconds(used.Stime)
}

// marshalling measures the step that every OTLP exporter performs at least once.
func marshalling() func(batch) error {
	return func(b batch) error {
		_, err := plogotlp.NewExportRequestFromLogs(b.logs).MarshalProto()
		return err
	}
}

// compressing measures zstd alone, one frame per request.
func compressing() func(batch) error {
	encoder, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest))
	return func(b batch) error {
		if err == nil {
			encoder.EncodeAll(b.payload, nil)
		}
		return err
	}
}

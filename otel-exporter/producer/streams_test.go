package producer

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"millpond.dev/otel-exporter/internal/manifest"
)

// Clients name the streams of events: those of OTLP keep room.
func TestStreamsOfEventsLeaveRoomForOthers(t *testing.T) {
	streams := &streams{encodings: make(map[string]Encoding)}
	for i := range 256 {
		if err := streams.admit(fmt.Sprintf("e%d", i), NDJSON); err != nil {
			t.Fatal(err)
		}
	}
	if err := streams.admit("one-more", NDJSON); err == nil || !strings.Contains(err.Error(), "has its 256 streams of ndjson") {
		t.Error(err)
	}
	if err := errors.Join(streams.admit("e7", NDJSON), streams.admit("one-more", OTLP)); err != nil {
		t.Error(err)
	}
}

// A stream that was admitted before others filled the table costs its neighbours in a segment one retry.
func TestAStreamThatAFullTableLacksIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		p := w.producer(testConfig(), 1)
		w.mustAppend(p, "known")
		w.change(func(m *manifest.Manifest) {
			for i := len(m.Streams); i < manifest.StreamsMax; i++ {
				m.Streams = append(m.Streams, manifest.Stream{Name: fmt.Sprintf("s%d", i), Encoding: OTLP})
			}
		})
		late := message("late")
		late.Stream = "late"
		if _, err := p.Append(t.Context(), late); !isA[*NotCommittedError](err) {
			t.Error(err)
		}
		if _, err := p.Append(t.Context(), late); !isA[*RefusedError](err) {
			t.Error(err)
		}
		w.mustAppend(p, "neighbour")
	})
}

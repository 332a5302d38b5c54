package producer

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"millpond.dev/otel-exporter/internal/manifest"
)

// routed makes the buffer of the golden file: events.order goes to two shards of three.
func routed(w *world) {
	w.t.Helper()
	golden, err := os.ReadFile(filepath.Join("..", "..", "manifest", "testdata", "buffer-v2"))
	if err != nil {
		w.t.Fatal(err)
	}
	w.replace(manifest.BufferKey, golden)
}

func refusesRouted(t *testing.T, p *Producer) {
	t.Helper()
	order := Message{Stream: "events.order", Encoding: NDJSON, Payload: []byte(`{}`), Records: 1, ReceivedAt: time.Now()}
	_, err := p.Append(t.Context(), order)
	var refused *RefusedError
	if !errors.As(err, &refused) || !strings.Contains(err.Error(), "to 2 shards by their keys") {
		t.Fatal(err)
	}
}

func TestAStreamWhoseRowsGatewaysRouteIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		routed(w)
		p := w.patient(testConfig(), 1)
		if err := p.Opened(t.Context()); err != nil {
			t.Fatal(err)
		}
		refusesRouted(t, p)
		if _, err := p.Append(t.Context(), message("another stream")); err != nil {
			t.Fatal(err)
		}
	})
}

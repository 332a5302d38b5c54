package producer

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"millpond.dev/otel-exporter/internal/manifest"
	"millpond.dev/otel-exporter/internal/storage/unreliable"
)

func sealing() Config {
	config := testConfig()
	config.TailMax = 3
	return config
}

func (w *world) checkPages(p *Producer, pages, tail int) {
	w.t.Helper()
	state := w.manifest()
	if len(state.Pages) != pages || len(state.Tail) != tail || p.Stats().Pages != int64(pages) {
		w.t.Errorf("%d pages (counted: %d) and %d entries in the tail", len(state.Pages), p.Stats().Pages, len(state.Tail))
	}
}

func TestAFullTailIsSealedByTheNextCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		p := w.producer(sealing(), 1)
		messages := names("message", 7)
		for i, message := range messages {
			if sequence := w.mustAppend(p, message); sequence != uint64(i) {
				t.Error(sequence)
			}
		}
		w.checkPages(p, 2, 1)
		w.checkLog(messages...)
	})
}

// No manifest ever refers to a page that is missing from the store: the page comes first, however many attempts it
// takes.
func TestAPageIsInTheStoreBeforeAManifestRefersToIt(t *testing.T) {
	for _, fault := range []unreliable.Fault{unreliable.Lost, unreliable.LandsUnreported} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, 1)
			p := w.producer(sealing(), 1)
			for _, message := range names("message", 3) {
				w.mustAppend(p, message)
			}
			w.network.Once(unreliable.Create, "pages", fault)
			w.network.Once(unreliable.Create, "pages", fault)
			w.mustAppend(p, "sealed")
			w.checkPages(p, 1, 1)
			w.checkLog("message 0", "message 1", "message 2", "sealed")
			if keys, err := w.memory.List(t.Context(), "shards/0000/pages"); len(keys) != 1 {
				t.Error(keys, err)
			}
		})
	}
}

func TestAPageWhoseSwapLandedUnreportedIsCountedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		p := w.producer(sealing(), 1)
		for _, message := range names("message", 3) {
			w.mustAppend(p, message)
		}
		w.network.Once(unreliable.Replace, "manifest", unreliable.LandsUnreported)
		w.mustAppend(p, "sealed")
		w.mustAppend(p, "after")
		w.checkPages(p, 1, 2)
	})
}

// After a conflict the producer reuses the page: its entries are still the first of the tail.
func TestAPageIsUsedAgainAfterAConflict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		p, other := w.producer(sealing(), 1), w.producer(testConfig(), 2)
		for _, message := range names("message", 3) {
			w.mustAppend(p, message)
		}
		swap := w.network.Hold(unreliable.Replace, "manifest")
		var client sync.WaitGroup
		client.Go(func() { w.mustAppend(p, "sealed") })
		<-swap.Arrived()
		w.mustAppend(other, "between")
		swap.Release()
		client.Wait()
		w.checkPages(p, 1, 2)
		w.checkLog("message 0", "message 1", "message 2", "between", "sealed")
		if keys, err := w.memory.List(t.Context(), "shards/0000/pages"); len(keys) != 1 {
			t.Error(keys, err)
		}
	})
}

func TestAPageThatFellBelowTheFloorIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		p := w.producer(sealing(), 1)
		for _, message := range names("message", 3) {
			w.mustAppend(p, message)
		}
		swap := w.network.Hold(unreliable.Replace, "manifest")
		var client sync.WaitGroup
		client.Go(func() { w.mustAppend(p, "sealed") })
		<-swap.Arrived()
		w.change(func(m *manifest.Manifest) { m.OrphanFloorMs = uint64(time.Now().UnixMilli()) + 1_000 })
		swap.Release()
		client.Wait()
		w.checkPages(p, 1, 1)
		w.checkLog("message 0", "message 1", "message 2", "sealed")
		if keys, err := w.memory.List(t.Context(), "shards/0000/pages"); len(keys) != 2 {
			t.Error(keys, err)
		}
	})
}

func TestTwoProducersThatSealAtOnceLoseNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		first, second := w.producer(sealing(), 1), w.producer(sealing(), 2)
		for _, message := range names("message", 3) {
			w.mustAppend(first, message)
		}
		swap := w.network.Hold(unreliable.Replace, "manifest")
		var client sync.WaitGroup
		client.Go(func() { w.mustAppend(first, "first") })
		<-swap.Arrived()
		w.mustAppend(second, "second")
		swap.Release()
		client.Wait()
		state := w.manifest()
		if len(state.Pages) != 1 || first.Stats().Pages != 0 || second.Stats().Pages != 1 {
			t.Errorf("%d pages, %d, %d", len(state.Pages), first.Stats().Pages, second.Stats().Pages)
		}
		w.checkLog("message 0", "message 1", "message 2", "second", "first")
	})
}

// An earlier version could leave a longer tail than this one writes. The next commit seals it.
func TestALongTailOfAnEarlierVersionIsSealed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		p := w.producer(testConfig(), 1)
		w.mustAppend(p, "first")
		w.change(func(m *manifest.Manifest) {
			entry := m.Tail[0]
			for len(m.Tail) < 5_000 {
				entry.Segment[14], entry.Segment[15] = byte(len(m.Tail)>>8), byte(len(m.Tail))
				m.Tail = append(m.Tail, entry)
				m.NextSequence++
			}
		})
		if sequence := w.mustAppend(p, "next"); sequence != 5_000 {
			t.Error(sequence)
		}
		w.checkPages(p, 1, 1)
	})
}

// The segment that the sealed log refuses is dropped, and no other one, although the unsealed log has no room for those
// before it.
func TestARefusedSegmentIsFoundBehindASealedTail(t *testing.T) {
	me := scriptProducer(1)
	c := commitState{tailMax: tailMaxMax, producer: me, registered: true}
	log := manifest.New(uuid.Nil, 0).Register(me, 1)
	log.Streams = []manifest.Stream{{Name: "events", Encoding: OTLP}}
	for i := range manifest.EntriesMax {
		name := scriptName(1, byte(i))
		name[14] = byte(i >> 8)
		log.Tail = append(log.Tail, manifest.Entry{Segment: name, Size: 10})
	}
	log.NextSequence = manifest.EntriesMax
	c.read(&manifest.Snapshot{State: log, Version: "1"})
	draw := &scriptDraw{clockMs: 5}
	group := groupOf([]manifest.NewSegment{scriptSegment("a", 5), scriptSegment("b:ndjson", 5), scriptSegment("c", 5)})
	if _, ok := c.next(group, draw).(storePageStep); !ok {
		t.Fatal("the tail is not sealed")
	}
	c.stored(true)
	if drop, ok := c.next(group, draw).(dropStep); !ok || drop.place != 1 {
		t.Errorf("%+v", drop)
	}
}

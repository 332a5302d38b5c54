package producer

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"millpond.dev/otel-exporter/internal/manifest"
	"millpond.dev/otel-exporter/internal/storage"
	"millpond.dev/otel-exporter/internal/storage/unreliable"
)

// beaten starts a producer that loses the race for its first commit to the leader, which it has not met before.
func beaten(t *testing.T, behaves way) (*world, *testLeader, *Producer) {
	t.Helper()
	w := newWorld(t, 1)
	w.mustAppend(w.producer(testConfig(), 9), "first")
	l := &testLeader{t: t, w: w}
	p := w.follower(l, testConfig(), 1)
	w.leads(l)
	l.always(behaves)
	return w, l, p
}

func TestAGroupThatLostARaceIsHandedOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, l, p := beaten(t, open)
		before := p.Stats()
		w.checkPlace("a", w.mustAppend(p, "a"))
		w.checkLog("first", "a")
		stats := p.Stats()
		if asked := l.requests(); len(asked) != 1 || len(asked[0].Segments) != 1 {
			t.Errorf("asked for %+v", asked)
		}
		if stats.CommitsCommitted != before.CommitsCommitted || stats.DelegatedBytes == 0 || w.segments() != 2 {
			t.Errorf("%+v, %d segments", stats, w.segments())
		}
	})
}

func TestAGroupIsCommittedWithoutALeaderThatDoesNotAnswer(t *testing.T) {
	for _, way := range []way{closed, noAnswer, hangs, breaks, refuses, leaves} {
		synctest.Test(t, func(t *testing.T) {
			w, l, p := beaten(t, way)
			w.mustAppend(p, "a")
			time.Sleep(time.Second) // A copy of the request may come late.
			w.checkLog("first", "a")
			if asked := l.requests(); len(asked) != 1 {
				t.Errorf("way %d: %d requests", way, len(asked))
			}
		})
	}
}

// The store refuses the second copy of a swap of which the first landed. Another producer takes the lead in between.
func TestAGroupThatMayHaveLandedIsNotHandedOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		l := &testLeader{t: t, w: w}
		p := w.follower(l, testConfig(), 1)
		w.network.Once(unreliable.Replace, "manifest", unreliable.Repeated)
		go func() {
			time.Sleep(unreliable.RepeatedAfter / 2)
			w.leads(l)
		}()
		if sequence := w.mustAppend(p, "landed"); sequence != 0 || w.network.Unused() != 0 {
			t.Errorf("sequence %d, %d faults left", sequence, w.network.Unused())
		}
		w.checkLog("landed")
		if asked := l.requests(); len(asked) != 0 {
			t.Errorf("handed over while unresolved: %+v", asked)
		}
	})
}

func TestAProducerIsReadyWhenTheLeaderHasCommittedItsGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, l, p := beaten(t, open)
		// After the lost race, the store fails once to answer.
		w.network.Once(unreliable.Get, "manifest", unreliable.Lost)
		w.mustAppend(p, "a")
		synctest.Wait()
		if len(l.requests()) != 1 || w.network.Unused() != 0 {
			t.Errorf("%d requests, %d faults left", len(l.requests()), w.network.Unused())
		}
		if waits := p.Waiting(); waits != "" {
			t.Errorf("it still waits: %s", waits)
		}
	})
}

// inTurn returns a committer that waits ten seconds for its turn, and its group.
func inTurn(w *world) (*testLeader, *committer, *members) {
	l := &testLeader{t: w.t, w: w}
	p := w.follower(l, testConfig(), 1)
	w.mustAppend(p, "first")
	current := p.current.Load()
	c := newCommitter(current.pipeline, w.manifest().BufferID, current.config.TailMax, current.streams, current.peering, nil)
	c.commits.registered = true
	c.turns = *contendedTurns()
	c.turns.notBefore = time.Now().Add(turnWaitMax)
	return l, c, &members{works: make([]uploadedWork, 1)}
}

func TestAProducerThatWaitsForItsTurnNoticesAnotherLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		l, c, group := inTurn(w)
		time.AfterFunc(turnLook/2, func() { w.leads(l) })
		began := time.Now()
		if mayAsk := c.waitForTurn(group); !mayAsk || time.Since(began) > turnLook {
			t.Errorf("it may ask: %v, after %v", mayAsk, time.Since(began))
		}
	})
}

func TestATurnEndsWhenThoseBeforeHaveCommitted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c, group := inTurn(newWorld(t, 1))
		began := time.Now()
		if mayAsk := c.waitForTurn(group); mayAsk || time.Since(began) > turnLook {
			t.Errorf("it may ask: %v, after %v", mayAsk, time.Since(began))
		}
	})
}

func TestAStoreThatDoesNotAnswerEndsATurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		_, c, group := inTurn(w)
		w.network.Once(unreliable.Get, "manifest", unreliable.Lost)
		if c.waitForTurn(group) || w.network.Unused() != 0 || c.turns.own != nil {
			t.Errorf("%d faults left, commits for the pace: %v", w.network.Unused(), c.turns.own)
		}
	})
}

// behindBackend answers reads of the manifest with old ones in turns while it has any.
type behindBackend struct {
	storage.Backend
	mutex sync.Mutex
	shown []oldManifest
}

type oldManifest struct {
	bytes   []byte
	version storage.Version
}

func (b *behindBackend) Get(ctx context.Context, key string, bytesMax int64) ([]byte, storage.Version, error) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	if key == manifest.Key(0) && len(b.shown) > 0 {
		old := b.shown[0]
		b.shown = append(b.shown[1:], old)
		return old.bytes, old.version, nil
	}
	return b.Backend.Get(ctx, key, bytesMax)
}

// show lets reads return these from now on; none ends that.
func (b *behindBackend) show(old ...oldManifest) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	b.shown = old
}

func TestAProducerWhoseStoreStaysBehindPausesAndSaysSo(t *testing.T) {
	for states := 1; states <= 2; states++ {
		testAStoreThatStaysBehind(t, states)
	}
}

// The store has this many old states, and shows them in turns.
func testAStoreThatStaysBehind(t *testing.T, states int) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		behind := &behindBackend{Backend: w.network}
		store := storage.Over(behind, storage.RequestTimeout)
		p, err := start(t.Context(), newEnvironment([32]byte{1}), store, testConfig(), nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { w.close(p) })
		w.mustAppend(p, "first")
		var old []oldManifest
		for range states {
			bytes, version, err := w.network.Get(t.Context(), manifest.Key(0), 1<<20)
			if err != nil {
				t.Fatal(err)
			}
			old = append(old, oldManifest{bytes, version})
			w.change(func(*manifest.Manifest) {})
		}
		behind.show(old...)
		done := make(chan uint64)
		go func() { done <- w.mustAppend(p, "waits") }()
		time.Sleep(time.Minute)
		if refused := p.Stats().CommitsMismatch; refused > 80 {
			t.Errorf("%d swaps without a pause", refused)
		}
		if waits := p.Waiting(); !strings.Contains(waits, "refused to replace") && !strings.Contains(waits, "earlier version") {
			t.Errorf("it waits: %q", waits)
		}
		behind.show()
		<-done
		w.checkLog("first", "waits")
		if waits := p.Waiting(); waits != "" {
			t.Errorf("it still waits: %s", waits)
		}
	})
}

// A read of an earlier state says nothing about the hours before it.
func TestEarlierStatesCountOnlyWhileTheStoreGoesOnShowingThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := committer{commits: commitState{registered: true, newest: 5}}
		for range 3 {
			c.waitForLater()
			time.Sleep(time.Hour)
		}
		if c.commits.restoredFrom != 0 {
			t.Error("it takes the manifest for a restored one after three reads in three hours")
		}
		for range 4 {
			c.waitForLater()
			time.Sleep(9 * time.Second)
		}
		c.waitForLater()
		if c.commits.restoredFrom != 5 {
			t.Error("it waits for a later state for longer than", pastMax)
		}
	})
}

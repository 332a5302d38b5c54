package producer

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"millpond.dev/otel-exporter/internal/manifest"
	"millpond.dev/otel-exporter/internal/peer"
)

// A watched is a leader's watchers, with its memory.
type watched struct {
	t        *testing.T
	budget   *budget
	counters counters
	looks    int
	*watchers
}

func newWatched(t *testing.T, memory int64) *watched {
	w := &watched{t: t, budget: newBudget(memory, 0)}
	w.watchers = newWatchers(w.budget, &w.counters, func() { w.looks++ })
	return w
}

func stampedState(version, nonce uint64) *manifest.Manifest {
	state := manifest.New(uuid.UUID{1}, 0)
	state.Stamp = manifest.Stamp{Version: version, Nonce: nonce}
	return state
}

// hears fails unless the watcher gets the state with this stamp, and returns its release.
func (w *watched) hears(watcher peer.Watcher, newerThan, version, nonce uint64) func() {
	w.t.Helper()
	bytes, release, refused := watcher.Next(w.t.Context(), newerThan)
	if refused != nil {
		w.t.Fatal(refused)
	}
	state, err := manifest.Decode(bytes)
	if err != nil || state.Stamp.Version != version || state.Stamp.Nonce != nonce {
		w.t.Errorf("%+v, %v, not version %d", state, err, version)
	}
	return release
}

func (w *watched) isRefused(watcher peer.Watcher, newerThan uint64, reason peer.Reason) {
	w.t.Helper()
	bytes, _, refused := watcher.Next(w.t.Context(), newerThan)
	if refused == nil || refused.Reason != reason {
		w.t.Errorf("%d bytes, %v", len(bytes), refused)
	}
}

// holds fails unless the budget and the share have paid for this many bytes.
func (w *watched) holds(bytes int64, because string) {
	w.t.Helper()
	if held, shared := w.budget.held.Load(), w.share.held.Load(); held != bytes || shared != bytes {
		w.t.Errorf("%d bytes of the budget and %d of the share are held, not %d: %s", held, shared, bytes, because)
	}
}

func TestAWatcherGetsWhatIsNewerAndNoMemoryStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatched(t, 1<<20)
		w.show(stampedState(3, 7), true)
		w.holds(0, "nobody watches")
		one, two := w.watch(), w.watch()
		if watching := w.counters.watchers.Load(); watching != 2 {
			t.Errorf("%d watchers", watching)
		}
		w.show(stampedState(4, 7), true)
		w.hears(one, 0, 4, 7)()
		size := w.budget.held.Load()
		w.holds(size, "one copy")
		var waits sync.WaitGroup
		waits.Go(func() { w.hears(two, 4, 5, 7)() })
		synctest.Wait()
		w.show(stampedState(4, 7), true)
		synctest.Wait()
		w.show(stampedState(5, 7), true)
		waits.Wait()
		// Somebody restored the bucket, and another state got the number.
		w.show(stampedState(5, 8), true)
		w.hears(one, 4, 5, 8)()
		w.holds(size, "one copy for both")
		slow := w.hears(one, 4, 5, 8)
		w.show(stampedState(6, 7), true)
		w.holds(2*size, "a slow reader holds the older one")
		one.Close()
		two.Close()
		two.Close()
		w.holds(size, "nobody watches, but the slow reader reads")
		slow()
		slow()
		w.holds(0, "nobody reads")
		if w.counters.watchers.Load() != 0 || w.counters.watchAnswers.Load() != 4 || w.looks != 0 {
			t.Errorf("%d watchers, %d answers, %d looks", w.counters.watchers.Load(), w.counters.watchAnswers.Load(), w.looks)
		}
	})
}

func TestTheFirstWatcherMakesTheLeaderLook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatched(t, 1<<20)
		w.show(stampedState(3, 7), true)
		watcher := w.watch()
		defer watcher.Close()
		var waits sync.WaitGroup
		waits.Go(func() { w.hears(watcher, 0, 3, 7)() })
		time.Sleep(2*lookAgain + lookAgain/2)
		synctest.Wait()
		w.show(stampedState(3, 7), true)
		waits.Wait()
		if w.looks != 3 {
			t.Errorf("%d looks", w.looks)
		}
		// With a state that is not newer, it only waits.
		ctx, end := context.WithTimeout(t.Context(), time.Hour)
		defer end()
		bytes, release, refused := watcher.Next(ctx, 3)
		if bytes != nil || release != nil || refused != nil || w.looks != 3 {
			t.Errorf("%d bytes, %v, %d looks", len(bytes), refused, w.looks)
		}
	})
}

func TestWatchesEndWithTheLeadWithTheProducerAndWithoutMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatched(t, 1<<20)
		watcher := w.watch()
		w.isRefused(watcher, 0, peer.NotLeading)
		w.show(stampedState(1, 7), true)
		var waits sync.WaitGroup
		waits.Go(func() { w.isRefused(watcher, 1, peer.NotLeading) })
		synctest.Wait()
		w.show(stampedState(2, 7), false)
		waits.Wait()
		w.holds(0, "it does not lead")
		w.show(stampedState(3, 7), true)
		slow := w.hears(watcher, 0, 3, 7)
		waits.Go(func() { w.isRefused(watcher, 3, peer.Leaving) })
		synctest.Wait()
		w.stop()
		waits.Wait()
		w.show(stampedState(4, 7), true)
		w.isRefused(watcher, 0, peer.Leaving)
		slow()
		w.holds(0, "it has stopped")
		watcher.Close()
	})
}

func TestWithoutMemoryConsumersAreRefusedAndPoll(t *testing.T) {
	// Neither an eighth of the memory nor the memory itself may be too small.
	poor := newWatched(t, 100)
	watcher := poor.watch()
	poor.show(stampedState(1, 7), true)
	poor.isRefused(watcher, 0, peer.OverBudget)
	poor.holds(0, "there was no memory")
	busy := newWatched(t, 1<<20)
	if !busy.budget.tryReserve(1<<20) || busy.budget.tryReserve(1) {
		t.Error("the budget")
	}
	watcher = busy.watch()
	busy.show(stampedState(1, 7), true)
	busy.isRefused(watcher, 0, peer.OverBudget)
	busy.budget.Release(1 << 20)
	busy.holds(0, "there was no memory")
	// The next state has memory.
	busy.show(stampedState(2, 7), true)
	busy.hears(watcher, 0, 2, 7)()
	watcher.Close()
	busy.holds(0, "nobody watches")
}

func TestTheBudgetIsTheMemoryOfThePort(t *testing.T) {
	var memory peer.Memory = newBudget(100, 0)
	if memory.Limit() != 100 || memory.Reserve(t.Context(), 60) != nil || memory.Reserve(t.Context(), 60) == nil {
		t.Error("the limit does not hold")
	}
	memory.Release(60)
	if memory.Reserve(t.Context(), 100) != nil {
		t.Error("nothing was given back")
	}
	memory.Release(100)
}

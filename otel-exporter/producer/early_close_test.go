package producer

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// atOnce is a time in which nobody has waited for a linger of a second.
const atOnce = 50 * time.Millisecond

// lingering gathers messages for a second.
func lingering() Config {
	config := testConfig()
	config.Linger = time.Second
	config.SegmentRawBytes = 1 << 20
	return config
}

// round appends once from each of the callers at the same time, and returns the time until all have their answers.
func (w *world) round(p *Producer, callers int) time.Duration {
	started := time.Now()
	var clients sync.WaitGroup
	for range callers {
		clients.Go(func() { w.mustAppend(p, "x") })
	}
	clients.Wait()
	return time.Since(started)
}

func TestCallersThatAllWaitDoNotWaitForTheLinger(t *testing.T) {
	for _, callers := range []int{1, 40} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, 1)
			p := w.producer(lingering(), 1)
			for rounds := range 4 {
				if took := w.round(p, callers); took >= atOnce {
					t.Errorf("%d callers, round %d: %v", callers, rounds, took)
				}
				if segments := len(w.entries()); segments != rounds+1 {
					t.Errorf("%d segments after round %d", segments, rounds)
				}
			}
		})
	}
}

func TestACallerThatMayAddSomethingIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		p := w.producer(lingering(), 1)
		w.round(p, 3)
		if took := w.round(p, 2); took < time.Second {
			t.Error(took)
		}
		// Two wait already when the third comes.
		go func() {
			time.Sleep(time.Second / 3)
			w.mustAppend(p, "x")
		}()
		if took := w.round(p, 2); took > time.Second/2 {
			t.Error(took)
		}
		synctest.Wait()
	})
}

func TestACallerThatNeverComesBackIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		p := w.producer(lingering(), 1)
		w.round(p, 2)
		waited := 0
		for w.round(p, 1) >= time.Second && waited <= earlyCloseSegments {
			waited++
		}
		if waited != earlyCloseSegments {
			t.Error(waited)
		}
	})
}

func TestCallersThatReturnAtOnceMakeNoMoreSegmentsThanLingers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		p := w.producer(lingering(), 1)
		started := time.Now()
		for range 100 {
			w.round(p, 5)
		}
		// Four were saved up.
		if took := time.Since(started); took < 96*time.Second || took > 98*time.Second || len(w.entries()) != 100 {
			t.Errorf("%d segments in %v", len(w.entries()), took)
		}
		// Saved up again.
		time.Sleep(20 * time.Second)
		for range 3 {
			if took := w.round(p, 5); took >= atOnce {
				t.Error(took)
			}
		}
	})
}

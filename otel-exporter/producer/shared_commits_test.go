package producer

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"millpond.dev/otel-exporter/internal/segment"
	"millpond.dev/otel-exporter/internal/storage/unreliable"
)

const gap = 10 * time.Millisecond

// fullSegments makes every message fill a segment, so that segments may wait for each other.
func fullSegments(linger time.Duration) Config {
	config := testConfig()
	config.Linger = linger
	return config
}

// steadily appends a message every 10 ms without waiting for answers, and returns each message's latency.
func (w *world) steadily(p *Producer, messages int, payload string) []time.Duration {
	w.t.Helper()
	took := make([]time.Duration, messages)
	var clients sync.WaitGroup
	for i := range took {
		clients.Go(func() {
			time.Sleep(time.Duration(i) * gap)
			started := time.Now()
			w.mustAppend(p, payload)
			took[i] = time.Since(started)
		})
	}
	clients.Wait()
	return took
}

// commits is the number of a producer's commits without its registration.
func commits(p *Producer) int64 { return p.Stats().CommitsCommitted - 1 }

// gets is the number of times a producer has read the manifest.
func gets(p *Producer) uint64 { return p.current.Load().pipeline.store.Requests().Gets }

func TestFullSegmentsShareACommitAndWaitNoLongerThanTheirLinger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		// The linger ends between two messages.
		linger := time.Second + gap/2
		p := w.producer(fullSegments(linger), 1)
		took := w.steadily(p, 300, "x")
		if segments := w.manifest().NextSequence; segments != 300 {
			t.Errorf("%d segments", segments)
		}
		// One commit per linger for three seconds, and one for the rest.
		if commits := commits(p); commits < 3 || commits > 5 {
			t.Errorf("%d commits", commits)
		}
		if longest := slices.Max(took); longest > linger {
			t.Errorf("one took %s", longest)
		}
	})
}

func TestCallersThatWaitForTheirAnswersAreNotHeldUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		p := w.producer(fullSegments(time.Hour), 1)
		started := time.Now()
		var clients sync.WaitGroup
		for range 4 {
			clients.Go(func() {
				for range 10 {
					w.mustAppend(p, "x")
				}
			})
		}
		clients.Wait()
		if waited := time.Since(started); waited >= 2*time.Second {
			t.Errorf("they waited %s", waited)
		}
		if segments := w.manifest().NextSequence; segments != 40 {
			t.Errorf("%d segments", segments)
		}
	})
}

func TestACommitWaitsUpToALingerForASegmentInFlight(t *testing.T) {
	for _, upload := range []time.Duration{500 * time.Millisecond, 2 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, 1)
			linger := time.Second
			p := w.producer(fullSegments(linger), 1)
			started := time.Now()
			var clients sync.WaitGroup
			clients.Go(func() {
				w.mustAppend(p, "a")
				if took := time.Since(started); took < min(upload, linger) || took > min(upload+quiet, linger) {
					t.Errorf("the first took %s beside an upload of %s", took, upload)
				}
			})
			synctest.Wait()
			slow := w.network.Hold(unreliable.Create, "segments")
			clients.Go(func() { w.mustAppend(p, "b") })
			<-slow.Arrived()
			time.Sleep(upload)
			slow.Release()
			clients.Wait()
			w.checkLog("a", "b")
		})
	}
}

func TestACommitDoesNotWaitForAnEmptySegment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		linger := time.Second
		p := w.producer(fullSegments(linger), 1)
		// Bypass Append, which would refuse it first.
		never := message("")
		never.Payload = make([]byte, segment.DefaultLimits().BlockRawMax)
		waiter := make(waiter, 1)
		p.current.Load().messages <- accepted{message: never, waiter: waiter}
		if result := <-waiter; !isA[*RefusedError](result.err) {
			t.Error(result)
		}
		time.Sleep(linger)
		started := time.Now()
		w.mustAppend(p, "a")
		if took := time.Since(started); took >= linger {
			t.Errorf("it took %s", took)
		}
	})
}

func TestASegmentThatItsLingerClosedIsCommittedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		config := fullSegments(time.Second)
		config.SegmentRawBytes = 1 << 20
		p := w.producer(config, 1)
		took := w.steadily(p, 250, "x")
		if segments := w.manifest().NextSequence; segments != 3 || commits(p) != 3 {
			t.Errorf("%d segments, %d commits", segments, commits(p))
		}
		if longest := slices.Max(took); longest > config.Linger {
			t.Errorf("one took %s", longest)
		}
	})
}

func TestWaitingSegmentsAreCommittedBeforeTheyFillTheMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		p := w.producer(fullSegments(time.Hour), 1)
		// Random bytes in hexadecimal compress to half their size.
		random := rand.New(rand.NewPCG(1, 2))
		var noise strings.Builder
		for range 500 {
			noise.WriteString(strconv.FormatUint(random.Uint64(), 16))
		}
		var took []time.Duration
		var appends sync.WaitGroup
		appends.Go(func() { took = w.steadily(p, 2_000, noise.String()) })
		// Look between two messages.
		time.Sleep(gap / 2)
		var most int64
		for range 2_000 {
			most = max(most, p.Stats().MemoryHeldBytes)
			time.Sleep(gap)
		}
		appends.Wait()
		if longest := slices.Max(took); longest >= 10*time.Second {
			t.Errorf("one took %s", longest)
		}
		if limit := p.Stats().MemoryLimitBytes; most <= limit/2 || most >= limit/10*9 {
			t.Errorf("%d bytes of %d were held", most, limit)
		}
		if commits := commits(p); commits >= 200 {
			t.Errorf("%d commits", commits)
		}
	})
}

// Segments held while there was no store have used up their linger: no message commits later than at low load.
func TestMessagesHeldForAStoreWaitOnlyForTheRestOfTheirLinger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		w.network.Outage(unreliable.Lost)
		linger := time.Second
		p := w.begun(fullSegments(linger))
		began := time.Now()
		var opened time.Duration
		var store sync.WaitGroup
		store.Go(func() {
			time.Sleep(5 * time.Second)
			w.network.Outage(unreliable.Honest)
			if err := p.Opened(t.Context()); err != nil {
				t.Error(err)
			}
			opened = time.Since(began)
		})
		took := w.steadily(p, 1_500, "x")
		store.Wait()
		if took[0] != opened {
			t.Errorf("the first took %s, with a store after %s", took[0], opened)
		}
		for i, took := range took {
			if held := opened - time.Duration(i)*gap; took > max(held, linger) {
				t.Errorf("message %d took %s, and was held for %s", i, took, held)
			}
		}
		w.close(p)
		if segments := w.manifest().NextSequence; segments != 1_500 {
			t.Errorf("%d segments", segments)
		}
	})
}

func TestCloseDoesNotWaitForOthersToShareACommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		p := w.producer(fullSegments(time.Hour), 1)
		messages := names("message", 12)
		var clients sync.WaitGroup
		for _, message := range messages {
			clients.Go(func() { w.mustAppend(p, message) })
			synctest.Wait()
		}
		w.checkLog()
		closed := time.Now()
		w.close(p)
		if waited := time.Since(closed); waited != 0 {
			t.Errorf("it waited %s", waited)
		}
		clients.Wait()
		w.checkLog(messages...)
		if commits := commits(p); commits != 1 {
			t.Errorf("%d commits", commits)
		}
	})
}

func TestOnlyProducersThatShareAShardReadTheManifestFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		producers := []*Producer{w.producer(fullSegments(time.Second), 1), w.producer(fullSegments(time.Second), 2)}
		const rounds = 20
		for range rounds {
			for _, p := range producers {
				w.mustAppend(p, "x")
			}
		}
		for _, p := range producers {
			// One refusal each, before the producers knew of each other.
			if stats := p.Stats(); stats.CommitsMismatch != 1 || commits(p) != rounds {
				t.Errorf("%+v", stats)
			}
		}
		alone := producers[0]
		together := gets(alone)
		for range 30 {
			w.mustAppend(alone, "x")
		}
		if mismatches := alone.Stats().CommitsMismatch; mismatches != 1 {
			t.Errorf("%d swaps were refused", mismatches)
		}
		// The first of them finds the other's last commit.
		if reads := gets(alone) - together; reads != 1+12 {
			t.Errorf("%d reads", reads)
		}
	})
}

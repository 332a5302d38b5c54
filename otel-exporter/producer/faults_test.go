package producer

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"millpond.dev/otel-exporter/internal/manifest"
	"millpond.dev/otel-exporter/internal/storage/unreliable"
)

func TestAnUploadThatLandedUnreportedIsOneSegment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		p := w.producer(testConfig(), 1)
		w.network.Once(unreliable.Create, "segments", unreliable.LandsUnreported)
		w.mustAppend(p, "a")
		w.checkLog("a")
		if w.segments() != 1 || w.network.Unused() != 0 || p.Stats().UploadRetries != 1 {
			t.Error(w.segments(), w.network.Unused(), p.Stats())
		}
	})
}

// Whatever the network does to commits, an acknowledged message is in the log once: the producer table resolves unknown
// outcomes.
func TestACommitThatLandedUnreportedYieldsItsRecordsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		p := w.producer(testConfig(), 1)
		messages := names("message", 6)
		for i, message := range messages {
			if i%2 == 1 {
				w.network.Once(unreliable.Replace, "manifest", unreliable.LandsUnreported)
			}
			w.mustAppend(p, message)
		}
		w.checkLog(messages...)
		if found := p.Stats().CommitsFound; found != 3 || w.network.Unused() != 0 {
			t.Error(found)
		}
	})
}

func TestACommitThatLandsAfterTheNextAttemptHasReadTheManifestCountsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		p := w.producer(testConfig(), 1)
		// The first attempt is reported as failed but still in flight ...
		late := w.network.Detain(unreliable.Replace, "manifest")
		// ... when the second one, based on the same manifest, is about to be sent.
		second := w.network.Hold(unreliable.Replace, "manifest")
		var client sync.WaitGroup
		client.Go(func() { w.mustAppend(p, "a") })
		<-second.Arrived()
		late.Release()
		w.network.Settled()
		w.checkLog("a")
		second.Release()
		client.Wait()
		w.checkLog("a")
	})
}

// The segments of an unresolved attempt must not change: more join only once it can never land.
func TestNothingJoinsACommitWhoseOutcomeIsUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		p := w.producer(testConfig(), 1)
		late := w.network.Detain(unreliable.Replace, "manifest")
		second := w.network.Hold(unreliable.Replace, "manifest")
		var clients sync.WaitGroup
		clients.Go(func() { w.mustAppend(p, "a") })
		<-late.Arrived()
		// The upload finishes while the first attempt may still land.
		clients.Go(func() { w.mustAppend(p, "b") })
		<-second.Arrived()
		late.Release()
		w.network.Settled()
		second.Release()
		clients.Wait()
		w.checkLog("a", "b")
	})
}

// A proxy repeats a request whose answer it lost. The store refuses the second copy because the first landed.
func TestARefusalThatOurOwnCommitCausedAcknowledgesNothingButThatCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		p := w.producer(testConfig(), 1)
		w.network.Once(unreliable.Replace, "manifest", unreliable.Repeated)
		var sequences [3]uint64
		var clients sync.WaitGroup
		clients.Go(func() { sequences[0] = w.mustAppend(p, "a") })
		time.Sleep(unreliable.RepeatedAfter / 2)
		// Its segment is uploaded before the first commit gets an answer.
		clients.Go(func() { sequences[1] = w.mustAppend(p, "b") })
		clients.Wait()
		sequences[2] = w.mustAppend(p, "c")
		w.checkLog("a", "b", "c")
		if sequences != [3]uint64{0, 1, 2} || p.Stats().CommitsFound != 1 || w.network.Unused() != 0 {
			t.Error(sequences, p.Stats().CommitsFound, w.network.Unused())
		}
	})
}

func TestARefusalThatAnotherProducerCausedLetsMoreSegmentsJoin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		p := w.producer(testConfig(), 1)
		before := p.Stats().CommitsCommitted
		commit := w.network.Hold(unreliable.Replace, "manifest")
		var clients sync.WaitGroup
		clients.Go(func() { w.mustAppend(p, "a") })
		<-commit.Arrived()
		w.change(func(*manifest.Manifest) {})
		clients.Go(func() { w.mustAppend(p, "b") })
		synctest.Wait()
		if w.segments() != 2 {
			t.Errorf("%d segments are uploaded", w.segments())
		}
		commit.Release()
		clients.Wait()
		if commits := p.Stats().CommitsCommitted - before; commits != 1 {
			t.Errorf("%d commits", commits)
		}
		w.checkLog("a", "b")
	})
}

// Another producer uses the ID, or the manifest comes from a copy of the buffer.
func TestACommitThatTheProducerDidNotMakeAcknowledgesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		p := w.producer(testConfig(), 1)
		commit := w.network.Hold(unreliable.Replace, "manifest")
		var client sync.WaitGroup
		client.Go(func() {
			if _, err := w.append(p, "a"); !isA[*OutcomeUnknownError](err) {
				t.Error(err)
			}
		})
		<-commit.Arrived()
		w.change(func(m *manifest.Manifest) {
			m.Producers = slices.Clone(m.Producers)
			m.Producers[0].Commit, m.Producers[0].Count = 1, 2
		})
		commit.Release()
		client.Wait()
		w.mustAppend(p, "b")
		w.checkLog("b")
	})
}

func TestARegistrationByAClockADayAheadLeavesOutcomesResolvable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		p := w.producer(testConfig(), 1)
		w.network.Once(unreliable.Replace, "manifest", unreliable.LandsUnreported)
		read := w.network.Hold(unreliable.Get, "manifest")
		var client sync.WaitGroup
		client.Go(func() { w.mustAppend(p, "a") })
		<-read.Arrived()
		ahead := uint64(time.Now().Add(25 * time.Hour).UnixMilli())
		w.change(func(m *manifest.Manifest) { m.Producers = m.Register(manifest.ProducerID{9}, ahead).Producers })
		read.Release()
		client.Wait()
		w.checkLog("a")
	})
}

func TestACommitThatLandsAfterTheOneThatReplacedItChangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		p := w.producer(testConfig(), 1)
		late := w.network.Detain(unreliable.Replace, "manifest")
		w.mustAppend(p, "a")
		late.Release()
		w.network.Settled()
		w.mustAppend(p, "b")
		w.checkLog("a", "b")
	})
}

func TestAnOutageMakesCallersWaitAndLosesNothing(t *testing.T) {
	for _, outage := range []unreliable.Fault{unreliable.Lost, unreliable.Hangs} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, 1)
			config := testConfig()
			config.MemoryLimit = config.workingMemory() + 2<<10
			p := w.producer(config, 1)
			w.network.Outage(outage)
			messages := names("during the outage, message", 100)
			var clients sync.WaitGroup
			for _, message := range messages {
				clients.Go(func() { w.appendUntilAcknowledged(p, message) })
			}
			time.Sleep(2 * time.Minute)
			synctest.Wait()
			if p.Waiting() == "" {
				t.Error("the producer does not report that it waits")
			}
			stats := p.Stats()
			if stats.MemoryHeldBytes > stats.MemoryLimitBytes || stats.Refused < 100 {
				t.Errorf("%+v", stats)
			}
			w.checkLog()
			w.network.Outage(unreliable.Honest)
			clients.Wait()
			w.checkOnce(messages)
			if p.Waiting() != "" {
				t.Error(p.Waiting())
			}
		})
	}
}

// seeds returns the seeds of a run of random faults. MILLPOND_TEST_SEED selects a single one.
func seeds(t *testing.T, count uint64) []uint64 {
	if given := os.Getenv("MILLPOND_TEST_SEED"); given != "" {
		seed, err := strconv.ParseUint(given, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return []uint64{seed}
	}
	var seeds []uint64
	for seed := range count {
		seeds = append(seeds, seed)
	}
	return seeds
}

func TestRandomFaultsLoseNothingAndDoubleNothing(t *testing.T) {
	for _, seed := range seeds(t, 40) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, seed)
				config := testConfig()
				// A small tail seals pages all the time.
				config.TailMax = 4 + int(seed%8)
				var clients sync.WaitGroup
				var all []string
				first, second := w.producer(config, 2*seed), w.producer(config, 2*seed+1)
				w.network.Set(unreliable.Faults{Write: 0.12, Read: 0.2, Late: 10 * time.Second, Repeated: 0.12})
				for name, p := range map[string]*Producer{"first": first, "second": second} {
					for client := range 3 {
						messages := names(fmt.Sprintf("%s, client %d, message", name, client), 12)
						all = append(all, messages...)
						clients.Go(func() {
							for _, message := range messages {
								w.appendUntilAcknowledged(p, message)
							}
						})
					}
				}
				clients.Wait()
				w.network.Set(unreliable.Faults{})
				w.network.Settled()
				w.checkOnce(all)
				if log := w.log(); len(log) != len(all) {
					t.Errorf("%d messages of %d sent", len(log), len(all))
				}
				if state := w.manifest(); len(state.Pages) == 0 || state.Check() != "" {
					t.Errorf("%d pages, %s", len(state.Pages), state.Check())
				}
				// Each client sends one message after another, so the log must keep their order.
				order := w.log()
				for i := 1; i < len(all); i++ {
					if before, _, _ := strings.Cut(all[i-1], "message"); strings.HasPrefix(all[i], before) &&
						slices.Index(order, all[i-1]) > slices.Index(order, all[i]) {
						t.Errorf("%q comes after %q", all[i-1], all[i])
					}
				}
			})
		})
	}
}

func TestProducersThatContendForOneShardAllGetIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		var clients sync.WaitGroup
		var all []string
		for seed := range uint64(4) {
			p := w.producer(testConfig(), seed)
			messages := names(fmt.Sprintf("producer %d, message", seed), 25)
			all = append(all, messages...)
			clients.Go(func() {
				for _, message := range messages {
					w.mustAppend(p, message)
				}
			})
		}
		clients.Wait()
		w.checkOnce(all)
	})
}

func TestASegmentBelowTheOrphanFloorIsUploadedAgainAboveIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		p := w.producer(testConfig(), 1)
		upload := w.network.Hold(unreliable.Create, "segments")
		var client sync.WaitGroup
		client.Go(func() { w.mustAppend(p, "a") })
		<-upload.Arrived()
		floor := uint64(time.Now().UnixMilli()) + 60_000
		w.change(func(m *manifest.Manifest) { m.OrphanFloorMs = floor })
		upload.Release()
		client.Wait()
		w.checkLog("a")
		if entry := w.entries()[0]; entry.Segment.Time() < floor || w.segments() != 2 || p.Stats().Reuploads != 1 {
			t.Error(entry, w.segments(), p.Stats().Reuploads)
		}
	})
}

func TestAForgottenProducerWhoseCommitCertainlyFailedGoesOnUnderANewID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		p := w.producer(testConfig(), 1)
		commit := w.network.Hold(unreliable.Replace, "manifest")
		var client sync.WaitGroup
		client.Go(func() { w.mustAppend(p, "a") })
		<-commit.Arrived()
		w.change(func(m *manifest.Manifest) { m.Producers = nil })
		commit.Release()
		client.Wait()
		w.mustAppend(p, "b")
		w.checkLog("a", "b")
		if count := len(w.manifest().Producers); count != 1 || p.Stats().Expired != 1 {
			t.Error(count, p.Stats().Expired)
		}
	})
}

func TestAForgottenProducerWhoseCommitMayHaveLandedSaysSoAndGoesOn(t *testing.T) {
	for fault, expected := range map[unreliable.Fault][]string{
		unreliable.LandsUnreported: {"a", "b"},
		unreliable.Lost:            {"b"},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, 1)
			p := w.producer(testConfig(), 1)
			w.network.Once(unreliable.Replace, "manifest", fault)
			read := w.network.Hold(unreliable.Get, "manifest")
			var client sync.WaitGroup
			client.Go(func() {
				_, err := w.append(p, "a")
				if !isA[*OutcomeUnknownError](err) || !IsRetryable(err) || HasNoSideEffects(err) {
					t.Error(err)
				}
			})
			<-read.Arrived()
			w.change(func(m *manifest.Manifest) { m.Producers = nil })
			read.Release()
			client.Wait()
			w.mustAppend(p, "b")
			w.checkLog(expected...)
		})
	}
}

func TestAForgottenProducerWhoseRefusedCommitIsInTheLogSaysSoAndGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		p := w.producer(testConfig(), 1)
		w.network.Once(unreliable.Replace, "manifest", unreliable.Repeated)
		read := w.network.Hold(unreliable.Get, "manifest")
		var client sync.WaitGroup
		client.Go(func() {
			if _, err := w.append(p, "a"); !isA[*OutcomeUnknownError](err) {
				t.Error(err)
			}
		})
		<-read.Arrived()
		w.change(func(m *manifest.Manifest) { m.Producers = nil })
		read.Release()
		client.Wait()
		w.mustAppend(p, "b")
		w.checkLog("a", "b")
	})
}

// An older manifest was restored: the number does not follow, and no outcome can be resolved.
func TestAManifestThatWasPutBackIsNoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		p := w.producer(testConfig(), 1)
		w.mustAppend(p, "a")
		old := w.manifest()
		w.mustAppend(p, "b")
		w.change(func(m *manifest.Manifest) {
			stamp := m.Stamp
			*m = *old
			m.Stamp = stamp
		})
		if _, err := w.append(p, "c"); !isA[*OutcomeUnknownError](err) {
			t.Error(err)
		}
		w.mustAppend(p, "d")
		w.checkLog("a", "d")
	})
}

func TestAStreamThatAnotherProducerBeganInAnotherEncodingIsRefusedAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		first, second := w.producer(testConfig(), 1), w.producer(testConfig(), 2)
		w.mustAppend(first, "a")
		other := message("x")
		other.Encoding = OTLP
		fine := message("b")
		fine.Stream = "events.other"
		var clients sync.WaitGroup
		clients.Go(func() {
			if _, err := second.Append(t.Context(), other); !isA[*NotCommittedError](err) || !HasNoSideEffects(err) {
				t.Error(err)
			}
		})
		clients.Go(func() {
			if _, err := second.Append(t.Context(), fine); err != nil {
				t.Error(err)
			}
		})
		clients.Wait()
		if _, err := second.Append(t.Context(), other); !isA[*RefusedError](err) {
			t.Error(err)
		}
		w.checkLog("a", "b")
	})
}

func TestSegmentsThatWaitForASlowCommitShareTheNextOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		p := w.producer(testConfig(), 1)
		before := p.Stats().CommitsCommitted
		slow := w.network.Hold(unreliable.Replace, "manifest")
		messages := names("message", 12)
		var clients sync.WaitGroup
		for i, message := range messages {
			clients.Go(func() {
				if sequence := w.mustAppend(p, message); sequence != uint64(i) {
					t.Errorf("%s has sequence %d", message, sequence)
				}
			})
			if i == 0 {
				<-slow.Arrived()
			}
			synctest.Wait()
		}
		if w.segments() != len(messages) {
			t.Errorf("%d segments are uploaded", w.segments())
		}
		slow.Release()
		clients.Wait()
		if commits := p.Stats().CommitsCommitted - before; commits != 2 {
			t.Errorf("%d commits", commits)
		}
		w.checkLog(messages...)
	})
}

func TestSegmentsAreCommittedInTheOrderOfAcceptanceWhateverTheUploadsDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		p := w.producer(testConfig(), 1)
		slow := w.network.Hold(unreliable.Create, "segments")
		messages := names("message", 10)
		var clients sync.WaitGroup
		for _, message := range messages {
			clients.Go(func() { w.mustAppend(p, message) })
			synctest.Wait()
		}
		<-slow.Arrived()
		if w.segments() != len(messages)-1 {
			t.Errorf("%d segments are uploaded", w.segments())
		}
		w.checkLog()
		slow.Release()
		clients.Wait()
		w.checkLog(messages...)
	})
}

package producer

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"millpond.dev/otel-exporter/internal/manifest"
	"millpond.dev/otel-exporter/internal/storage"
	"millpond.dev/otel-exporter/internal/storage/unreliable"
)

// begun starts a producer that opens the world's store through its network, as Begin does.
func (w *world) begun(config Config) *Producer {
	w.t.Helper()
	p, err := begin(systemEnvironment(), config, presented(nil), func(ctx context.Context) (*storage.Store, error) {
		store := storage.Over(w.network, storage.RequestTimeout)
		if _, _, _, err := store.Get(ctx, manifest.BufferKey); err != nil {
			return nil, err
		}
		return store, store.SelfTest(ctx)
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return p
}

// notABuffer writes something else at the buffer's key.
func (w *world) notABuffer() {
	w.t.Helper()
	if _, err := w.memory.Create(w.t.Context(), manifest.BufferKey, storage.Body{[]byte("something else")}); err != nil {
		w.t.Fatal(err)
	}
}

func TestOpenWithoutAStoreGivesUpInTimeWithAReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		w.network.Outage(unreliable.Lost)
		store := storage.Over(w.network, storage.RequestTimeout)
		started := time.Now()
		_, err := start(t.Context(), systemEnvironment(), store, testConfig(), nil)
		if err == nil || !strings.Contains(err.Error(), "the connection was lost") ||
			!strings.Contains(err.Error(), "was not reached for 30s") || isA[*OpenError](err) {
			t.Error(err)
		}
		if waited := time.Since(started); waited != testConfig().StartTimeout {
			t.Error(waited)
		}
		// An object that is not a buffer fails at once.
		w.network.Outage(unreliable.Honest)
		w.notABuffer()
		started = time.Now()
		_, err = start(t.Context(), systemEnvironment(), store, testConfig(), nil)
		if !errors.Is(err, manifest.ErrMagic) || !isA[*OpenError](err) || time.Since(started) != 0 {
			t.Error(err, time.Since(started))
		}
	})
}

func TestAProducerThatBeginsWithoutAStoreHoldsWhatItIsGivenUntilItIsThere(t *testing.T) {
	for _, outage := range []unreliable.Fault{unreliable.Lost, unreliable.Hangs} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, 1)
			w.network.Outage(outage)
			config := testConfig()
			config.MemoryLimit = config.workingMemory() + 2<<10
			p := w.begun(config)
			messages := names("before there was a store, message", 100)
			var clients sync.WaitGroup
			for _, message := range messages {
				clients.Go(func() { w.appendUntilAcknowledged(p, message) })
			}
			// Far longer than Open would wait.
			time.Sleep(10 * time.Minute)
			synctest.Wait()
			if !strings.Contains(p.Waiting(), "waiting for the store (open)") {
				t.Errorf("the producer reports that it waits for %q", p.Waiting())
			}
			stats := p.Stats()
			if stats.MemoryHeldBytes > stats.MemoryLimitBytes || stats.Refused < 100 {
				t.Errorf("%+v", stats)
			}
			waiting, end := context.WithTimeout(t.Context(), time.Second)
			defer end()
			if err := p.Opened(waiting); !errors.Is(err, context.DeadlineExceeded) || isA[*OpenError](err) {
				t.Error(err)
			}
			w.network.Outage(unreliable.Honest)
			if err := p.Opened(t.Context()); err != nil {
				t.Error(err)
			}
			clients.Wait()
			w.checkOnce(messages)
			w.close(p)
			if p.Waiting() != "" {
				t.Error(p.Waiting())
			}
		})
	}
}

func TestMessagesForAnImpossibleBufferAreRefusedWithTheReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		w.network.Outage(unreliable.Lost)
		p := w.begun(testConfig())
		var clients sync.WaitGroup
		refused := func(payload string) {
			_, err := w.append(p, payload)
			if !isA[*NotCommittedError](err) || !strings.Contains(err.Error(), "the buffer cannot be opened") {
				t.Errorf("%s: %v", payload, err)
			}
		}
		clients.Go(func() { refused("before it was known") })
		time.Sleep(time.Minute)
		w.notABuffer()
		w.network.Outage(unreliable.Honest)
		if err := p.Opened(t.Context()); !isA[*OpenError](err) || !errors.Is(err, manifest.ErrMagic) {
			t.Error(err)
		}
		clients.Wait()
		refused("after it was known")
		if err := p.Close(t.Context()); !isA[*OpenError](err) {
			t.Error(err)
		}
		if held := p.Stats().MemoryHeldBytes; held != 0 {
			t.Errorf("%d bytes are held", held)
		}
	})
}

func TestAProducerThatWasGivenNothingStopsWithoutAStore(t *testing.T) {
	for _, outage := range []unreliable.Fault{unreliable.Lost, unreliable.Hangs} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, 1)
			w.network.Outage(outage)
			p := w.begun(testConfig())
			time.Sleep(time.Minute)
			stopped := time.Now()
			if err := p.Close(t.Context()); err != nil || time.Since(stopped) != 0 {
				t.Error(err, time.Since(stopped))
			}
			if err := p.Opened(t.Context()); !errors.Is(err, ErrClosed) {
				t.Error(err)
			}
		})
	}
}

func TestAProducerThatStopsBeforeThereIsAStoreSaysWhatIsLeftAndGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		w.network.Outage(unreliable.Lost)
		p := w.begun(testConfig())
		var client sync.WaitGroup
		client.Go(func() { w.mustAppend(p, "a") })
		synctest.Wait()
		ctx, end := context.WithTimeout(t.Context(), time.Minute)
		defer end()
		err := p.Close(ctx)
		if err == nil || !strings.Contains(err.Error(), "waiting for the store (open)") || !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		w.network.Outage(unreliable.Honest)
		w.close(p)
		client.Wait()
		w.checkLog("a")
	})
}

// Somebody deleted the buffer and created another one in its place. A producer of the old one must not begin a manifest:
// the new one's producers would refuse it for ever.
func TestAProducerBeginsNoManifestInAnotherBuffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		old := w.producer(testConfig(), 1)
		w.mustAppend(old, "before")
		buffer := w.get(manifest.BufferKey)
		for _, key := range []string{manifest.BufferKey, manifest.Key(0)} {
			if err := w.memory.Delete(t.Context(), key); err != nil {
				t.Fatal(err)
			}
		}
		store := storage.Over(w.memory, storage.RequestTimeout)
		if _, err := manifest.OpenBuffer(t.Context(), store, &manifest.Buffer{ID: uuid.UUID{7}, Shards: 1}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.append(old, "lost with the log"); !isA[*OutcomeUnknownError](err) {
			t.Error(err)
		}
		told := make(chan error)
		go func() {
			_, err := w.append(old, "after")
			told <- err
		}()
		time.Sleep(2 * time.Minute)
		if waits := old.Waiting(); !strings.Contains(waits, "has taken the place of") {
			t.Error(waits)
		}
		if _, _, err := w.memory.Get(t.Context(), manifest.Key(0), 1<<20); !errors.Is(err, storage.ErrAbsent) {
			t.Error(err)
		}
		// The producer goes on if the old buffer returns, so the test can end.
		if err := w.memory.Delete(t.Context(), manifest.BufferKey); err != nil {
			t.Fatal(err)
		}
		if _, err := w.memory.Create(t.Context(), manifest.BufferKey, storage.Body{buffer}); err != nil {
			t.Fatal(err)
		}
		if err := <-told; err != nil {
			t.Error(err)
		}
	})
}

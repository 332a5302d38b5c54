package producer

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"millpond.dev/otel-exporter/internal/manifest"
	"millpond.dev/otel-exporter/internal/storage"
	"millpond.dev/otel-exporter/internal/storage/unreliable"
)

func TestMessagesOfManyStreamsShareASegment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		config := testConfig()
		config.SegmentRawBytes = 1 << 20
		p := w.producer(config, 1)
		var clients sync.WaitGroup
		streams := []string{"otlp.logs", "otlp.traces", "otlp.metrics"}
		for _, stream := range streams {
			for _, payload := range []string{"1", "2"} {
				clients.Go(func() {
					m := Message{Stream: stream, Encoding: OTLP, Payload: []byte(stream + payload), Records: 3, ReceivedAt: time.Now()}
					if committed, err := p.Append(t.Context(), m); err != nil || committed.Sequence != 0 {
						t.Error(committed, err)
					}
				})
			}
		}
		clients.Wait()
		log := w.log()
		slices.Sort(log)
		if !slices.Equal(log, []string{"otlp.logs1", "otlp.logs2", "otlp.metrics1", "otlp.metrics2", "otlp.traces1", "otlp.traces2"}) {
			t.Error(log)
		}
		entry := w.entries()[0]
		for _, part := range entry.Parts {
			if part.Messages != 2 || part.Records != 6 {
				t.Errorf("%+v", part)
			}
		}
		stats := p.Stats()
		if stats.Segments != 1 || stats.Messages != 6 || stats.Records != 18 || stats.StoredBytes != int64(entry.Size) {
			t.Errorf("%+v", stats)
		}
	})
}

func TestASegmentClosesWhenItsLingerIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		config := testConfig()
		config.SegmentRawBytes = 1 << 20
		config.Linger = 3 * time.Second
		var lingered time.Duration
		config.Hooks.Closed = func(after time.Duration) { lingered = after }
		p := w.producer(config, 1)
		w.round(p, 2)
		// The second caller may still come.
		started := time.Now()
		w.mustAppend(p, "a")
		if waited := time.Since(started); waited != 3*time.Second || lingered != waited {
			t.Error(waited, lingered)
		}
		w.checkLog("x", "x", "a")
	})
}

func TestWithoutALingerNoMessageWaitsForAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		config := testConfig()
		config.SegmentRawBytes = 1 << 20
		config.Linger = 0
		p := w.producer(config, 1)
		started := time.Now()
		w.mustAppend(p, "a")
		w.mustAppend(p, "b")
		w.checkLog("a", "b")
		if waited := time.Since(started); waited != 0 {
			t.Error(waited)
		}
	})
}

func TestASegmentClosesWhenItIsFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		config := testConfig()
		config.SegmentRawBytes = 1 << 20
		config.SegmentBytes = 3_000
		config.Linger = time.Hour
		p := w.producer(config, 1)
		// Incompressible messages fill blocks of 1 KiB, and three of those fill a segment.
		random := rand.New(rand.NewPCG(1, 2))
		var payloads []string
		for range 40 {
			payload := make([]byte, 300)
			for i := range payload {
				payload[i] = byte(random.Uint32())
			}
			payloads = append(payloads, string(payload))
		}
		var clients sync.WaitGroup
		for _, payload := range payloads {
			clients.Go(func() { w.mustAppend(p, payload) })
			// Compress each block before the next one fills.
			synctest.Wait()
		}
		// Blocks have three messages, segments four blocks.
		if full := w.segments(); full != 3 {
			t.Errorf("%d full segments of 40 messages", full)
		}
		w.close(p)
		clients.Wait()
		w.checkOnce(payloads)
	})
}

func TestOrderOfCommitIsOrderOfAcceptance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		p := w.producer(testConfig(), 1)
		messages := names("message", 50)
		var clients sync.WaitGroup
		for _, message := range messages {
			clients.Go(func() { w.mustAppend(p, message) })
			// The message is accepted before the next one is sent; it need not be committed.
			synctest.Wait()
		}
		clients.Wait()
		w.checkLog(messages...)
	})
}

func TestGiantMessagesGetTheirOwnBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		p := w.producer(testConfig(), 1)
		giant := strings.Repeat("giant ", 20_000)
		messages := []string{"a", giant, "b", giant + "2", ""}
		for _, message := range messages {
			w.mustAppend(p, message)
		}
		w.checkLog(messages...)
		_, err := w.append(p, strings.Repeat("x", 1<<20))
		if !isA[*RefusedError](err) || IsRetryable(err) || !HasNoSideEffects(err) {
			t.Error(err)
		}
	})
}

func TestUnacceptableMessagesAreRefusedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		p := w.producer(testConfig(), 1)
		w.mustAppend(p, "a")
		for _, wrong := range []Message{
			{Stream: "a/b", Encoding: OTLP},
			{Stream: "", Encoding: OTLP},
			{Stream: "events.test", Encoding: OTLP},
			{Stream: "events.new"},
		} {
			if _, err := p.Append(t.Context(), wrong); !isA[*RefusedError](err) {
				t.Errorf("%+v: %v", wrong, err)
			}
		}
		if refused := p.Stats().Refused; refused != 4 {
			t.Error(refused)
		}
	})
}

func TestCloseCommitsWhatWasAcceptedAndRefusesTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		config := testConfig()
		config.Linger, config.SegmentRawBytes = time.Hour, 1<<20
		p := w.producer(config, 1)
		messages := names("message", 20)
		var clients sync.WaitGroup
		for _, message := range messages {
			clients.Go(func() { w.mustAppend(p, message) })
		}
		synctest.Wait()
		w.close(p)
		clients.Wait()
		w.checkOnce(messages)
		if _, err := w.append(p, "late"); !errors.Is(err, ErrClosed) || !IsRetryable(err) || !HasNoSideEffects(err) {
			t.Error(err)
		}
	})
}

func TestCloseThatTimesOutReportsTheReasonAndCanBeRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		p := w.producer(testConfig(), 1)
		w.network.Outage(unreliable.Lost)
		var client sync.WaitGroup
		client.Go(func() { w.mustAppend(p, "a") })
		synctest.Wait()
		ctx, end := context.WithTimeout(t.Context(), time.Minute)
		defer end()
		err := p.Close(ctx)
		if err == nil || !strings.Contains(err.Error(), "waiting for the store (upload)") || !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		w.network.Outage(unreliable.Honest)
		w.close(p)
		client.Wait()
		w.checkLog("a")
	})
}

func TestACallerThatGoesAwayLeavesItsMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		p := w.producer(testConfig(), 1)
		commit := w.network.Hold(unreliable.Replace, "manifest")
		ctx, goAway := context.WithCancel(t.Context())
		var client sync.WaitGroup
		client.Go(func() {
			_, err := p.Append(ctx, message("a"))
			if !isA[*OutcomeUnknownError](err) || !errors.Is(err, context.Canceled) || HasNoSideEffects(err) || !IsRetryable(err) {
				t.Error(err)
			}
		})
		<-commit.Arrived()
		goAway()
		client.Wait()
		commit.Release()
		w.mustAppend(p, "b")
		w.checkLog("a", "b")
	})
}

func TestABudgetIsGrantedInTheOrderOfAsking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudget(100, 10*time.Second)
		if err := b.reserve(t.Context(), 50); err != nil {
			t.Fatal(err)
		}
		var clients sync.WaitGroup
		clients.Go(func() {
			if err := b.reserve(t.Context(), 100); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		clients.Go(func() {
			started := time.Now()
			// Granted first, the large request holds everything until the small one times out.
			if err := b.reserve(t.Context(), 1); !isA[*OverBudgetError](err) || time.Since(started) != 10*time.Second {
				t.Error(err, time.Since(started))
			}
		})
		synctest.Wait()
		time.Sleep(time.Second)
		b.release(50)
		clients.Wait()
		started := time.Now()
		if err := b.reserve(t.Context(), 101); !isA[*OverBudgetError](err) || time.Since(started) != 0 {
			t.Error(err)
		}
		ctx, end := context.WithTimeout(t.Context(), time.Second)
		defer end()
		if err := b.reserve(ctx, 1); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	})
}

func TestACallerThatDoesNotWaitGetsWhatIsFree(t *testing.T) {
	b := newBudget(100, 0)
	if err := b.reserve(t.Context(), 100); err != nil {
		t.Fatal(err)
	}
	if err := b.reserve(t.Context(), 1); !isA[*OverBudgetError](err) {
		t.Error(err)
	}
}

func TestMemoryThatIsFullMakesCallersWaitAndThenRefusesThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		config := testConfig()
		config.MemoryLimit = config.workingMemory() + 2<<10
		p := w.producer(config, 1)
		w.network.Outage(unreliable.Hangs)
		var clients sync.WaitGroup
		refused := make(chan error, 100)
		for range 100 {
			clients.Go(func() {
				if _, err := w.append(p, strings.Repeat("x", 400)); err != nil {
					refused <- err
				}
			})
		}
		time.Sleep(config.MaxWait)
		synctest.Wait()
		if count := len(refused); count == 0 || count == 100 {
			t.Errorf("%d of 100 are refused", count)
		}
		if stats := p.Stats(); stats.MemoryHeldBytes > stats.MemoryLimitBytes {
			t.Errorf("%+v", stats)
		}
		w.network.Outage(unreliable.Honest)
		clients.Wait()
		close(refused)
		for err := range refused {
			if !isA[*OverBudgetError](err) {
				t.Error(err)
			}
		}
		if log := w.log(); len(log)+len(refused) > 100 || len(log) == 0 {
			t.Error(len(log))
		}
	})
}

func TestAShardIsDrawnAndMustExist(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		config := testConfig()
		config.Shards = 3
		drawn := make(map[uint32]bool)
		for seed := range uint64(30) {
			shard, _ := w.producer(config, seed).Shard()
			drawn[shard] = true
		}
		if len(drawn) != 3 {
			t.Error(drawn)
		}
		config.Shard = 3
		store := storage.Over(w.memory, storage.RequestTimeout)
		_, err := start(t.Context(), systemEnvironment(), store, config, nil)
		if err == nil || !strings.Contains(err.Error(), "shard 3 does not exist: the buffer memory:/// has the shards 0 to 2") {
			t.Error(err)
		}
	})
}

func TestAManifestOfAnotherBufferIsNotWrittenTo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		p := w.producer(testConfig(), 1)
		w.mustAppend(p, "a")
		var own [16]byte
		w.change(func(m *manifest.Manifest) { own, m.BufferID = m.BufferID, [16]byte{7} })
		before := w.get(manifest.Key(0))
		var client sync.WaitGroup
		client.Go(func() { w.mustAppend(p, "b") })
		time.Sleep(time.Minute)
		if !bytes.Equal(before, w.get(manifest.Key(0))) || !strings.Contains(p.Waiting(), "belongs to buffer") {
			t.Error(p.Waiting())
		}
		w.change(func(m *manifest.Manifest) { m.BufferID = own })
		client.Wait()
		w.checkLog("a", "b")
	})
}

func TestConfigsThatMakeNoSenseAreRefused(t *testing.T) {
	if config := DefaultConfig(); config.Check() != nil {
		t.Error(config.Check())
	}
	for setting, change := range map[string]func(*Config){
		"block_bytes is 0":            func(c *Config) { c.BlockBytes = 0 },
		"block_bytes is 67108865":     func(c *Config) { c.BlockBytes = 64<<20 + 1 },
		"segment_bytes is 0":          func(c *Config) { c.SegmentBytes = 0 },
		"segment_raw_bytes is -1":     func(c *Config) { c.SegmentRawBytes = -1 },
		"segment_raw_bytes / block":   func(c *Config) { c.BlockBytes = 1 },
		"max_uploads is 0":            func(c *Config) { c.MaxUploads = 0 },
		"encoders is 0":               func(c *Config) { c.Encoders = 0 },
		"tail_max is 0":               func(c *Config) { c.TailMax = 0 },
		"compression_level is 0":      func(c *Config) { c.CompressionLevel = 0 },
		"shard is 10000":              func(c *Config) { c.Shard = 10_000 },
		"shards is 0":                 func(c *Config) { c.Shards = 0 },
		"memory_limit is 1048576":     func(c *Config) { c.MemoryLimit = 1 << 20 },
		"linger is -1ns: use a time":  func(c *Config) { c.Linger = -1 },
		"max_wait is -1ns: use a":     func(c *Config) { c.MaxWait = -1 },
		"request_timeout is 0s: use":  func(c *Config) { c.RequestTimeout = 0 },
		"start_timeout is 0s: use a ": func(c *Config) { c.StartTimeout = 0 },
	} {
		config := DefaultConfig()
		change(&config)
		if err := config.Check(); err == nil || !strings.Contains(err.Error(), setting) {
			t.Errorf("%s: %v", setting, err)
		}
	}
}

func TestNamesAreNotBeforeTheFloorAndNeverRepeat(t *testing.T) {
	environment := newEnvironment([32]byte{1})
	environment.now = func() time.Time { return time.UnixMilli(1_000) }
	seen := make(map[string]bool)
	for _, floor := range []uint64{0, 999, 1_000, 1_001, 5_000, 1 << 60} {
		name := environment.ulid(floor)
		if seen[name.String()] || name.Time() < min(floor, 1<<48-1) || name.Time() < 1_000 {
			t.Errorf("%s of %d at floor %d", name, name.Time(), floor)
		}
		seen[name.String()] = true
	}
}

// The caller keeps the message until it is committed, however well it compresses.
func TestMemoryOfCallersCountsUntilTheyReturn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		config := testConfig()
		config.MaxWait = 0
		p := w.producer(config, 1)
		w.network.Outage(unreliable.Lost)
		limit := p.Stats().MemoryLimitBytes
		ctx, leave := context.WithCancelCause(t.Context())
		told := make(chan error)
		m := message("a")
		m.HeldBytes = int(limit)/2 + 1
		go func() {
			_, err := p.Append(ctx, m)
			told <- err
		}()
		time.Sleep(time.Minute)
		if _, err := p.Append(t.Context(), m); !isA[*OverBudgetError](err) {
			t.Error(err)
		}
		leave(errors.New("the reason"))
		if err := <-told; !isA[*OutcomeUnknownError](err) || !strings.Contains(err.Error(), "stopped waiting: the reason") {
			t.Error(err)
		}
		if held := p.Stats().MemoryHeldBytes; held == 0 || held > 1<<10 {
			t.Error(held)
		}
		w.network.Outage(unreliable.Honest)
		// One that is larger than the limit is accepted when it is alone.
		time.Sleep(time.Minute)
		m.HeldBytes = 2 * int(limit)
		if _, err := p.Append(t.Context(), m); err != nil {
			t.Error(err)
		}
	})
}

func TestAMessageOfACallerThatHasLeftIsNotAppended(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		p := w.producer(testConfig(), 1)
		ctx, leave := context.WithCancel(t.Context())
		leave()
		if _, err := p.Append(ctx, message("zombie")); !errors.Is(err, context.Canceled) || !HasNoSideEffects(err) {
			t.Error(err)
		}
		w.mustAppend(p, "living")
		w.checkLog("living")
	})
}

func TestAfterCloseNoMessageWaitsForMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		p := w.producer(testConfig(), 1)
		budget := p.current.Load().budget
		if err := budget.reserve(t.Context(), budget.limit); err != nil {
			t.Fatal(err)
		}
		if err := p.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if _, err := w.append(p, "late"); !errors.Is(err, ErrClosed) || time.Since(began) != 0 {
			t.Error(err, time.Since(began))
		}
		budget.release(budget.limit)
	})
}

func TestTheDefaultsAreValidOnAnyMachine(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(512))
	config := DefaultConfig()
	if err := config.Check(); err != nil {
		t.Error(err)
	}
	if left := config.MemoryLimit - config.workingMemory(); left < config.MemoryLimit/2 {
		t.Errorf("%d bytes are left for data", left)
	}
}

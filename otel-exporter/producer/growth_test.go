package producer

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
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

// buffer reads the buffer object.
func (w *world) buffer() *manifest.Buffer {
	w.t.Helper()
	buffer, err := manifest.DecodeBuffer(w.get(manifest.BufferKey))
	if err != nil {
		w.t.Fatal(err)
	}
	return buffer
}

// setBuffer replaces the buffer object as another program would.
func (w *world) setBuffer(buffer *manifest.Buffer) {
	w.t.Helper()
	encoded, err := buffer.Encode()
	if err != nil {
		w.t.Fatal(err)
	}
	w.replace(manifest.BufferKey, encoded)
}

// replace writes an object, whether it exists or not.
func (w *world) replace(key string, body []byte) {
	w.t.Helper()
	if err := w.memory.Delete(context.Background(), key); err != nil {
		w.t.Fatal(err)
	}
	if _, err := w.memory.Create(context.Background(), key, storage.Body{body}); err != nil {
		w.t.Fatal(err)
	}
}

// grow gives the buffer more shards.
func (w *world) grow(shards uint32) {
	w.t.Helper()
	buffer := w.buffer()
	buffer.Shards = shards
	buffer.Version++
	w.setBuffer(buffer)
}

// patient starts a producer whose requests to the store may take an hour.
func (w *world) patient(config Config, seed byte) *Producer {
	w.t.Helper()
	store := storage.Over(w.network, time.Hour)
	p, err := start(w.t.Context(), newEnvironment([32]byte{seed}), store, config, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { w.close(p) })
	return p
}

// logging is a configuration that draws a shard, with what the producer logs.
func logging() (Config, *syncBuffer) {
	lines := &syncBuffer{}
	config := testConfig()
	config.Logger = slog.New(slog.NewTextHandler(lines, nil))
	return config, lines
}

// A syncBuffer is a log that may be read while it is written.
type syncBuffer struct {
	mutex sync.Mutex
	bytes bytes.Buffer
}

func (b *syncBuffer) Write(line []byte) (int, error) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	return b.bytes.Write(line)
}

func (b *syncBuffer) count(text string) int {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	return strings.Count(b.bytes.String(), text)
}

func shardOf(p *Producer) uint32 {
	shard, _ := p.Shard()
	return shard
}

// many is enough shards that a producer moves: the draw that keeps it in the only old one has no chance with the seeds
// of these tests.
const many = manifest.ShardsMax

func TestADrawMovesAProducerOnlyToANewShard(t *testing.T) {
	id := uuid.UUID{1}
	buffer := func(shards uint32) *manifest.Buffer { return &manifest.Buffer{ID: id, Shards: shards} }
	drawing := func(drawn, below uint32) func(uint32) uint32 {
		return func(end uint32) uint32 {
			if end != below {
				t.Errorf("drawn below %d instead of %d", end, below)
			}
			return drawn
		}
	}
	never := func(uint32) uint32 { t.Error("drawn without growth"); return 0 }
	growth := growth{known: buffer(2)}
	see := func(shards uint32, below func(uint32) uint32, target string) {
		t.Helper()
		if err := growth.see(buffer(shards), below); err != nil {
			t.Error(err)
		}
		found := "none"
		if growth.target != nil {
			found = fmt.Sprint(*growth.target)
		}
		if found != target || growth.known.Shards != shards {
			t.Errorf("target %s of %d shards, not %s of %d", found, growth.known.Shards, target, shards)
		}
	}
	see(2, never, "none")
	see(5, drawing(1, 5), "none")
	see(5, never, "none")
	see(7, drawing(5, 7), "5")
	// The move did not succeed yet, and the buffer grows again.
	see(9, drawing(6, 9), "5")
	see(9, never, "5")
	see(12, drawing(9, 12), "9")
	for _, wrong := range []*manifest.Buffer{nil, buffer(11), {ID: uuid.UUID{2}, Shards: 20}} {
		if err := growth.see(wrong, never); err == nil || growth.known.Shards != 12 || *growth.target != 9 {
			t.Errorf("%+v: %v, %+v", wrong, err, growth)
		}
	}
}

func TestProducersSpreadOverTheShardsOfAGrownBuffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		config, lines := logging()
		var producers []*Producer
		for seed := range uint64(60) {
			producers = append(producers, w.producer(config, seed))
		}
		w.grow(3)
		time.Sleep(2 * growthInterval)
		var in [3]int
		messages := names("message", len(producers))
		for i, p := range producers {
			in[shardOf(p)]++
			committed, err := w.append(p, messages[i])
			if err != nil || committed.Shard != shardOf(p) {
				t.Error(committed, err)
			}
		}
		// A third of the producers are expected in each shard, give or take two standard deviations.
		for shard, count := range in {
			if count < 13 || count > 27 {
				t.Errorf("%d of 60 are in shard %d", count, shard)
			}
		}
		w.checkOnce(messages, 0, 1, 2)
		if moved := lines.count("millpond: moved to another shard"); moved != in[1]+in[2] {
			t.Errorf("%d lines for %d moves", moved, in[1]+in[2])
		}
	})
}

func TestRequestsInFlightDuringAMoveAreAllCommittedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		config, _ := logging()
		p := w.patient(config, 1)
		w.grow(many)
		// A commit in the old shard takes until after the move, and other messages wait behind it.
		gate := w.network.Hold(unreliable.Replace, manifest.Key(0))
		var old sync.WaitGroup
		before := names("before", 50)
		for _, message := range before {
			old.Go(func() {
				if committed, err := w.append(p, message); err != nil || committed.Shard != 0 {
					t.Errorf("%s: %+v, %v", message, committed, err)
				}
			})
		}
		<-gate.Arrived()
		time.Sleep(2 * growthInterval)
		moved := shardOf(p)
		if moved == 0 || p.leaving.Load() == nil {
			t.Fatalf("in shard %d, leaving %v", moved, p.leaving.Load())
		}
		after := names("after", 50)
		for _, message := range after {
			if committed, err := w.append(p, message); err != nil || committed.Shard != moved {
				t.Errorf("%s: %+v, %v", message, committed, err)
			}
		}
		gate.Release()
		old.Wait()
		synctest.Wait()
		if p.leaving.Load() != nil {
			t.Error("the old shard has everything, and its writer is still there")
		}
		w.checkOnce(before)
		w.checkOnce(after, moved)
		if len(w.log()) != len(before) || p.Stats().Messages != int64(len(before)+len(after)) {
			t.Error(len(w.log()), p.Stats().Messages)
		}
	})
}

// Clients append all the time while producers move twice over a bad network. A client repeats only what was certainly
// not accepted.
func TestNoMessageIsLostOrRepeatedByMovesOverABadNetwork(t *testing.T) {
	for seed := range uint64(5) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, seed)
			config, _ := logging()
			config.Linger, config.SegmentRawBytes = 500*time.Millisecond, 1<<20
			producers := []*Producer{w.producer(config, seed), w.producer(config, seed+100), w.producer(config, seed+200)}
			w.network.Set(unreliable.Faults{Write: 0.05, Read: 0.05, Late: 5 * time.Second, Repeated: 0.05})
			until := time.Now().Add(5 * growthInterval)
			var clients sync.WaitGroup
			var mutex sync.Mutex
			var messages []string
			for client := range 30 {
				clients.Go(func() {
					for i := 0; time.Now().Before(until); i++ {
						message := fmt.Sprintf("client %d, message %d", client, i)
						w.appendUntilAcknowledged(producers[client%3], message)
						mutex.Lock()
						messages = append(messages, message)
						mutex.Unlock()
						time.Sleep(time.Duration(1+client%3) * time.Second)
					}
				})
			}
			w.grow(2)
			time.Sleep(2 * growthInterval)
			w.grow(4)
			clients.Wait()
			w.network.Set(unreliable.Faults{})
			w.network.Settled()
			used := []uint32{0}
			for shard := uint32(1); shard < 4; shard++ {
				if _, _, err := w.memory.Get(t.Context(), manifest.Key(shard), 1<<30); err == nil {
					used = append(used, shard)
				}
			}
			w.checkOnce(messages, used...)
		})
	}
}

func TestAShardThatCannotBeOpenedIsTriedAgainAtTheNextLook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		config, lines := logging()
		// The second draw of this seed is shard 1.
		p := w.producer(config, 2)
		w.grow(2)
		w.replace(manifest.Key(1), []byte("not a manifest"))
		time.Sleep(10 * growthInterval)
		if tried := lines.count("millpond: cannot move to a new shard"); tried < 5 || shardOf(p) != 0 {
			t.Fatalf("%d warnings, in shard %d", tried, shardOf(p))
		}
		w.mustAppend(p, "a")
		if err := w.memory.Delete(t.Context(), manifest.Key(1)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * growthInterval)
		if shardOf(p) != 1 || lines.count("millpond: moved to another shard") != 1 {
			t.Errorf("in shard %d", shardOf(p))
		}
		w.mustAppend(p, "b")
		w.checkLog("a")
		w.checkOnce([]string{"b"}, 1)
		if p.Waiting() != "" || lines.count("level=ERROR") != 0 {
			t.Error(p.Waiting())
		}
	})
}

func TestAFailedLookIsAWarning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		config, lines := logging()
		p := w.producer(config, 1)
		known := w.buffer()
		for i, spoil := range []func(){
			func() { w.network.Once(unreliable.Get, manifest.BufferKey, unreliable.Lost) },
			func() { w.setBuffer(&manifest.Buffer{ID: uuid.UUID{1}, Shards: many}) },
			func() { w.replace(manifest.BufferKey, []byte("not a buffer")) },
			func() { _ = w.memory.Delete(t.Context(), manifest.BufferKey) },
		} {
			spoil()
			time.Sleep(growthInterval)
			if warned := lines.count("millpond: cannot look for new shards"); warned < i+1 || shardOf(p) != 0 {
				t.Errorf("%d warnings after %d failed looks", warned, i+1)
			}
			w.mustAppend(p, "goes on")
			w.setBuffer(known)
			time.Sleep(growthInterval)
		}
		w.grow(many)
		time.Sleep(2 * growthInterval)
		if shardOf(p) == 0 || lines.count("level=ERROR") != 0 {
			t.Error("the producer did not move")
		}
	})
}

func TestAProducerWithAShardNeverLooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		config, lines := logging()
		config.Shard = 0
		p := w.producer(config, 1)
		w.grow(many)
		w.network.Once(unreliable.Get, manifest.BufferKey, unreliable.Lost)
		time.Sleep(time.Hour)
		w.mustAppend(p, "a")
		w.checkLog("a")
		if w.network.Unused() != 1 || lines.count("level=WARN") != 0 {
			t.Error("the producer looked at the buffer")
		}
	})
}

func TestAClosingProducerWaitsForTheShardThatItLeavesAndNotForTheNextOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		config, lines := logging()
		moving := w.producer(config, 1)
		w.grow(many)
		// The new shard does not answer.
		w.network.Once(unreliable.Get, "shards/", unreliable.Hangs)
		time.Sleep(growthInterval)
		closed := time.Now()
		w.close(moving)
		if time.Since(closed) != 0 || shardOf(moving) != 0 || lines.count("cannot move") != 0 || w.network.Unused() != 0 {
			t.Error(time.Since(closed), shardOf(moving))
		}

		w.setBuffer(&manifest.Buffer{ID: w.buffer().ID, Shards: 1})
		leaving := w.patient(config, 2)
		gate := w.network.Hold(unreliable.Replace, manifest.Key(0))
		var client sync.WaitGroup
		client.Go(func() { w.mustAppend(leaving, "a") })
		<-gate.Arrived()
		w.grow(many)
		time.Sleep(2 * growthInterval)
		w.mustAppend(leaving, "b")
		ctx, end := context.WithTimeout(t.Context(), time.Second)
		defer end()
		if err := leaving.Close(ctx); err == nil || !strings.Contains(err.Error(), "are not committed") {
			t.Error(err)
		}
		gate.Release()
		w.close(leaving)
		client.Wait()
		w.checkLog("a")
		if _, err := w.append(leaving, "c"); err != ErrClosed {
			t.Error(err)
		}
	})
}

package producer

import (
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"math"
	"runtime"
	"slices"
	"strconv"
	"testing"
	"time"

	"millpond.dev/otel-exporter/internal/manifest"
	"millpond.dev/otel-exporter/internal/segment"
	"millpond.dev/otel-exporter/internal/storage"
	"millpond.dev/otel-exporter/internal/storage/unreliable"
)

// A world is a buffer in memory behind a scripted network. Tests run it in a synctest bubble, where time advances only
// when every goroutine waits.
type world struct {
	t       *testing.T
	memory  *storage.Memory
	network *unreliable.Backend
}

func newWorld(t *testing.T, seed uint64) *world {
	memory := storage.NewMemory()
	return &world{t, memory, unreliable.New(memory, seed)}
}

// testConfig makes every message a segment, which commits without waiting.
func testConfig() Config {
	config := DefaultConfig()
	config.Linger = 10 * time.Millisecond
	config.SegmentRawBytes = 1
	config.BlockBytes = 1 << 10
	config.Encoders = 2
	config.MemoryLimit = 1 << 20
	config.Logger = slog.New(slog.DiscardHandler)
	return config
}

// producer starts a producer that the test need not close.
func (w *world) producer(config Config, seed uint64) *Producer {
	w.t.Helper()
	return w.started(config, seed, nil)
}

func (w *world) started(config Config, seed uint64, peering *peering) *Producer {
	w.t.Helper()
	var bytes [32]byte
	binary.BigEndian.PutUint64(bytes[:], seed)
	store := storage.Over(w.network, storage.RequestTimeout)
	p, err := start(w.t.Context(), newEnvironment(bytes), store, config, peering)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { w.close(p) })
	return p
}

// start is Open for a store that is already open.
func start(ctx context.Context, environment *environment, store *storage.Store, config Config, peering *peering) (*Producer, error) {
	p, err := begin(environment, config, presented(peering), func(context.Context) (*storage.Store, error) { return store, nil })
	if err != nil {
		return nil, err
	}
	return p.orNothing(ctx)
}

// presented is a port that nobody listens on. Tests call its hosts themselves.
func presented(fixed *peering) func() (*peerPort, error) {
	return func() (*peerPort, error) {
		if fixed == nil {
			return nil, nil
		}
		return &peerPort{
			newPeers:     func() peers { return fixed.peers },
			certificate:  fixed.certificate,
			forwardBelow: fixed.forwardBelow,
			address:      fixed.address,
		}, nil
	}
}

func (w *world) close(p *Producer) {
	w.t.Helper()
	ctx, end := context.WithTimeout(context.Background(), time.Hour)
	defer end()
	if err := p.Close(ctx); err != nil {
		w.t.Error(err)
	}
	// The callers have their answers, and return.
	for range 100_000 {
		if p.Stats().MemoryHeldBytes == 0 {
			break
		}
		runtime.Gosched()
	}
	if held := p.Stats().MemoryHeldBytes; held != 0 {
		w.t.Errorf("%d bytes are held when nothing is", held)
	}
}

func message(payload string) Message {
	return Message{Stream: "events.test", Encoding: NDJSON, Payload: []byte(payload), Records: 1, ReceivedAt: time.Now()}
}

func (w *world) append(p *Producer, payload string) (Committed, error) {
	return p.Append(w.t.Context(), message(payload))
}

// mustAppend appends and returns the sequence.
func (w *world) mustAppend(p *Producer, payload string) uint64 {
	w.t.Helper()
	committed, err := w.append(p, payload)
	if err != nil {
		w.t.Errorf("%s: %v", payload, err)
	}
	return committed.Sequence
}

// appendUntilAcknowledged is a client that retries appends without side effects.
func (w *world) appendUntilAcknowledged(p *Producer, payload string) {
	w.t.Helper()
	for {
		_, err := w.append(p, payload)
		if err == nil {
			return
		}
		if !IsRetryable(err) || !HasNoSideEffects(err) {
			w.t.Errorf("%s: %v", payload, err)
			return
		}
	}
}

func (w *world) get(key string) []byte {
	w.t.Helper()
	body, _, err := w.memory.Get(context.Background(), key, math.MaxInt64)
	if err != nil {
		w.t.Fatalf("%s: %v", key, err)
	}
	return body
}

func (w *world) manifest() *manifest.Manifest {
	w.t.Helper()
	return w.manifestOf(0)
}

func (w *world) manifestOf(shard uint32) *manifest.Manifest {
	w.t.Helper()
	state, err := manifest.Decode(w.get(manifest.Key(shard)))
	if err != nil {
		w.t.Fatal(err)
	}
	return state
}

// change modifies the manifest as another process would.
func (w *world) change(change func(*manifest.Manifest)) {
	w.t.Helper()
	store := storage.Over(w.memory, storage.RequestTimeout)
	snapshot, err := manifest.Read(context.Background(), store, 0)
	if err != nil {
		w.t.Fatal(err)
	}
	next := snapshot.State.Stamped(1)
	change(next)
	if outcome, _, err := manifest.Swap(context.Background(), store, 0, &snapshot.Version, next); outcome != storage.Committed {
		w.t.Fatal(outcome, err)
	}
}

// entries returns the whole log of shard 0.
func (w *world) entries() []manifest.Entry {
	w.t.Helper()
	return w.entriesOf(0)
}

// entriesOf returns the whole log of a shard: its pages and its tail.
func (w *world) entriesOf(shard uint32) []manifest.Entry {
	w.t.Helper()
	state := w.manifestOf(shard)
	var entries []manifest.Entry
	for _, reference := range state.Pages {
		page, err := manifest.DecodePage(w.get(manifest.PageKey(shard, reference.First, reference.Page)))
		if err != nil {
			w.t.Fatal(err)
		}
		if page.Reference(reference.Page) != reference {
			w.t.Errorf("%+v does not match %+v", page, reference)
		}
		entries = append(entries, page.Entries...)
	}
	return append(entries, state.Tail...)
}

// log returns every message of the log of shard 0.
func (w *world) log() []string {
	w.t.Helper()
	return w.logOf(0)
}

// logOf returns every message of a shard's log in order, as a consumer reads it: by the parts of the manifest.
func (w *world) logOf(shard uint32) []string {
	w.t.Helper()
	decompressor, err := segment.NewDecompressor()
	if err != nil {
		w.t.Fatal(err)
	}
	var log []string
	for _, entry := range w.entriesOf(shard) {
		object := w.get(manifest.SegmentKey(shard, entry.Segment))
		if _, err := segment.Verify(object, segment.DefaultLimits()); err != nil || uint64(len(object)) != entry.Size {
			w.t.Fatalf("segment %s of %d bytes: %v", entry.Segment, len(object), err)
		}
		for _, part := range entry.Parts {
			blocks, err := segment.Blocks(object[part.Offset:part.Offset+part.Length], part.Offset, segment.DefaultLimits())
			if err != nil {
				w.t.Fatal(err)
			}
			for i := range blocks {
				messages, err := decompressor.Decode(&blocks[i])
				if err != nil {
					w.t.Fatal(err)
				}
				for _, message := range messages {
					log = append(log, string(message.Payload))
				}
			}
		}
	}
	return log
}

// checkLog fails unless the log has exactly these messages, in this order.
func (w *world) checkLog(messages ...string) {
	w.t.Helper()
	if log := w.log(); !slices.Equal(log, messages) {
		w.t.Errorf("the log is %q, not %q", log, messages)
	}
}

// checkOnce fails unless the logs of these shards together have each of the messages once. None: shard 0.
func (w *world) checkOnce(messages []string, shards ...uint32) {
	w.t.Helper()
	if len(shards) == 0 {
		shards = []uint32{0}
	}
	times := make(map[string]int)
	for _, shard := range shards {
		for _, message := range w.logOf(shard) {
			times[message]++
		}
	}
	for _, message := range messages {
		if times[message] != 1 {
			w.t.Errorf("%q occurs %d times in the log", message, times[message])
		}
	}
}

// segments is the number of segment objects, committed or not.
func (w *world) segments() int {
	w.t.Helper()
	keys, err := w.memory.List(context.Background(), "shards/0000/segments")
	if err != nil {
		w.t.Fatal(err)
	}
	return len(keys)
}

func names(prefix string, count int) []string {
	names := make([]string, count)
	for i := range names {
		names[i] = prefix + " " + strconv.Itoa(i)
	}
	return names
}

func isA[E error](err error) bool {
	var wanted E
	return errors.As(err, &wanted)
}

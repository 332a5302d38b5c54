package manifest

import (
	"encoding/binary"
	"errors"
	"math"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"millpond.dev/otel-exporter/internal/segment"
)

func checkSame(t interface {
	Helper()
	Fatalf(string, ...any)
}, a, b *Manifest) {
	t.Helper()
	// Empty and nil slices are equal.
	normal := func(m *Manifest) Manifest {
		n := *m
		n.Streams, n.Pages = append([]Stream{}, m.Streams...), append([]PageReference{}, m.Pages...)
		n.Tail, n.Producers = append([]Entry{}, m.Tail...), append([]ProducerRow{}, m.Producers...)
		n.Clients, n.Keys = append([]ClientRow{}, m.Clients...), append([]ClientRow{}, m.Keys...)
		n.Sources = append([]SourceRow{}, m.Sources...)
		return n
	}
	if first, second := normal(a), normal(b); !reflect.DeepEqual(first, second) {
		t.Fatalf("the states differ:\n%+v\n%+v", first, second)
	}
}

func commit(t *testing.T, log *Manifest, id ProducerID, number uint64, nowMs uint64, segments ...NewSegment) (*Manifest, uint64) {
	t.Helper()
	commit, err := log.Commit([]Claim{One(id, number, len(segments))}, segments, nowMs)
	if err != nil {
		t.Fatal(err)
	}
	return commit.State, commit.FirstSequence
}

// unusable is the refusal of a commit with a single claim.
func unusable(reason error) error { return &ClaimsError{[]Unusable{{0, reason}}} }

func TestACommitAppendsInOrderAndARepeatedOneIsRecognised(t *testing.T) {
	log := New(bufferID, 0).Register(producerA, 10).Register(producerB, 10)
	log, first := commit(t, log, producerA, 1, 11, newSegment(1, 1), newSegment(1, 2))
	if first != 0 || log.NextSequence != 2 {
		t.Errorf("%d, %d", first, log.NextSequence)
	}
	log, first = commit(t, log, producerB, 1, 12, newSegment(1, 3))
	if first != 2 || log.NextSequence != 3 {
		t.Errorf("%d, %d", first, log.NextSequence)
	}
	// The answer was lost: A never heard of its commit 1 and sends it again.
	_, err := log.Commit([]Claim{One(producerA, 1, 2)}, []NewSegment{newSegment(1, 1), newSegment(1, 2)}, 13)
	row := ProducerRow{ID: producerA, Commit: 1, Count: 2, SeenAtMs: 11}
	if expected := unusable(&TakenError{1, row}); !reflect.DeepEqual(err, expected) {
		t.Errorf("%v", err)
	}
	for i, entry := range log.Tail {
		if entry.Segment != named(1, uint64(i+1)) {
			t.Errorf("sequence %d is %s", i, entry.Segment)
		}
	}
}

func TestCommitsThatWouldBreakTheLogAreRefused(t *testing.T) {
	log := New(bufferID, 0).Register(producerA, 10)
	refused := func(log *Manifest, id ProducerID, number uint64, expected error, segments ...NewSegment) {
		t.Helper()
		_, err := log.Commit([]Claim{One(id, number, len(segments))}, segments, 12)
		if reflect.TypeOf(err) != reflect.TypeOf(expected) {
			t.Errorf("%T: %v", err, err)
		}
		var invalid *InvalidError
		if !errors.As(expected, &invalid) && !reflect.DeepEqual(err, expected) {
			t.Errorf("%v is not %v", err, expected)
		}
	}
	refused(log, producerB, 1, unusable(&NotRegisteredError{producerB}), newSegment(1, 1))
	refused(log, producerA, 2, unusable(&GapError{producerA, 2, 0}), newSegment(1, 1))
	refused(log, producerA, 0, unusable(&InvalidClaimError{producerA, "it has no number"}), newSegment(1, 1))
	refused(log, producerA, 1, unusable(&InvalidClaimError{producerA, "its segments are not in the commit"}))

	log, _ = commit(t, log, producerA, 1, 11, newSegment(1, 1))
	log, _ = commit(t, log, producerA, 2, 11, newSegment(1, 2))
	row, _ := log.Producer(producerA)
	refused(log, producerA, 1, unusable(&TakenError{1, row}), newSegment(1, 1))
	// A segment may appear once in the log, and once in a commit.
	refused(log, producerA, 3, &InvalidError{}, newSegment(1, 2))
	refused(log, producerA, 3, &InvalidError{}, newSegment(1, 3), newSegment(1, 4), newSegment(1, 3))

	changed := func(change func(*NewSegment)) NewSegment {
		segment := newSegment(1, 3)
		change(&segment)
		return segment
	}
	for _, wrong := range []NewSegment{
		changed(func(s *NewSegment) { s.Parts[0].Part.Length = 96 }),
		changed(func(s *NewSegment) { s.Parts[0].Part.Offset = math.MaxUint64 }),
		changed(func(s *NewSegment) { s.Parts[0].Encoding = segment.NDJSON }),
		changed(func(s *NewSegment) { s.Parts[0].Stream = "a/b" }),
		changed(func(s *NewSegment) { s.Parts[0].Part.LastUs = 0 }),
		changed(func(s *NewSegment) { s.Parts = append(s.Parts, s.Parts[0]) }),
	} {
		refused(log, producerA, 3, &InvalidError{}, wrong)
	}
	log.OrphanFloorMs = 100
	refused(log, producerA, 3, &BelowFloorError{[]int{1}, 100}, newSegment(100, 1), newSegment(99, 2))
}

func TestARefusedCommitLeavesTheStateAlone(t *testing.T) {
	log := New(bufferID, 0).Register(producerA, 10)
	before, err := log.Encode()
	if err != nil {
		t.Fatal(err)
	}
	bad := newSegment(1, 2)
	bad.Parts[0].Stream = "a/b"
	if _, err := log.Commit([]Claim{One(producerA, 1, 2)}, []NewSegment{newSegment(1, 1), bad}, 11); err == nil {
		t.Fatal("an invalid state was accepted")
	}
	after, err := log.Encode()
	if err != nil || !slices.Equal(before, after) {
		t.Errorf("%v", err)
	}
}

func TestTheTableOfStreamsIsBounded(t *testing.T) {
	log := New(bufferID, 0).Register(producerA, 10)
	for i := range StreamsMax {
		log.Streams = append(log.Streams, Stream{"s" + string(rune('a'+i%26)), segment.OTLP})
	}
	var invalid *InvalidError
	if _, err := log.Commit([]Claim{One(producerA, 1, 1)}, []NewSegment{newSegment(1, 1)}, 11); !errors.As(err, &invalid) {
		t.Error(err)
	}
}

// committed builds a table of producers with one commit each, ordered by ID and last seen at the given times.
func committed(seenMs ...uint64) *Manifest {
	log := New(bufferID, 0)
	for i, seen := range seenMs {
		log.Producers = append(log.Producers, ProducerRow{ID: numbered(uint64(i)), Commit: 1, FirstSequence: uint64(i), Count: 1, SeenAtMs: seen})
	}
	log.NextSequence = uint64(len(seenMs))
	log.FirstSequence = log.NextSequence
	return log
}

func numbered(i uint64) (id ProducerID) {
	binary.BigEndian.PutUint64(id[8:], i)
	return id
}

func isThere(log *Manifest, id ProducerID) bool {
	_, there := log.Producer(id)
	return there
}

var newcomer = ProducerID{255}

func TestTheClockOfAProducerThatRegistersForgetsNobody(t *testing.T) {
	for _, others := range []int{1, ProducersKept, ProducersKept + 100} {
		log := committed(make([]uint64, others)...)
		for _, nowMs := range []uint64{0, ProducerExpiryMs, 10 * ProducerExpiryMs, math.MaxUint64} {
			if count := len(log.Register(newcomer, nowMs).Producers); count != others+1 {
				t.Errorf("%d of %d remain at %d ms", count, others+1, nowMs)
			}
		}
	}
}

func TestProducersLongGoneAreForgottenWhenOthersHaveTakenTheirPlace(t *testing.T) {
	later := func(afterMs uint64) *Manifest {
		return committed(append(make([]uint64, ProducersKept), slices.Repeat([]uint64{afterMs}, ProducersKept+1)...)...).
			Register(newcomer, 0)
	}
	if count := len(later(ProducerExpiryMs - 1).Producers); count != 2*ProducersKept+2 {
		t.Errorf("%d remain, too early", count)
	}
	left := later(ProducerExpiryMs)
	if len(left.Producers) != ProducersKept+2 || isThere(left, numbered(ProducersKept-1)) || !isThere(left, numbered(ProducersKept)) {
		t.Errorf("%d remain", len(left.Producers))
	}
}

func TestAProducerSeenInTheFutureIsForgottenOnceOthersHaveTakenItsPlace(t *testing.T) {
	seen := append([]uint64{math.MaxUint64}, slices.Repeat([]uint64{5}, ProducersKept)...)
	if !isThere(committed(seen[:ProducersKept]...).Register(newcomer, 5), numbered(0)) {
		t.Error("the producer was forgotten too early")
	}
	if left := committed(seen...).Register(newcomer, 5); isThere(left, numbered(0)) || len(left.Producers) != ProducersKept+1 {
		t.Errorf("%d remain", len(left.Producers))
	}
}

func TestAFullTableForgetsTheProducerWhoseCommitIsFurthestBackInTheLog(t *testing.T) {
	seen := make([]uint64, ProducersMax)
	for i := range seen {
		seen[i] = uint64(ProducersMax - i)
	}
	full := committed(seen...).Register(newcomer, 0)
	if len(full.Producers) != ProducersMax || isThere(full, numbered(0)) || !isThere(full, newcomer) {
		t.Errorf("%d remain", len(full.Producers))
	}
	// The next one replaces a producer that has committed nothing.
	again := full.Register(ProducerID{254}, 0)
	if len(again.Producers) != ProducersMax || isThere(again, newcomer) || !isThere(again, numbered(1)) {
		t.Errorf("%d remain", len(again.Producers))
	}
	if reason := again.Check(); reason != "" {
		t.Error(reason)
	}
}

func TestASingleClockForgetsNobodyElse(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seen := make([]uint64, rapid.IntRange(300, 400).Draw(t, "producers"))
		for i := range seen {
			seen[i] = rapid.Uint64Range(10*ProducerExpiryMs, 11*ProducerExpiryMs-1).Draw(t, "seen")
		}
		whose := rapid.IntRange(0, len(seen)-1).Draw(t, "whose")
		seen[whose] = rapid.Uint64().Draw(t, "wrong")
		log, before := committed(seen...), committed(seen...)
		registered := log.Register(newcomer, rapid.Uint64().Draw(t, "now"))
		if reason := registered.Check(); reason != "" {
			t.Fatal(reason)
		}
		checkSame(t, log, before)
		for i, row := range log.Producers {
			if left, _ := registered.Producer(row.ID); i != whose && left != row {
				t.Fatalf("producer %d was forgotten", i)
			}
		}
		// The clock of the registering producer does not affect who is forgotten.
		other := log.Register(newcomer, 0)
		if !slices.EqualFunc(registered.Producers, other.Producers, func(a, b ProducerRow) bool { return a.ID == b.ID }) {
			t.Fatal("the registering producer's clock decided")
		}
	})
}

func TestARegistrationThatIsRepeatedChangesNothing(t *testing.T) {
	log, _ := commit(t, New(bufferID, 0).Register(producerA, 0), producerA, 1, 5, newSegment(1, 1))
	checkSame(t, log.Register(producerA, 99), log)
}

func someLog(t *rapid.T) *Manifest {
	log := New(bufferID, rapid.Uint32().Draw(t, "shard"))
	for i := range 4 {
		log = log.Register(ProducerID{0: byte(i)}, uint64(i))
	}
	for random := uint64(0); rapid.Bool().Draw(t, "more") && random < 60; {
		id := ProducerID{0: byte(rapid.IntRange(0, 3).Draw(t, "producer"))}
		nowMs := rapid.Uint64().Draw(t, "now")
		var segments []NewSegment
		for range rapid.IntRange(1, 3).Draw(t, "segments") {
			random++
			new := newSegment(nowMs>>20, random)
			new.Parts[0].Stream = rapid.SampledFrom([]string{"events.0", "events.1", "b"}).Draw(t, "stream")
			new.Parts[0].Part.FirstUs = rapid.Int64().Draw(t, "first")
			new.Parts[0].Part.LastUs = rapid.Int64Min(new.Parts[0].Part.FirstUs).Draw(t, "last")
			segments = append(segments, new)
		}
		row, _ := log.Producer(id)
		commit, err := log.Commit([]Claim{One(id, row.Commit+1, len(segments))}, segments, nowMs)
		if err != nil {
			t.Fatal(err)
		}
		log = commit.State.Stamped(nowMs)
		if rapid.IntRange(0, 4).Draw(t, "seal") == 0 {
			last := log.TailStart() + uint64(rapid.IntRange(0, len(log.Tail)-1).Draw(t, "entries"))
			_, log, _ = log.Seal(named(1, random), last)
		}
	}
	return log
}

func TestALogReadsBackAsItWasWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		log := someLog(t)
		bytes, err := log.Encode()
		if err != nil {
			t.Fatal(err)
		}
		read, err := Decode(bytes)
		if err != nil {
			t.Fatal(err)
		}
		checkSame(t, read, log)
	})
}

func TestAFlippedBitOrACutIsFound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		good, err := someLog(t).Encode()
		if err != nil {
			t.Fatal(err)
		}
		at := rapid.IntRange(0, len(good)-1).Draw(t, "at")
		bad := slices.Clone(good)
		bad[at] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
		if _, err := Decode(bad); err == nil {
			t.Fatal("a flipped bit was not detected")
		}
		if _, err := Decode(good[:at]); err == nil {
			t.Fatal("a truncation was not detected")
		}
	})
}

func TestRandomBytesAreAnError(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		random := rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "bytes")
		if _, err := Decode(random); err == nil {
			t.Fatal("random bytes decoded as a manifest")
		}
		// With a valid checksum, random content must be rejected or be valid.
		for _, magic := range []string{manifestMagic, pageMagic, bufferMagic} {
			wrapped := append([]byte(magic), 1, 0, 0, 0, 0, 0)
			wrapped = append(wrapped, random...)
			binary.LittleEndian.PutUint32(wrapped[6:], checksum(1, random))
			if m, err := Decode(wrapped); err == nil && m.Check() != "" {
				t.Fatal(m.Check())
			}
			if p, err := DecodePage(wrapped); err == nil && p.check() != "" {
				t.Fatal(p.check())
			}
			_, _ = DecodeBuffer(wrapped)
		}
	})
}

func TestEachKindOfDamageHasItsOwnError(t *testing.T) {
	good, err := New(bufferID, 0).Encode()
	if err != nil {
		t.Fatal(err)
	}
	newer, damaged := slices.Clone(good), slices.Clone(good)
	newer[4] = 4
	damaged[len(damaged)-1] ^= 1
	content, err := wrap(manifestMagic, nil)
	if err != nil {
		t.Fatal(err)
	}
	for expected, bytes := range map[error][]byte{
		ErrShort: nil, ErrMagic: []byte("MPCR......"), ErrVersion: newer, ErrChecksum: damaged, ErrContent: content,
	} {
		if _, err := Decode(bytes); !errors.Is(err, expected) {
			t.Errorf("%v is not %v", err, expected)
		}
	}
}

func TestAStateThatBreaksARuleIsRefused(t *testing.T) {
	good := newShard(t)
	good.commit(4)
	good.seal(1)
	good.seal(2)
	for name, change := range map[string]func(*Manifest){
		"a hole between pages":      func(m *Manifest) { m.Pages[1].First++ },
		"an empty page":             func(m *Manifest) { m.Pages[1].Last = 1 },
		"a log before its pages":    func(m *Manifest) { m.Pages = m.Pages[1:] },
		"a log after its page":      func(m *Manifest) { m.FirstSequence = 2 },
		"a tail that ends too soon": func(m *Manifest) { m.Tail = nil },
		"producers out of order":    func(m *Manifest) { m.Producers = append(m.Producers, m.Producers[0]) },
		"a stream without a name":   func(m *Manifest) { m.Streams = nil },
	} {
		bad := *good.manifest
		bad.Pages = slices.Clone(bad.Pages)
		change(&bad)
		bytes, err := bad.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Decode(bytes); !errors.Is(err, ErrContent) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

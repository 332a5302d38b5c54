package producer

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"millpond.dev/otel-exporter/internal/manifest"
	"millpond.dev/otel-exporter/internal/storage"
)

var turnsBegan = time.Unix(1_767_225_600, 0)

func turnsID(number byte) (id manifest.ProducerID) {
	for i := range id {
		id[i] = number
	}
	return id
}

// turnsManifest returns a manifest after so many swaps, with these producers and the sequences of their last commits.
func turnsManifest(version uint64, rows map[byte]uint64) *manifest.Manifest {
	state := manifest.New(uuid.Nil, 0)
	state.Stamp.Version = version
	for number := range 256 {
		if sequence, found := rows[byte(number)]; found {
			row := manifest.ProducerRow{ID: turnsID(byte(number)), Commit: 1, FirstSequence: sequence, Count: 1}
			state.Producers = append(state.Producers, row)
		}
	}
	return state
}

// contendedTurns has commits at sequences 100 and 110. Its attempts take 100 ms, and there are ten commits a second.
func contendedTurns() *turns {
	t := &turns{}
	t.took(100 * time.Millisecond)
	t.committed(turnsManifest(100, map[byte]uint64{0: 100}), turnsID(0), turnsBegan.Add(10*time.Second))
	t.committed(turnsManifest(110, map[byte]uint64{0: 110}), turnsID(0), turnsBegan.Add(11*time.Second))
	return t
}

// The store refuses the second copy of a swap of which the first landed. The own row is then the newest.
func TestACommitThatLandedAndWasReportedAsRefusedWaitsForNobody(t *testing.T) {
	rows := map[byte]uint64{0: 200}
	for number := range 40 {
		rows[byte(number+1)] = 111 + uint64(number)
	}
	turns, now := contendedTurns(), turnsBegan.Add(12*time.Second)
	turns.lost(turnsManifest(220, rows), turnsID(0), now)
	if wait := turns.wait(now); wait != 0 {
		t.Errorf("it waits %v", wait)
	}
}

func TestATurnEndsWithItsGroup(t *testing.T) {
	turns, now := contendedTurns(), turnsBegan.Add(12*time.Second)
	turns.lost(turnsManifest(120, map[byte]uint64{0: 110, 1: 109}), turnsID(0), now)
	turns.begin()
	if wait := turns.wait(now); wait != 0 {
		t.Errorf("it waits %v", wait)
	}
}

func TestAnOutageIsNoPace(t *testing.T) {
	turns, now := contendedTurns(), turnsBegan.Add(72*time.Second)
	turns.heldUp()
	turns.lost(turnsManifest(121, map[byte]uint64{0: 110, 1: 109, 2: 108, 3: 107}), turnsID(0), now)
	if wait := turns.wait(now); wait != 0 {
		t.Errorf("it waits %v", wait)
	}
}

func TestALoserLeavesTheManifestToThoseThatHaveWaitedLonger(t *testing.T) {
	many := map[byte]uint64{0: 110}
	for number := range 255 {
		many[byte(number+1)] = 101
	}
	now := turnsBegan.Add(12 * time.Second)
	for _, c := range []struct {
		name    string
		version uint64
		rows    map[byte]uint64
		wait    time.Duration
	}{
		// 1 and 2 have committed since; 3 and 4 have waited longer; 5 has not committed for long.
		{"two active ones are older", 120, map[byte]uint64{0: 110, 1: 118, 2: 119, 3: 109, 4: 101, 5: 99}, 200 * time.Millisecond},
		{"none is older", 120, map[byte]uint64{0: 110, 1: 118, 2: 119}, 0},
		{"five commits a second", 110, map[byte]uint64{0: 110, 1: 109}, 0},
		{"this one was forgotten", 120, map[byte]uint64{1: 101}, 0},
		{"the maximum", 120, many, turnWaitMax},
		{"an older state was restored", 7, many, 0},
	} {
		turns := contendedTurns()
		turns.lost(turnsManifest(c.version, c.rows), turnsID(0), now)
		if wait := turns.wait(now); wait != c.wait {
			t.Errorf("%s: waits %v, not %v", c.name, wait, c.wait)
		}
		if wait := turns.wait(now); wait != 0 {
			t.Errorf("%s: waits %v again", c.name, wait)
		}
		turns.lost(turnsManifest(c.version, c.rows), turnsID(0), now)
		if wait := turns.wait(now.Add(time.Minute)); wait != 0 {
			t.Errorf("%s: waits %v after its time", c.name, wait)
		}
	}
}

func TestAProducerWithoutACommitWaitsForNobody(t *testing.T) {
	turns := &turns{}
	turns.took(time.Second)
	turns.lost(turnsManifest(120, map[byte]uint64{1: 100}), turnsID(0), turnsBegan)
	if wait := turns.wait(turnsBegan); wait != 0 {
		t.Error(wait)
	}
}

// distant is a store whose requests take as long as S3's.
type distant struct {
	storage.Backend
	mutex sync.Mutex
	rng   *rand.Rand
}

// travel sleeps for half to twice the mean, mostly less than the mean.
func (d *distant) travel(mean time.Duration) {
	d.mutex.Lock()
	share := d.rng.Float64()
	d.mutex.Unlock()
	time.Sleep(mean/2 + time.Duration(share*share*1.5*float64(mean)))
}

func (d *distant) Get(ctx context.Context, key string, bytesMax int64) ([]byte, storage.Version, error) {
	d.travel(35 * time.Millisecond)
	return d.Backend.Get(ctx, key, bytesMax)
}

func (d *distant) Create(ctx context.Context, key string, body storage.Body) (storage.Version, error) {
	d.travel(70 * time.Millisecond)
	return d.Backend.Create(ctx, key, body)
}

func (d *distant) Replace(ctx context.Context, key string, expected storage.Version, body storage.Body) (storage.Version, error) {
	d.travel(35 * time.Millisecond)
	version, err := d.Backend.Replace(ctx, key, expected, body)
	d.travel(35 * time.Millisecond)
	return version, err
}

func TestNoProducerOfManyLosesEveryRace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		store := storage.Over(&distant{Backend: w.network, rng: rand.New(rand.NewPCG(1, 2))}, storage.RequestTimeout)
		config := DefaultConfig()
		config.Linger = 250 * time.Millisecond
		config.Logger = testConfig().Logger
		var mutex sync.Mutex
		var waited []time.Duration
		var clients sync.WaitGroup
		for number := range 16 {
			p, err := start(t.Context(), newEnvironment([32]byte{byte(number)}), store, config, nil)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { w.close(p) })
			for message := range 150 {
				clients.Go(func() {
					time.Sleep(time.Duration(message)*200*time.Millisecond + time.Duration(number)*17*time.Millisecond)
					began := time.Now()
					w.mustAppend(p, fmt.Sprint(number, message))
					mutex.Lock()
					waited = append(waited, time.Since(began))
					mutex.Unlock()
				})
			}
		}
		clients.Wait()
		slices.Sort(waited)
		if slowest := waited[len(waited)-1]; slowest > 8*time.Second {
			t.Errorf("the slowest caller waited %v", slowest)
		}
	})
}

package producer

import (
	crand "crypto/rand"
	"encoding/binary"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/oklog/ulid/v2"

	"millpond.dev/otel-exporter/internal/manifest"
	"millpond.dev/otel-exporter/internal/storage"
)

// An environment provides the clock and randomness. Tests set the seed.
type environment struct {
	mutex  sync.Mutex
	random *rand.ChaCha8
	now    func() time.Time
}

func newEnvironment(seed [32]byte) *environment {
	return &environment{random: rand.NewChaCha8(seed), now: time.Now}
}

// systemEnvironment seeds its random numbers from the operating system.
func systemEnvironment() *environment {
	var seed [32]byte
	// Read never fails: crypto/rand ends the program instead.
	_, _ = crand.Read(seed[:])
	return newEnvironment(seed)
}

func (e *environment) nonce() uint64 {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	return e.random.Uint64()
}

func (e *environment) sixteen() (bytes [16]byte) {
	binary.BigEndian.PutUint64(bytes[:8], e.nonce())
	binary.BigEndian.PutUint64(bytes[8:], e.nonce())
	return bytes
}

func (e *environment) producerID() manifest.ProducerID { return e.sixteen() }

func (e *environment) uuid() uuid.UUID {
	id := uuid.UUID(e.sixteen())
	id[6] = id[6]&0x0f | 0x40 // version 4
	id[8] = id[8]&0x3f | 0x80 // RFC 9562
	return id
}

func (e *environment) unixMs() uint64 { return uint64(max(e.now().UnixMilli(), 0)) }

// ulid returns a name that sorts by time, with a time of at least notBeforeMs.
func (e *environment) ulid(notBeforeMs uint64) ulid.ULID {
	name := ulid.ULID(e.sixteen())
	// SetTime fails only past the year 10889: the time has 48 bits.
	_ = name.SetTime(min(max(e.unixMs(), notBeforeMs), ulid.MaxTime()))
	return name
}

func (e *environment) below(end uint32) uint32 { return uint32(e.nonce() % uint64(end)) }

func (e *environment) wait(backoff *storage.Backoff) time.Duration {
	return backoff.Next(float64(e.nonce()>>11) / (1 << 53))
}

// Package unreliable simulates a bad network in front of a store. It loses requests and answers, delays them, and lets
// writes land after it reported them as failed. It never breaks the guarantees of the store behind it. All randomness
// is seeded.
package unreliable

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"millpond.dev/otel-exporter/internal/storage"
)

// A Fault is the fate of a write. For a read, every fault but Hangs is a lost connection.
type Fault int

const (
	// Honest: the report is true.
	Honest Fault = iota
	// Lost: the write never reaches the store.
	Lost
	// LandsUnreported: the store handles the write, and the answer is lost.
	LandsUnreported
	// LandsLate: the write lands some time after it was reported as failed.
	LandsLate
	// Hangs: no answer ever comes, and nothing lands.
	Hangs
	// Repeated: the write lands, and a proxy sends it again a second later. The caller gets the answer to the second copy.
	Repeated
)

// RepeatedAfter is the delay of the second copy of a repeated write.
const RepeatedAfter = time.Second

// Faults are probabilities.
type Faults struct {
	Write float64       // each of Lost, LandsUnreported and LandsLate, for a write
	Read  float64       // a lost connection, for a read
	Late  time.Duration // maximum delay of a late write

	Repeated float64 // a write that a proxy sends twice
}

// Methods that a rule can match.
const (
	Get     = "get"
	Create  = "create"
	Replace = "replace"
)

// A Gate holds one request until it is released.
type Gate struct {
	arrived, released chan struct{}
}

// Arrived is closed when the request arrives.
func (g *Gate) Arrived() <-chan struct{} { return g.arrived }

// Release lets the request continue.
func (g *Gate) Release() { close(g.released) }

type rule struct {
	method, key string // substring of the key
	fault       Fault
	gate        *Gate
}

var (
	errBefore = errors.New("the connection was lost before the request was sent")
	errAfter  = errors.New("the connection was lost before the answer came")
	errLate   = errors.New("no answer came in time")
)

// A Backend forwards requests to another one, or loses them.
type Backend struct {
	storage.Backend

	mutex  sync.Mutex
	random *rand.Rand
	faults Faults
	rules  []rule
	outage Fault
	late   sync.WaitGroup
}

// New returns the store behind a network without faults.
func New(inner storage.Backend, seed uint64) *Backend {
	return &Backend{Backend: inner, random: rand.New(rand.NewPCG(seed, 0))}
}

// Set makes faults random from now on.
func (b *Backend) Set(faults Faults) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	b.faults = faults
}

// Outage applies one fault (Lost or Hangs) to every request, until it is set to Honest.
func (b *Backend) Outage(fate Fault) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	b.outage = fate
}

// Once applies a fault to the next request of that method on a key that contains the text.
func (b *Backend) Once(method, key string, fate Fault) { b.add(rule{method, key, fate, nil}) }

// Hold keeps the next such request waiting before the store, and then passes it on.
func (b *Backend) Hold(method, key string) *Gate {
	gate := newGate()
	b.add(rule{method, key, Honest, gate})
	return gate
}

// Detain reports the next such write as failed, and lets it land on release.
func (b *Backend) Detain(method, key string) *Gate {
	gate := newGate()
	b.add(rule{method, key, LandsLate, gate})
	return gate
}

func newGate() *Gate { return &Gate{make(chan struct{}), make(chan struct{})} }

// Settled waits until every late write has landed.
func (b *Backend) Settled() { b.late.Wait() }

// Unused is the number of scripted faults that no request has met.
func (b *Backend) Unused() int {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	return len(b.rules)
}

func (b *Backend) add(rule rule) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	b.rules = append(b.rules, rule)
}

// fate draws a request's fault, gate and delay.
func (b *Backend) fate(method, key string) (Fault, *Gate, time.Duration) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	for i, rule := range b.rules {
		if rule.method == method && strings.Contains(key, rule.key) {
			b.rules = append(b.rules[:i], b.rules[i+1:]...)
			return rule.fault, rule.gate, 0
		}
	}
	if b.outage != Honest {
		return b.outage, nil, 0
	}
	drawn := b.random.Float64()
	if method == Get {
		if drawn < b.faults.Read {
			return Lost, nil, 0
		}
		return Honest, nil, 0
	}
	late := time.Duration(b.random.Float64() * float64(b.faults.Late))
	for i, fault := range []Fault{Lost, LandsUnreported, LandsLate} {
		if drawn < float64(i+1)*b.faults.Write {
			return fault, nil, late
		}
	}
	if drawn < 3*b.faults.Write+b.faults.Repeated {
		return Repeated, nil, 0
	}
	return Honest, nil, 0
}

func (g *Gate) pass(ctx context.Context) error {
	close(g.arrived)
	select {
	case <-g.released:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Get reads an object, or fails.
func (b *Backend) Get(ctx context.Context, key string, bytesMax int64) ([]byte, storage.Version, error) {
	fault, gate, _ := b.fate(Get, key)
	if gate != nil {
		if err := gate.pass(ctx); err != nil {
			return nil, "", err
		}
	}
	switch fault {
	case Honest:
		return b.Backend.Get(ctx, key, bytesMax)
	case Hangs:
		<-ctx.Done()
		return nil, "", ctx.Err()
	}
	return nil, "", errBefore
}

// Create writes an object, or fails.
func (b *Backend) Create(ctx context.Context, key string, body storage.Body) (storage.Version, error) {
	return b.write(ctx, Create, key, func(ctx context.Context) (storage.Version, error) {
		return b.Backend.Create(ctx, key, body)
	})
}

// Replace writes an object, or fails.
func (b *Backend) Replace(ctx context.Context, key string, expected storage.Version, body storage.Body) (storage.Version, error) {
	return b.write(ctx, Replace, key, func(ctx context.Context) (storage.Version, error) {
		return b.Backend.Replace(ctx, key, expected, body)
	})
}

func (b *Backend) write(ctx context.Context, method, key string, send func(context.Context) (storage.Version, error)) (storage.Version, error) {
	fault, gate, late := b.fate(method, key)
	switch fault {
	case Lost:
		return "", errBefore
	case LandsUnreported:
		// The answer is lost, whether the write took effect or not.
		_, _ = send(ctx)
		return "", errAfter
	case LandsLate:
		b.late.Go(func() {
			// The sender has left; the request lives on.
			after := context.WithoutCancel(ctx)
			if gate != nil {
				_ = gate.pass(after)
			} else {
				time.Sleep(late)
			}
			_, _ = send(after)
		})
		return "", errLate
	case Hangs:
		<-ctx.Done()
		return "", ctx.Err()
	case Repeated:
		if version, err := send(ctx); err != nil {
			return version, err
		}
		time.Sleep(RepeatedAfter)
	}
	if gate != nil {
		if err := gate.pass(ctx); err != nil {
			return "", err
		}
	}
	return send(ctx)
}

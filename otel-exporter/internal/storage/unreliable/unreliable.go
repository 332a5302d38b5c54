// Package unreliable puts a bad network in front of a store, for tests of everything that must survive one. It loses
// requests and answers, delays them, and lets writes land after they were reported as failed; it never breaks the
// promises of the store behind it. All chance is seeded.
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

// A Fault is what can become of a write. (Of a read, every one of them is a lost connection, but for Hangs.)
type Fault int

const (
	// Honest: what was reported is what happened.
	Honest Fault = iota
	// Lost: it never reached the store.
	Lost
	// LandsUnreported: it landed, or was refused, and the answer was lost.
	LandsUnreported
	// LandsLate: it lands some time after it was reported as failed.
	LandsLate
	// Hangs: no answer ever comes, and nothing lands.
	Hangs
	// Repeated: it lands, and a proxy sends it again a second later. The answer is the one to the second copy.
	Repeated
)

// RepeatedAfter is how long after the first copy the second one of a repeated write is sent.
const RepeatedAfter = time.Second

// Faults are chances.
type Faults struct {
	Write float64       // of each of Lost, LandsUnreported and LandsLate, for a write
	Read  float64       // of a lost connection, for a read
	Late  time.Duration // how late a late write lands, at most

	Repeated float64 // of a write that a proxy sends twice
}

// Methods that a rule can be for.
const (
	Get     = "get"
	Create  = "create"
	Replace = "replace"
)

// A Gate holds one request until it is released.
type Gate struct {
	arrived, released chan struct{}
}

// Arrived is closed when the request is there.
func (g *Gate) Arrived() <-chan struct{} { return g.arrived }

// Release lets the request go on.
func (g *Gate) Release() { close(g.released) }

type rule struct {
	method, key string // the key contains it
	fault       Fault
	gate        *Gate
}

var (
	errBefore = errors.New("the connection was lost before the request was sent")
	errAfter  = errors.New("the connection was lost before the answer came")
	errLate   = errors.New("no answer came in time")
)

// A Backend passes requests on to another one, or not.
type Backend struct {
	storage.Backend

	mutex  sync.Mutex
	random *rand.Rand
	faults Faults
	rules  []rule
	outage Fault
	late   sync.WaitGroup
}

// New gives the store behind a network that does nothing bad until it is told to.
func New(inner storage.Backend, seed uint64) *Backend {
	return &Backend{Backend: inner, random: rand.New(rand.NewPCG(seed, 0))}
}

// Set makes chance decide from now on.
func (b *Backend) Set(faults Faults) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	b.faults = faults
}

// Outage gives every request the same fate (Lost or Hangs) until it is Honest again.
func (b *Backend) Outage(fate Fault) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	b.outage = fate
}

// Once gives the next request of that method, on a key that contains the text, a fate.
func (b *Backend) Once(method, key string, fate Fault) { b.add(rule{method, key, fate, nil}) }

// Hold keeps the next such request waiting on its way to the store; it is honest then.
func (b *Backend) Hold(method, key string) *Gate {
	gate := newGate()
	b.add(rule{method, key, Honest, gate})
	return gate
}

// Detain reports the next such write as failed and lets it land when it is released.
func (b *Backend) Detain(method, key string) *Gate {
	gate := newGate()
	b.add(rule{method, key, LandsLate, gate})
	return gate
}

func newGate() *Gate { return &Gate{make(chan struct{}), make(chan struct{})} }

// Settled waits until every late write has landed.
func (b *Backend) Settled() { b.late.Wait() }

// Unused is how many scripted fates no request has met.
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

// fate decides about a request: its fault, the gate it has to pass, and how late it lands.
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

// Get reads an object, or does not.
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

// Create writes an object, or does not.
func (b *Backend) Create(ctx context.Context, key string, body storage.Body) (storage.Version, error) {
	return b.write(ctx, Create, key, func(ctx context.Context) (storage.Version, error) {
		return b.Backend.Create(ctx, key, body)
	})
}

// Replace writes an object, or does not.
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
		// Whether it took effect or was refused is what gets lost.
		_, _ = send(ctx)
		return "", errAfter
	case LandsLate:
		b.late.Go(func() {
			// Its sender has gone; the request has not.
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

package storage

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// RequestTimeout is the default of the longest that one request may take: longer than S3 ever takes over 16 MiB on a
// working network, short enough that a dead connection is noticed within a client's patience.
const RequestTimeout = 30 * time.Second

// objectMax is the largest object that is read into memory, in bytes: many times what any part of a buffer can be.
const objectMax = 1 << 30

// An Outcome is what became of a compare-and-set.
type Outcome int

const (
	// Unknown: it took effect, did not, or still will. Read again to find out. (A 409 of S3 is this, too. It means
	// that nothing was written, so who reads again loses a request and nothing else.)
	Unknown Outcome = iota
	// Committed: it took effect.
	Committed
	// Mismatch: the store refused it. An earlier attempt with an unknown outcome, or the first copy of a request that a
	// proxy sent twice, may be what changed the object.
	Mismatch
)

func (o Outcome) String() string {
	return [...]string{"unknown", "committed", "mismatch"}[o]
}

// Requests counts what was asked of a store.
type Requests struct{ Gets, Puts, Lists, Deletes uint64 }

// A Store is one buffer in an object store.
type Store struct {
	backend Backend
	timeout time.Duration

	gets, puts, lists, deletes atomic.Uint64
}

// Over gives a buffer in any backend, with a timeout for each request.
func Over(backend Backend, timeout time.Duration) *Store {
	return &Store{backend: backend, timeout: timeout}
}

// URL is the buffer's, for messages.
func (s *Store) URL() string { return s.backend.URL() }

// Requests is what was asked so far.
func (s *Store) Requests() Requests {
	return Requests{s.gets.Load(), s.puts.Load(), s.lists.Load(), s.deletes.Load()}
}

// begin counts a request and bounds its time.
func (s *Store) begin(ctx context.Context, count *atomic.Uint64) (context.Context, context.CancelFunc) {
	count.Add(1)
	return context.WithTimeoutCause(ctx, s.timeout, fmt.Errorf("no answer within %s", s.timeout))
}

// wrap tells what was attempted.
func (s *Store) wrap(ctx context.Context, operation, key string, err error) error {
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() != nil {
		err = transient(context.Cause(ctx))
	}
	return fmt.Errorf("cannot %s %q in %s: %w", operation, key, s.URL(), err)
}

// Get reads an object; found is false when there is none.
func (s *Store) Get(ctx context.Context, key string) (body []byte, version Version, found bool, err error) {
	return s.GetAtMost(ctx, key, objectMax)
}

// GetAtMost reads an object of at most bytesMax bytes. A larger one is an error (ErrTooLarge), and is not read.
func (s *Store) GetAtMost(ctx context.Context, key string, bytesMax int64) (body []byte, version Version, found bool, err error) {
	ctx, end := s.begin(ctx, &s.gets)
	defer end()
	body, version, err = s.backend.Get(ctx, key, min(bytesMax, objectMax))
	switch {
	case err == nil:
		return body, version, true, nil
	case errors.Is(err, ErrAbsent):
		return nil, "", false, nil
	}
	return nil, "", false, s.wrap(ctx, "get", key, err)
}

// PutIfAbsent writes an object that must not be there yet. created is false if it was there: it is then as it was, and
// may be the caller's own, of an earlier attempt that was reported as an error. After an error the object may be there,
// or appear later, whole.
func (s *Store) PutIfAbsent(ctx context.Context, key string, body Body) (created bool, err error) {
	ctx, end := s.begin(ctx, &s.puts)
	defer end()
	_, err = s.backend.Create(ctx, key, body)
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, ErrRefused):
		return false, nil
	}
	return false, s.wrap(ctx, "put", key, err)
}

// CompareAndSet replaces an object if it is at the expected version, or creates it, for nil, if it is not there. The
// error says why an outcome is Unknown.
func (s *Store) CompareAndSet(ctx context.Context, key string, expected *Version, body []byte) (Outcome, Version, error) {
	ctx, end := s.begin(ctx, &s.puts)
	defer end()
	var version Version
	var err error
	if expected == nil {
		version, err = s.backend.Create(ctx, key, Body{body})
	} else {
		version, err = s.backend.Replace(ctx, key, *expected, Body{body})
	}
	switch {
	case err == nil:
		return Committed, version, nil
	case errors.Is(err, ErrRefused):
		return Mismatch, "", nil
	}
	return Unknown, "", s.wrap(ctx, "compare and set", key, err)
}

// List gives the keys of all objects in a folder, in no order.
func (s *Store) List(ctx context.Context, folder string) ([]string, error) {
	ctx, end := s.begin(ctx, &s.lists)
	defer end()
	keys, err := s.backend.List(ctx, folder)
	if err != nil {
		return nil, s.wrap(ctx, "list", folder, err)
	}
	return keys, nil
}

// Delete deletes an object. One that is not there is deleted already.
func (s *Store) Delete(ctx context.Context, key string) error {
	ctx, end := s.begin(ctx, &s.deletes)
	defer end()
	if err := s.backend.Delete(ctx, key); err != nil {
		return s.wrap(ctx, "delete", key, err)
	}
	return nil
}

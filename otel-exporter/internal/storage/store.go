package storage

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// RequestTimeout is the default time limit of one request: longer than S3 takes for 16 MiB on a working network, and
// short enough to notice a dead connection before a client gives up.
const RequestTimeout = 30 * time.Second

// objectMax is the largest object that a read accepts, in bytes: many times the size of any object in a buffer.
const objectMax = 1 << 30

// An Outcome is the result of a compare-and-set.
type Outcome int

const (
	// Unknown: it took effect, did not, or still will. Read again to find out. This includes a 409 of S3, which wrote
	// nothing: reading again then costs one request.
	Unknown Outcome = iota
	// Committed: it took effect.
	Committed
	// Mismatch: the store refused it. The object may have changed through an earlier attempt with an unknown outcome, or
	// through the first copy of a request that a proxy sent twice.
	Mismatch
)

func (o Outcome) String() string {
	return [...]string{"unknown", "committed", "mismatch"}[o]
}

// Requests counts the requests to a store.
type Requests struct{ Gets, Puts, Lists, Deletes uint64 }

// A Store is one buffer in an object store.
type Store struct {
	backend Backend
	timeout time.Duration

	gets, puts, lists, deletes atomic.Uint64
}

// Over returns a buffer in any backend, with a timeout for each request.
func Over(backend Backend, timeout time.Duration) *Store {
	return &Store{backend: backend, timeout: timeout}
}

// URL is the buffer's URL, for messages.
func (s *Store) URL() string { return s.backend.URL() }

// Requests returns the number of requests so far.
func (s *Store) Requests() Requests {
	return Requests{s.gets.Load(), s.puts.Load(), s.lists.Load(), s.deletes.Load()}
}

// begin counts a request and sets its deadline.
func (s *Store) begin(ctx context.Context, count *atomic.Uint64) (context.Context, context.CancelFunc) {
	count.Add(1)
	return context.WithTimeoutCause(ctx, s.timeout, fmt.Errorf("no answer within %s", s.timeout))
}

// wrap adds the attempted operation to an error.
func (s *Store) wrap(ctx context.Context, operation, key string, err error) error {
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() != nil {
		err = transient(context.Cause(ctx))
	}
	return fmt.Errorf("cannot %s %q in %s: %w", operation, key, s.URL(), err)
}

// Get reads an object. If it does not exist, found is false.
func (s *Store) Get(ctx context.Context, key string) (body []byte, version Version, found bool, err error) {
	return s.GetAtMost(ctx, key, objectMax)
}

// GetAtMost reads an object of at most bytesMax bytes. For a larger one it returns ErrTooLarge without reading it.
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

// PutIfAbsent writes an object that must not exist. If it exists, created is false and the object stays unchanged; it
// may come from an earlier attempt of the caller that returned an error. After an error the whole object may exist, or
// appear later.
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

// CompareAndSet replaces an object if it has the expected version. For nil it creates the object if it does not exist.
// The error explains an Unknown outcome.
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

// List returns the keys of all objects in a folder, in any order.
func (s *Store) List(ctx context.Context, folder string) ([]string, error) {
	ctx, end := s.begin(ctx, &s.lists)
	defer end()
	keys, err := s.backend.List(ctx, folder)
	if err != nil {
		return nil, s.wrap(ctx, "list", folder, err)
	}
	return keys, nil
}

// Delete deletes an object. Deleting an absent object succeeds.
func (s *Store) Delete(ctx context.Context, key string) error {
	ctx, end := s.begin(ctx, &s.deletes)
	defer end()
	if err := s.backend.Delete(ctx, key); err != nil {
		return s.wrap(ctx, "delete", key, err)
	}
	return nil
}

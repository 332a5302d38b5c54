package manifest

import (
	"context"
	"fmt"

	"millpond.dev/otel-exporter/internal/storage"
)

// A Snapshot is a state as read or committed, with the version that a swap must name to replace it.
type Snapshot struct {
	State   *Manifest
	Version storage.Version
}

// A FormatError means that the store returned something other than the expected object.
type FormatError struct {
	Key string
	Err error
}

func (e *FormatError) Error() string { return fmt.Sprintf("%s: %v", e.Key, e.Err) }
func (e *FormatError) Unwrap() error { return e.Err }

// Read reads a shard's manifest. It returns nil if there is none.
func Read(ctx context.Context, store *storage.Store, shard uint32) (*Snapshot, error) {
	key := Key(shard)
	body, version, found, err := store.GetAtMost(ctx, key, logBytesMax)
	if err != nil || !found {
		return nil, err
	}
	state, err := Decode(body)
	if err != nil {
		return nil, &FormatError{key, err}
	}
	if state.Shard != shard {
		return nil, &FormatError{key, fmt.Errorf("manifest is that of %s: somebody put it in the wrong place", Key(state.Shard))}
	}
	return &Snapshot{state, version}, nil
}

// Swap replaces the expected state (nil: no object yet) with next in one attempt. The error explains an Unknown
// outcome. Swap does not send a state that readers would refuse, because nobody could repair it: that outcome is also
// Unknown, and the error names the rule.
func Swap(ctx context.Context, store *storage.Store, shard uint32, expected *storage.Version, next *Manifest) (storage.Outcome, *Snapshot, error) {
	body, err := next.Encode()
	if err == nil {
		err = next.checkReadable(body)
	}
	if err != nil {
		return storage.Unknown, nil, fmt.Errorf("%s was not written, because readers would refuse it: %w", Key(shard), err)
	}
	outcome, version, err := store.CompareAndSet(ctx, Key(shard), expected, body)
	if outcome != storage.Committed {
		return outcome, nil, err
	}
	return outcome, &Snapshot{next, version}, nil
}

// ReadBuffer reads the buffer object. It returns nil if the object does not exist.
func ReadBuffer(ctx context.Context, store *storage.Store) (*Buffer, error) {
	body, _, found, err := store.GetAtMost(ctx, BufferKey, bufferBytesMax)
	if err != nil || !found {
		return nil, err
	}
	buffer, err := DecodeBuffer(body)
	if err != nil {
		return nil, &FormatError{BufferKey, err}
	}
	return buffer, nil
}

// OpenBuffer reads the buffer object or writes it. After losing the race it reads what the winner wrote.
func OpenBuffer(ctx context.Context, store *storage.Store, new *Buffer) (*Buffer, error) {
	for {
		if found, err := ReadBuffer(ctx, store); found != nil || err != nil {
			return found, err
		}
		encoded, err := new.Encode()
		if err != nil {
			return nil, err
		}
		created, err := store.PutIfAbsent(ctx, BufferKey, storage.Body{encoded})
		if err != nil {
			return nil, err
		}
		if created {
			return new, nil
		}
	}
}

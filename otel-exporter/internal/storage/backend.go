// Package storage makes requests to one buffer: get, put if absent, compare and set, list, delete. A Backend is one
// kind of object store; Store adds timeouts, outcomes and readable errors.
//
// Every method makes one attempt. A retry inside the client would report our own landed write as a loss; only the
// caller can find out what became of an attempt.
package storage

import (
	"context"
	"errors"
	"io"
)

// A backend's decisions about a request. After any other error the outcome is open.
var (
	// ErrAbsent means that the object does not exist.
	ErrAbsent = errors.New("there is no such object")
	// ErrTooLarge means that the object is larger than the caller accepts.
	ErrTooLarge = errors.New("the object is larger than any that Millpond writes there")
	// ErrRefused means that the condition of a write does not hold, and that this write did not take effect.
	ErrRefused = errors.New("the condition does not hold")
)

// A Version names one state of an object. It may depend on the content alone, so equal bytes may have equal versions.
// Objects that are compared and set therefore carry something that never repeats.
type Version string

// A Body is an object's content in pieces, which are sent in order without copying.
type Body [][]byte

// Len is the total length of the pieces.
func (b Body) Len() int64 {
	var total int64
	for _, piece := range b {
		total += int64(len(piece))
	}
	return total
}

// Reader returns a reader over the pieces that can seek.
func (b Body) Reader() io.ReadSeeker { return &bodyReader{body: b} }

// An HTTP client reads a bodyReader twice: once for the signature, once to send it.
type bodyReader struct {
	body  Body
	piece int
	at    int   // position in the piece
	total int64 // position in the body
}

func (r *bodyReader) Read(out []byte) (int, error) {
	for r.piece < len(r.body) && r.at == len(r.body[r.piece]) {
		r.piece, r.at = r.piece+1, 0
	}
	if r.piece == len(r.body) {
		return 0, io.EOF
	}
	n := copy(out, r.body[r.piece][r.at:])
	r.at += n
	r.total += int64(n)
	return n, nil
}

func (r *bodyReader) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += r.total
	case io.SeekEnd:
		offset += r.body.Len()
	}
	if offset < 0 || offset > r.body.Len() {
		return 0, errors.New("seek outside of the body")
	}
	r.piece, r.at, r.total = 0, 0, offset
	for left := offset; left > 0; {
		step := min(left, int64(len(r.body[r.piece])))
		r.at, left = int(step), left-step
		if left > 0 {
			r.piece++
		}
	}
	return offset, nil
}

// A Backend is one kind of object store. Keys are relative to the buffer; the backend adds the prefix.
type Backend interface {
	// Get reads an object of at most bytesMax bytes, or returns ErrAbsent. For a larger object it stops reading and
	// returns ErrTooLarge.
	Get(ctx context.Context, key string, bytesMax int64) ([]byte, Version, error)
	// Create writes an object, or returns ErrRefused if it exists.
	Create(ctx context.Context, key string, body Body) (Version, error)
	// Replace writes an object, or returns ErrRefused if its version is not the expected one.
	Replace(ctx context.Context, key string, expected Version, body Body) (Version, error)
	// List returns the keys of all objects in a folder, in any order.
	List(ctx context.Context, folder string) ([]string, error)
	// Delete deletes an object. Deleting an absent object succeeds.
	Delete(ctx context.Context, key string) error
	// URL is the buffer's URL, for messages.
	URL() string
}

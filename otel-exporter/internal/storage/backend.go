// Package storage makes requests to one buffer: get, put if absent, compare and set, list, delete. A Backend is one
// kind of object store; Store puts timeouts, words for the outcomes and sentences for the errors around it.
//
// Every method makes one attempt. Nothing is retried here: a retry inside the client would report our own landed write
// as a loss, and only the caller knows how to find out what became of an attempt.
package storage

import (
	"context"
	"errors"
	"io"
)

// A backend's decisions about a request. Any other error leaves the outcome open.
var (
	// ErrAbsent means that there is no such object.
	ErrAbsent = errors.New("there is no such object")
	// ErrTooLarge means that there is more of an object than the caller takes.
	ErrTooLarge = errors.New("the object is larger than any that Millpond writes there")
	// ErrRefused means that the condition of a write does not hold, and that this write did not take effect.
	ErrRefused = errors.New("the condition does not hold")
)

// A Version names one state of an object. It may be derived from the content, so equal bytes may have equal versions:
// an object that is compared and set carries something that never repeats.
type Version string

// A Body is an object's content in pieces, which are sent one after another and not copied.
type Body [][]byte

// Len is the length of all pieces.
func (b Body) Len() int64 {
	var total int64
	for _, piece := range b {
		total += int64(len(piece))
	}
	return total
}

// Reader reads the pieces, from the start or from anywhere.
func (b Body) Reader() io.ReadSeeker { return &bodyReader{body: b} }

// bodyReader is what an HTTP client sends, and reads twice: once for the signature.
type bodyReader struct {
	body  Body
	piece int
	at    int   // in the piece
	total int64 // position in all
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

// A Backend is one kind of object store. Keys are relative to the buffer, whose prefix is the backend's to add.
type Backend interface {
	// Get reads an object of at most bytesMax bytes, or says ErrAbsent. Of a larger one it reads no more than that, and says
	// ErrTooLarge.
	Get(ctx context.Context, key string, bytesMax int64) ([]byte, Version, error)
	// Create writes an object, or says ErrRefused if it is there.
	Create(ctx context.Context, key string, body Body) (Version, error)
	// Replace writes an object, or says ErrRefused if it is not at the version.
	Replace(ctx context.Context, key string, expected Version, body Body) (Version, error)
	// List gives the keys of all objects in a folder, in no order.
	List(ctx context.Context, folder string) ([]string, error)
	// Delete deletes an object. One that is not there is deleted already.
	Delete(ctx context.Context, key string) error
	// URL is the buffer's, for messages.
	URL() string
}
